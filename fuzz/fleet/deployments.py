"""Kubernetes' own controllers for Deployments of balloons: they recreate missing pods and delete surplus ones."""

from __future__ import annotations

import contextlib
from typing import Any

from muster.api.names import LABEL_BALLOON
from muster.embedded.item import Item
from muster.embedded.objects import encode, section
from muster.fleet.balloons.deployment import DELETION_COST
from muster.kube.errors import NotFound
from muster.kube.objects.apps import Deployment
from muster.sim.virtual.cluster import VirtualCluster

RESOURCE = f"{Deployment.RESOURCE.plural}.{Deployment.RESOURCE.group}"
_LOOK_S = 0.2
_TEMPLATE = "pod-template"
"""Label of pods: which template they were made of."""


class Deployments:
    """Keeps the number of pods that each Deployment requests, all from its current template.

    Of pods too many those go first that have no node, then those of lower deletion cost, then the newest (Kubernetes
    docs, "ReplicaSet": scaling down).
    """

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster
        self._made = 0
        self._looking = False
        self._templates: dict[bytes, str] = {}
        cluster.core.store.listeners.append(self._changed)

    def _changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        item = new or old
        assert item is not None
        concerns = resource == RESOURCE or (resource == "pods" and LABEL_BALLOON in item.labels)
        if concerns and not self._looking:
            self._looking = True
            self._cluster.loop.call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        self._looking = False
        store = self._cluster.core.store
        pods = [pod for pod in store.define("pods").items.values() if LABEL_BALLOON in pod.labels]
        found = [item.object() for item in store.define(RESOURCE).items.values()]
        names = {one["metadata"]["name"] for one in found}
        for pod in pods:
            if pod.labels["deployment"] not in names:
                self._delete(pod)
        for one in found:
            self._keep(one, [pod for pod in pods if pod.labels["deployment"] == one["metadata"]["name"]])

    def _keep(self, one: dict[str, Any], pods: list[Item]) -> None:
        template, meta = one["spec"]["template"], one["metadata"]
        number = self._templates.setdefault(encode(template), str(len(self._templates)))
        live = []
        for pod in pods:
            if pod.fields.get("status.phase") in ("Succeeded", "Failed") or pod.labels[_TEMPLATE] != number:
                self._delete(pod)
            elif not pod.terminating:
                live.append(pod)
        wanted = one["spec"].get("replicas", 1)
        for _ in range(wanted - len(live)):
            self._made += 1
            labels = {**template["metadata"]["labels"], "deployment": meta["name"], _TEMPLATE: number}
            body = {"metadata": {"name": f"{meta['name']}-{self._made}", "labels": labels}, "spec": template["spec"]}
            self._cluster.call("POST", f"/api/v1/namespaces/{meta['namespace']}/pods", body)
        for pod in sorted(live, key=_goes_first)[: max(0, len(live) - wanted)]:
            self._delete(pod)

    def _delete(self, pod: Item) -> None:
        if not pod.terminating:
            with contextlib.suppress(NotFound):
                self._cluster.call("DELETE", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}")


def _goes_first(pod: Item) -> tuple[bool, int, int]:
    cost = int(section(pod.object()["metadata"], "annotations").get(DELETION_COST, 0))
    return bool(pod.fields.get("spec.nodeName")), cost, -int(pod.name.rpartition("-")[2])
