"""Computes the changes to a new pod from the pod and its namespace: a pure function.

It does not change what the pod sets itself: a term about the team's key, a toleration, a priority class or a scheduler.
The chart's policies judge those. So it is idempotent, which matters because the API server may call it again after
other webhooks (reinvocationPolicy IfNeeded).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from muster.admission.review import (
    JSON_PATCH_ADD,
    JSON_PATCH_REMOVE,
    JSON_PATCH_REPLACE,
    NewPod,
    Operation,
    pointer,
)
from muster.api.names import (
    ANNOTATION_GANG_UID,
    BORROWER_CLASS,
    LABEL_BORROWED,
    LABEL_GANG,
    LABEL_SLOT,
    MIRROR,
    SCHEDULER_NAME,
)
from muster.kube.objects.affinity import NodeSelectorTerm, Toleration
from muster.kube.objects.meta import OwnerReference
from muster.kube.objects.node import Taint
from muster.kube.objects.taints import NO_SCHEDULE, tolerates

DEFAULT_SCHEDULER: Final = "default-scheduler"
"""The API server's default for a pod without a scheduler, set before it calls webhooks."""
_INDEXES: Final = ("batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index")
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


class Rules(msgspec.Struct, frozen=True):
    """The names that this cluster uses.

    Attributes:
        team_key: label of pods and nodes, and taint of nodes, that name a team.
    """

    team_key: str


class Home(msgspec.Struct, frozen=True):
    """The settings of a pod's namespace.

    Attributes:
        team: its team, "" without one.
        ours: whether Muster schedules its pods.
    """

    team: str = ""
    ours: bool = False


def mutate(pod: NewPod, home: Home, rules: Rules, without_nodes: bool = False) -> list[Operation]:
    """Return the operations that complete the pod; empty if it is complete.

    Args:
        pod: the pod to be created.
        home: its namespace.
        rules: the names of this cluster.
        without_nodes: the team has no nodes: its pods use the nodes without an owner.
    """
    if MIRROR in pod.metadata.annotations:
        return []
    labels: dict[str, str] = {}
    team = pod.metadata.labels.get(rules.team_key, "") or home.team
    operations: list[Operation] = []
    if team:
        if rules.team_key not in pod.metadata.labels:
            labels[rules.team_key] = team
        operations += _at_home(pod, team, rules, without_nodes)
    annotations: dict[str, str] = {}
    if LABEL_GANG in pod.metadata.labels:
        _gang(pod, labels, annotations)
    if home.ours or LABEL_GANG in pod.metadata.labels:
        operations += _scheduler(pod)
    return [
        *_entries("labels", pod.metadata.labels, labels),
        *_entries("annotations", pod.metadata.annotations, annotations),
        *operations,
    ]


def _at_home(pod: NewPod, team: str, rules: Rules, without_nodes: bool) -> Iterator[Operation]:
    """Yield the operations that restrict the pod to its team's nodes.

    A DaemonSet's pods already have a node, which their controller chose by the DaemonSet's own rules.
    """
    owner = _controller(pod)
    if owner is not None and owner.kind == "DaemonSet":
        return
    key = rules.team_key
    if pod.metadata.labels.get(LABEL_BORROWED) == "true":
        if not any(_bears_all(each, key) for each in pod.spec.tolerations):
            yield _toleration(pod, {"key": key, "operator": "Exists", "effect": NO_SCHEDULE})
        yield from _priority_class(pod, BORROWER_CLASS)
        return
    taint = Taint(key=key, value=team, effect=NO_SCHEDULE)
    if not without_nodes and not any(tolerates(each, taint) for each in pod.spec.tolerations):
        yield _toleration(pod, {"key": key, "operator": "Equal", "value": team, "effect": NO_SCHEDULE})
    wanted: dict[str, Any] = {"key": key, "operator": "In", "values": [team]}
    if without_nodes:
        wanted = {"key": key, "operator": "DoesNotExist"}
    if key not in pod.spec.node_selector:
        yield from _affinity(pod, key, wanted)


def _bears_all(toleration: Toleration, key: str) -> bool:
    """Return whether the pod tolerates the taint of every team."""
    exists = toleration.key in ("", key) and toleration.operator == "Exists"
    return exists and toleration.effect in ("", NO_SCHEDULE)


def _toleration(pod: NewPod, toleration: Mapping[str, str]) -> Operation:
    if pod.spec.tolerations:
        return Operation(JSON_PATCH_ADD, "/spec/tolerations/-", toleration)
    return Operation(JSON_PATCH_ADD, "/spec/tolerations", [toleration])


def _affinity(pod: NewPod, key: str, wanted: Mapping[str, Any]) -> Iterator[Operation]:
    """Add the team to the node affinity. All terms get it, as they are alternatives, unless empty or with the key."""
    new: Any = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
    affinity = pod.spec.affinity
    if affinity is None:
        yield Operation(JSON_PATCH_ADD, "/spec/affinity", {"nodeAffinity": {_REQUIRED: new}})
        return
    node = affinity.node_affinity
    if node is None:
        yield Operation(JSON_PATCH_ADD, "/spec/affinity/nodeAffinity", {_REQUIRED: new})
        return
    path = f"/spec/affinity/nodeAffinity/{_REQUIRED}"
    required = node.required_during_scheduling_ignored_during_execution
    if required is None:
        yield Operation(JSON_PATCH_ADD, path, new)
        return
    for position, term in enumerate(required.node_selector_terms):
        if not _speaks(term, key) and (term.match_expressions or term.match_fields):
            into = f"{path}/nodeSelectorTerms/{position}/matchExpressions"
            if term.match_expressions:
                yield Operation(JSON_PATCH_ADD, f"{into}/-", wanted)
            else:
                yield Operation(JSON_PATCH_ADD, into, [wanted])


def _speaks(term: NodeSelectorTerm, key: str) -> bool:
    return any(each.key == key for each in term.match_expressions)


def _priority_class(pod: NewPod, name: str) -> Iterator[Operation]:
    """Set the priority class without its number.

    By now, the API server has written the default priority, and it refuses one that is not the class's. Without a
    number it sets the right one, because its own plugins run again after a webhook's change (admission reinvocation).
    """
    if pod.spec.priority_class_name:
        return
    yield Operation(JSON_PATCH_ADD, "/spec/priorityClassName", name)
    if pod.spec.priority is not None:
        yield Operation(JSON_PATCH_REMOVE, "/spec/priority")
    if pod.spec.preemption_policy is not None:
        yield Operation(JSON_PATCH_REMOVE, "/spec/preemptionPolicy")


def _scheduler(pod: NewPod) -> Iterator[Operation]:
    if not pod.spec.scheduler_name:
        yield Operation(JSON_PATCH_ADD, "/spec/schedulerName", SCHEDULER_NAME)
    elif pod.spec.scheduler_name == DEFAULT_SCHEDULER:
        yield Operation(JSON_PATCH_REPLACE, "/spec/schedulerName", SCHEDULER_NAME)


def _gang(pod: NewPod, labels: dict[str, str], annotations: dict[str, str]) -> None:
    """Set slot and UID of a gang as labels, from index and owner, if pods of one template cannot name them."""
    meta = pod.metadata
    if LABEL_SLOT not in meta.labels:
        index = next((meta.labels[name] for name in _INDEXES if meta.labels.get(name)), "")
        if index:
            labels[LABEL_SLOT] = index
    owner = _controller(pod)
    if owner is not None and ANNOTATION_GANG_UID not in meta.annotations:
        annotations[ANNOTATION_GANG_UID] = owner.uid


def _controller(pod: NewPod) -> OwnerReference | None:
    return next((owner for owner in pod.metadata.owner_references if owner.controller), None)


def _entries(field: str, there: Mapping[str, str], added: Mapping[str, str]) -> Iterator[Operation]:
    if added and not there:
        yield Operation(JSON_PATCH_ADD, pointer("metadata", field), dict(added))
        return
    for name, value in added.items():
        yield Operation(JSON_PATCH_ADD, pointer("metadata", field, name), value)
