"""Room for pods of DaemonSets that have yet to come to a node.

The rule: where a DaemonSet's pod would run on a node and none of its pods is there, as much room as that pod asks for
is kept free, or as much of it as there is. Pods and slots that are on the node already are never judged by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from muster.kube.affinity import Toleration
from muster.kube.meta import KubeObject, ObjectMeta, Resource
from muster.kube.resources import plus
from muster.kube.struct import KubeStruct
from muster.scheduler.gangs.gang import PodRecord
from muster.scheduler.nodes.node_class import NodeClass, NodeRecord
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.pods.pod_class import ClassTable, PodClass
from muster.scheduler.pods.wire import SchedulingPod, SchedulingPodSpec

_TOLERATED = {
    "NoExecute": ("not-ready", "unreachable"),
    "NoSchedule": ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"),
}


class DaemonTemplate(KubeStruct):
    """The pod that each node gets."""

    spec: SchedulingPodSpec = msgspec.field(default_factory=SchedulingPodSpec)


class DaemonSetSpec(KubeStruct):
    """What the pods are to be."""

    template: DaemonTemplate = msgspec.field(default_factory=DaemonTemplate)


class DaemonSet(KubeObject):
    """apps/v1 DaemonSet, as far as its pods take room."""

    RESOURCE: ClassVar[Resource] = Resource("apps", "v1", "daemonsets", "DaemonSet")

    spec: DaemonSetSpec = msgspec.field(default_factory=DaemonSetSpec)


class Daemons:
    """All DaemonSets, and which of them have a pod where."""

    def __init__(self, classes: ClassTable) -> None:
        self._classes = classes
        self._sets: dict[str, PodClass] = {}
        self._by_name = False
        self._pods: dict[str, dict[str, set[str]]] = {}
        self._matcher = Matcher()
        self._missing: dict[tuple[NodeClass, frozenset[str]], dict[str, int]] = {}

    def set(self, daemons: DaemonSet) -> bool:
        """Take over a DaemonSet; returns whether its pods ask for something else than before."""
        cls = _class_of(daemons, self._classes)
        if self._sets.get(daemons.uid) is cls:
            return False
        self._sets[daemons.uid] = cls
        self._by_name = any(term.match_fields for each in self._sets.values() for term in each.terms or ())
        self.forget()
        return True

    def remove(self, uid: str) -> None:
        """The DaemonSet is gone."""
        self._sets.pop(uid, None)
        self.forget()

    def forget(self) -> None:
        """Drop what was worked out, after DaemonSets or node classes were made anew."""
        self._missing.clear()
        self._matcher.forget()

    def came(self, pod: PodRecord, node: str) -> None:
        """A pod is counted on the node."""
        if pod.owner is not None and pod.owner.kind == DaemonSet.RESOURCE.kind:
            self._pods.setdefault(node, {}).setdefault(pod.owner.uid, set()).add(pod.uid)

    def went(self, pod: PodRecord, node: str) -> None:
        """A pod is counted on the node no more."""
        if pod.owner is not None and pod.owner.kind == DaemonSet.RESOURCE.kind:
            there = self._pods[node]
            there[pod.owner.uid].discard(pod.uid)
            if not there[pod.owner.uid]:
                del there[pod.owner.uid]
            if not there:
                del self._pods[node]

    @property
    def some(self) -> bool:
        """Whether there is any DaemonSet."""
        return bool(self._sets)

    def leave_room(self, node: NodeRecord, free: dict[str, int]) -> dict[str, int]:
        """Return `free` without what pods that have yet to come to the node ask for; what is short stays as short."""
        if not self._sets or node.node_class is None:
            return free
        missing = self._yet_to_come(node, node.node_class)
        if not missing:
            return free
        return {what: left if left <= 0 else max(0, left - missing.get(what, 0)) for what, left in free.items()}

    def _yet_to_come(self, node: NodeRecord, node_class: NodeClass) -> Mapping[str, int]:
        there = frozenset(self._pods.get(node.name, ()))
        found = None if self._by_name else self._missing.get((node_class, there))
        if found is None:
            found = {}
            for uid, cls in self._sets.items():
                if uid not in there and self._matcher.match(cls, node_class).serves(node.name):
                    found = plus(found, cls.request)
            self._missing[node_class, there] = found
        return found


def _class_of(daemons: DaemonSet, classes: ClassTable) -> PodClass:
    """Return the class of its pods, with the tolerations the DaemonSet controller adds (Kubernetes: "DaemonSet")."""
    spec = daemons.spec.template.spec
    added = [(f"node.kubernetes.io/{what}", effect) for effect, names in _TOLERATED.items() for what in names]
    if spec.host_network:
        added.append(("node.kubernetes.io/network-unavailable", "NoSchedule"))
    tolerations = [Toleration(key=key, operator="Exists", effect=effect) for key, effect in added]
    affinity = spec.affinity
    if affinity is not None:
        affinity = msgspec.structs.replace(affinity, pod_affinity=None, pod_anti_affinity=None)
    spec = msgspec.structs.replace(
        spec, tolerations=(*spec.tolerations, *tolerations), affinity=affinity, topology_spread_constraints=()
    )
    return classes.of(SchedulingPod(metadata=ObjectMeta(namespace=daemons.namespace), spec=spec), ours=False)
