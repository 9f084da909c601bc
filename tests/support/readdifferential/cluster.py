"""Objects in a real cluster that the requests read, and changes of them."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import msgspec

from muster.kube.client import Client
from muster.kube.errors import ApiError, NotFound
from muster.kube.objects.meta import Resource
from muster.readcache.kinds import CachedKind
from tests.support.waiting import until

NAMESPACES = ("reads-a", "reads-a-b", "reads-b", "reads-empty")
"""In etcd's order `reads-a-b/` comes before `reads-a/`."""
NODES = ("reads-n1", "reads-n2")
COLOURS = ("red", "blue", "")
WIDGETS_CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.reads.test"},
    "spec": {
        "group": "reads.test",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "selectableFields": [{"jsonPath": ".spec.colour"}],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "properties": {"colour": {"type": "string"}}},
                        },
                    }
                },
            }
        ],
    },
}

PODS = CachedKind(Resource("", "v1", "pods", "Pod"))
CONFIG_MAPS = CachedKind(Resource("", "v1", "configmaps", "ConfigMap"))
NODE = CachedKind(Resource("", "v1", "nodes", "Node", namespaced=False))
NAMESPACE = CachedKind(Resource("", "v1", "namespaces", "Namespace", namespaced=False))
LEASES = CachedKind(Resource("coordination.k8s.io", "v1", "leases", "Lease"))
WIDGETS = CachedKind(
    Resource("reads.test", "v1", "widgets", "Widget"), custom=True, protobuf=False, selectable=(".spec.colour",)
)
KINDS = (PODS, CONFIG_MAPS, NODE, NAMESPACE, LEASES, WIDGETS)
CHANGED = (PODS, CONFIG_MAPS, NODE, WIDGETS)
"""Kinds whose objects are changed at random."""


_MADE = (
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.reads.test",
    *(NODE.resource.path(None, name) for name in NODES),
    *(NAMESPACE.resource.path(None, name) for name in NAMESPACES),
)


def labels_of(rng: random.Random) -> dict[str, str]:
    """Random labels from a few, so that selectors match some objects."""
    pool = {"app": ("x", "y", "z", ""), "tier": ("front", "back"), "size": ("1", "5", "big")}
    return {key: rng.choice(values) for key, values in pool.items() if rng.random() < 0.6}


def random_object(kind: CachedKind, name: str, rng: random.Random) -> dict[str, Any]:
    """A new object of a kind."""
    made: dict[str, Any] = {
        "apiVersion": kind.resource.api_version,
        "kind": kind.resource.kind,
        "metadata": {"name": name, "labels": labels_of(rng)},
    }
    if kind is PODS:
        made["spec"] = {"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": False}
        if rng.random() < 0.5:
            made["spec"]["nodeName"] = rng.choice(NODES)
    elif kind is CONFIG_MAPS:
        made["data"] = {"text": f'<"&> \u2028 {rng.random()}'}
    elif kind is WIDGETS:
        made["spec"] = {"colour": colour} if (colour := rng.choice(COLOURS)) else {}
    return made


class Cluster:
    """The objects, and random changes of them.

    Attributes:
        names: the names that objects of each kind may have.
        written: the newest version of all acknowledged writes.
    """

    def __init__(self, client: Client, rng: random.Random, objects: int = 12) -> None:
        self._client = client
        self._rng = rng
        self._objects = objects
        self.names = [f"o{index}" for index in range(objects)]
        self.written = 0

    async def prepare(self) -> None:
        """Create namespaces, nodes, the custom resource and the first objects."""
        await self._gone()
        await self._create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", WIDGETS_CRD)
        for name in NAMESPACES:
            await self._create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels_of(self._rng)}})
        for name in NODES:
            await self._create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels_of(self._rng)}})
        await self._served(WIDGETS.resource.path())
        for namespace in NAMESPACES[:-1]:
            await self._default_account(namespace)
            for kind in CHANGED:
                if kind.resource.namespaced:
                    for name in self._rng.sample(self.names, self._objects // 2):
                        await self._create(kind.resource.path(namespace), random_object(kind, name, self._rng))

    async def remove(self) -> None:
        """Remove what `prepare` made."""
        for path in _MADE:
            with contextlib.suppress(NotFound):
                await self._client.request("DELETE", path)

    async def change(self) -> None:
        """Make one random change: create, label or delete an object."""
        rng = self._rng
        kind = rng.choice(CHANGED)
        namespaced = kind.resource.namespaced
        namespace = rng.choice(NAMESPACES[:-1]) if namespaced else None
        name = rng.choice(self.names) if namespaced else rng.choice(NODES)
        path = kind.resource.path(namespace, name)
        try:
            if namespaced and rng.random() < 0.3:
                await self._client.request("DELETE", path, params={"gracePeriodSeconds": "0"})
            elif namespaced and rng.random() < 0.4:
                await self._create(kind.resource.path(namespace), random_object(kind, name, rng))
            else:
                change = {"metadata": {"labels": labels_of(rng) | dict.fromkeys(rng.sample(["app", "tier"], 1))}}
                headers = {"Content-Type": "application/merge-patch+json"}
                self._note(await self._client.request("PATCH", path, body=msgspec.json.encode(change), headers=headers))
        except NotFound:
            pass

    async def _create(self, path: str, body: dict[str, Any]) -> None:
        try:
            self._note(await self._client.request("POST", path, body=msgspec.json.encode(body)))
        except ApiError as error:
            if error.status != 409:
                raise

    async def _gone(self) -> None:
        """Wait until nothing is left that an earlier run removes."""
        for path in _MADE:

            async def kept(path: str = path) -> bool:
                try:
                    return b'"deletionTimestamp"' not in await self._client.request("GET", path)
                except NotFound:
                    return True

            await until(f"{path} is gone, or is not removed", kept)

    def _note(self, body: bytes) -> None:
        self.written = max(self.written, int(msgspec.json.decode(body)["metadata"]["resourceVersion"]))

    async def _served(self, path: str) -> None:
        async def found() -> bool:
            await self._client.request("GET", path)
            return True

        await until(f"{path} is served", found, ignoring=(NotFound,))

    async def _default_account(self, namespace: str) -> None:
        await self._served(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
