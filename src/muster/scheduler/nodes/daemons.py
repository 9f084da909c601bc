"""Reserves room for DaemonSet pods that have not yet been created on a node.

If a DaemonSet selects a node but has no pod there, the scheduler reserves the request of one pod, or what is left.
Pods and slots that are on the node already are not affected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from muster.kube.objects.affinity import Toleration
from muster.kube.objects.meta import KubeObject, ObjectMeta, Resource
from muster.kube.objects.pod import Pod, PodSpec
from muster.kube.objects.resources import plus
from muster.kube.objects.struct import KubeStruct
from muster.scheduler.gangs.gang import PodRecord
from muster.scheduler.nodes.node_class import NodeClass
from muster.scheduler.nodes.node_record import NodeRecord
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.pods.pod_class import ClassTable, PodClass

_TOLERATED = {
    "NoExecute": ("not-ready", "unreachable"),
    "NoSchedule": ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"),
}


class DaemonTemplate(KubeStruct):
    """Pod template of a DaemonSet."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)


class DaemonSetSpec(KubeStruct):
    """Spec of a DaemonSet: its pod template only."""

    template: DaemonTemplate = msgspec.field(default_factory=DaemonTemplate)


class DaemonSet(KubeObject):
    """apps/v1 DaemonSet: the fields that determine the room its pods take."""

    RESOURCE: ClassVar[Resource] = Resource("apps", "v1", "daemonsets", "DaemonSet")

    spec: DaemonSetSpec = msgspec.field(default_factory=DaemonSetSpec)


class Daemons:
    """All DaemonSets, and the nodes on which they have pods."""

    def __init__(self, classes: ClassTable) -> None:
        self._classes = classes
        self._sets: dict[str, PodClass] = {}
        self._by_name = False
        self._pods: dict[str, dict[str, set[str]]] = {}
        self._matcher = Matcher()
        self._missing: dict[tuple[NodeClass, frozenset[str]], dict[str, int]] = {}

    def set(self, daemons: DaemonSet) -> bool:
        """Add or update a DaemonSet; return whether the requirements of its pods changed."""
        cls = _class_of(daemons, self._classes)
        if self._sets.get(daemons.uid) is cls:
            return False
        self._sets[daemons.uid] = cls
        self._by_name = any(term.match_fields for each in self._sets.values() for term in each.terms or ())
        self.forget()
        return True

    def remove(self, uid: str) -> None:
        """Remove a DaemonSet."""
        self._sets.pop(uid, None)
        self.forget()

    def forget(self) -> None:
        """Drop cached results, after DaemonSets or node classes changed."""
        self._missing.clear()
        self._matcher = Matcher()

    def came(self, pod: PodRecord, node: str) -> None:
        """Count a pod on the node."""
        if pod.owner is not None and pod.owner.kind == DaemonSet.RESOURCE.kind:
            self._pods.setdefault(node, {}).setdefault(pod.owner.uid, set()).add(pod.uid)

    def went(self, pod: PodRecord, node: str) -> None:
        """Stop counting a pod on the node."""
        if pod.owner is not None and pod.owner.kind == DaemonSet.RESOURCE.kind:
            there = self._pods[node]
            there[pod.owner.uid].discard(pod.uid)
            if not there[pod.owner.uid]:
                del there[pod.owner.uid]
            if not there:
                del self._pods[node]

    @property
    def some(self) -> bool:
        """Whether there are DaemonSets."""
        return bool(self._sets)

    def leave_room(self, node: NodeRecord, free: dict[str, int]) -> dict[str, int]:
        """Return `free` less the requests of DaemonSet pods that are missing on the node; not below 0."""
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
    return classes.of(Pod(metadata=ObjectMeta(namespace=daemons.namespace), spec=spec), ours=False)
