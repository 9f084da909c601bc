"""Runs a copy of a DaemonSet on a few nodes for a limited time, and removes it whatever happens.

The copy has a priority class of its own. A ResourceQuota caps the pods of this class at the number of nodes, so a
mistake cannot start more. The quota does not count other pods of the namespace.
"""

from __future__ import annotations

import asyncio
import copy
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from muster.doctor.pricing.manifest import Manifest
from muster.kube.client import Client
from muster.kube.errors import ApiError, NotFound
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod

LABEL: Final = "muster.dev/canary"
EXPIRES: Final = "muster.dev/canary-expires"
"""Annotation with the time after which another run removes what is left, because its own run must have died."""
NODES_MAX: Final = 20
START_S: Final = 180.0
"""Most seconds until the pods run."""
_POLL_S: Final = 0.5
_REMOVE_S: Final = 60.0
_GRACE_S: Final = 600.0


class CanaryError(Exception):
    """The canary could not run; the message says why. Nothing of it is left in the cluster."""


class LeftOverError(Exception):
    """Objects of the canary could not be removed; the message names them."""


class Canary(NamedTuple):
    """A canary that runs.

    Attributes:
        name: of its DaemonSet, quota and priority class.
        namespace: of its pods.
        nodes: nodes on which it may run.
        pods: names of its pods that run.
        started: when the DaemonSet was created, in Unix seconds.
    """

    name: str
    namespace: str
    nodes: tuple[str, ...]
    pods: tuple[str, ...]
    started: float


class _PriorityClass(KubeObject):
    """scheduling.k8s.io/v1 PriorityClass, metadata only."""

    RESOURCE = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)


class _ResourceQuota(KubeObject):
    """v1 ResourceQuota, metadata only."""

    RESOURCE = Resource("", "v1", "resourcequotas", "ResourceQuota")


class _DaemonSet(KubeObject):
    """apps/v1 DaemonSet, metadata only."""

    RESOURCE = Resource("apps", "v1", "daemonsets", "DaemonSet")


_KINDS: Final[tuple[type[KubeObject], ...]] = (_DaemonSet, _ResourceQuota, _PriorityClass)


def canary_objects(manifest: Manifest, name: str, nodes: Sequence[str], expires: datetime) -> list[dict[str, Any]]:
    """The objects of a canary in the order in which they are created: priority class, quota, DaemonSet.

    Args:
        manifest: the user's DaemonSet.
        name: of all three objects.
        nodes: names of the nodes on which a pod may run.
        expires: when another run may remove them.
    """
    labels = {LABEL: name}
    meta = {"name": name, "labels": labels, "annotations": {EXPIRES: expires.strftime("%Y-%m-%dT%H:%M:%SZ")}}
    inside = {**meta, "namespace": manifest.namespace}
    template = copy.deepcopy(dict(manifest.daemonset["spec"]["template"]))
    metadata = template.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    spec = template.setdefault("spec", {})
    spec["priorityClassName"] = name
    spec.pop("priority", None)
    spec.pop("preemptionPolicy", None)
    spec["affinity"] = _on_nodes(spec.get("affinity") or {}, nodes)
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": meta,
            "value": 0,
            "preemptionPolicy": "Never",
            "description": "Caps the pods of a canary of muster doctor price.",
        },
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": inside,
            "spec": {
                "hard": {"pods": str(len(nodes))},
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": [name]}]
                },
            },
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": inside,
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        },
    ]


def _on_nodes(affinity: Mapping[str, Any], nodes: Sequence[str]) -> dict[str, Any]:
    """The affinity with the further requirement that the node is one of `nodes`."""
    result = copy.deepcopy(dict(affinity))
    node = result.setdefault("nodeAffinity", {})
    required = node.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    # The API server requires exactly one name in a field of a node selector. So there is a term for each node.
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {
            **term,
            "matchFields": [*term.get("matchFields", ()), {"key": "metadata.name", "operator": "In", "values": [name]}],
        }
        for term in terms
        for name in nodes
    ]
    return result


async def choose_nodes(client: Client, manifest: Manifest, count: int) -> tuple[str, ...]:
    """Choose ready nodes that take pods and have the labels of the DaemonSet's nodeSelector, by name.

    Raises:
        CanaryError: there are fewer.
    """
    selector = (manifest.daemonset["spec"]["template"].get("spec") or {}).get("nodeSelector") or {}
    chosen: list[str] = []
    async for page in client.pages(Node, label_selector=",".join(f"{key}={value}" for key, value in selector.items())):
        chosen += [node.name for node in page.items if node.ready and not node.spec.unschedulable]
        if len(chosen) >= count:
            break
    if len(chosen) < count:
        raise CanaryError(f"{count} nodes were asked for, but only {len(chosen)} are ready, uncordoned and selected")
    return tuple(sorted(chosen)[:count])


@asynccontextmanager
async def running(
    client: Client, manifest: Manifest, nodes: Sequence[str], *, seconds: float, start_s: float = START_S
) -> AsyncIterator[Canary]:
    """Run the canary while the block runs: it begins when its pods run. Everything is removed at the end.

    Args:
        client: the cluster.
        manifest: the DaemonSet.
        nodes: nodes to run on.
        seconds: how long the block will take at most.
        start_s: deadline until all pods run.

    Raises:
        CanaryError: no pod ran before the deadline, or an object was refused.
        LeftOverError: an object could not be removed.
    """
    await remove_expired(client)
    name = f"muster-canary-{secrets.token_hex(4)}"
    now = datetime.now(UTC)
    expires = now + timedelta(seconds=seconds + start_s + _GRACE_S)
    try:
        for each in canary_objects(manifest, name, nodes, expires):
            try:
                await client.create(each)
            except ApiError as error:
                raise CanaryError(f"the API server refused the canary's {each['kind']}: {error.message}") from error
        pods = await _started(client, manifest.namespace, name, len(nodes), start_s)
        yield Canary(name, manifest.namespace, tuple(nodes), pods, now.timestamp())
    finally:
        # Shielded: Ctrl-C must not leave pods behind.
        removal = asyncio.ensure_future(_remove(client, manifest.namespace, name))
        try:
            await asyncio.shield(removal)
        except asyncio.CancelledError:
            await removal
            raise


async def remove_expired(client: Client, now: datetime | None = None) -> list[str]:
    """Remove what earlier runs left because they were killed. Returns the names."""
    moment = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
    removed = []
    for kind in _KINDS:
        async for page in client.pages(kind, label_selector=LABEL):
            for each in page.items:
                if each.metadata.annotations.get(EXPIRES, moment) < moment:
                    await _delete(client, kind, each.name, each.namespace or None)
                    removed.append(each.name)
    return removed


async def _started(client: Client, namespace: str, name: str, count: int, start_s: float) -> tuple[str, ...]:
    """Wait until all pods run, or at least one at the deadline; returns their names."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + start_s
    while True:
        listed = await client.list(Pod, namespace, label_selector=f"{LABEL}={name}", limit=NODES_MAX + 1)
        ready = tuple(sorted(pod.name for pod in listed.items if pod.status.phase == "Running"))
        if len(ready) >= count:
            return ready
        if clock() > deadline:
            if ready:
                return ready
            states = sorted({f"{pod.name}: {pod.status.phase or 'not scheduled'}" for pod in listed.items})
            raise CanaryError(
                f"no pod of the canary ran within {start_s:.0f} s; " + ("; ".join(states) or "none was created")
            )
        await asyncio.sleep(_POLL_S)


async def _remove(client: Client, namespace: str, name: str) -> None:
    clock = asyncio.get_running_loop().time
    deadline = clock() + _REMOVE_S
    while True:
        failed = []
        for kind in _KINDS:
            where = namespace if kind.RESOURCE.namespaced else None
            try:
                await _delete(client, kind, name, where)
            except ApiError as error:
                failed.append(f"{kind.RESOURCE.kind} {name}: {error.message}")
        if not failed:
            return
        if clock() > deadline:
            raise LeftOverError(
                f"the canary could not be removed: {'; '.join(failed)}; "
                f"remove it: kubectl delete daemonsets,resourcequotas -n {namespace} -l {LABEL}={name}, "
                f"kubectl delete priorityclass {name}"
            )
        await asyncio.sleep(_POLL_S)


async def _delete(client: Client, kind: type[KubeObject], name: str, namespace: str | None) -> None:
    try:
        await client.delete(kind, name, namespace=namespace, propagation="Background")
    except NotFound:
        return
