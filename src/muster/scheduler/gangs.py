"""Gangs: which pods belong together. Adapters turn labels into a `Membership`; all else knows only `Gang`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from datetime import datetime

import msgspec

from muster.api.names import (
    ANNOTATION_ATTEMPT,
    ANNOTATION_GANG_SIZE,
    ANNOTATION_GANG_UID,
    LABEL_GANG,
    LABEL_SLOT,
    NODES_PER_GANG_MAX,
    SCHEDULER_NAME,
)
from muster.api.placement import Placement
from muster.kube.meta import OwnerReference
from muster.kube.pod import Pod
from muster.scheduler.podclass import PodClass
from muster.scheduler.reasons import Reason, Why
from muster.scheduler.traits import JobFacts, Traits, traits_of


class Membership(msgspec.Struct, frozen=True):
    """A pod's place in a gang. `single` gangs need no Placement: one bind is all or nothing. `error`: bad labels."""

    key: str
    name: str
    uid: str = ""
    size: int = 1
    slot: int = 0
    attempt: int = 0
    single: bool = False
    error: str = ""


def gang_key(namespace: str, name: str, uid: str) -> str:
    """Return the key of a gang made from our labels: another job of the same name is another gang."""
    return f"{namespace}/{name}/{uid}"


def by_label(pod: Pod) -> Membership | None:
    """Read muster.dev/gang, muster.dev/slot and muster.dev/gang-size; None for a pod without the gang label."""
    meta = pod.metadata
    name = meta.labels.get(LABEL_GANG)
    if name is None:
        return None
    uid = meta.annotations.get(ANNOTATION_GANG_UID, "")
    size_text = meta.annotations.get(ANNOTATION_GANG_SIZE, "")
    slot_text = meta.labels.get(LABEL_SLOT, "")
    size, slot = _number(size_text), _number(slot_text)
    error = ""
    if size is None or not 1 <= size <= NODES_PER_GANG_MAX:
        error = f"annotation {ANNOTATION_GANG_SIZE} of pod {pod.name} is {size_text!r}; set it to the number of members"
    elif slot is None or slot >= size:
        error = f"label {LABEL_SLOT} of pod {pod.name} is {slot_text!r}; set it to a number from 0 to {size - 1}"
    return Membership(
        key=gang_key(meta.namespace, name, uid),
        name=name,
        uid=uid,
        size=size or 1,
        slot=slot or 0,
        attempt=_number(meta.annotations.get(ANNOTATION_ATTEMPT, "")) or 0,
        error=error,
    )


def alone(pod: Pod) -> Membership:
    """A pod without a gang is a gang of one."""
    return Membership(key=f"{pod.namespace}/{pod.name}/pod/{pod.uid}", name=pod.name, single=True)


ADAPTERS: tuple[Callable[[Pod], Membership | None], ...] = (by_label, alone)


def membership(pod: Pod) -> Membership | None:
    """Return the pod's place in a gang of ours; None for pods of other schedulers."""
    if pod.spec.scheduler_name != SCHEDULER_NAME:
        return None
    for adapter in ADAPTERS:
        found = adapter(pod)
        if found is not None:
            return found
    return None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def seconds(moment: datetime | None) -> float:
    """Return a timestamp in seconds since the epoch; 0 where there is none."""
    return moment.timestamp() if moment is not None else 0.0


class PodRecord:
    """A pod, as small as scheduling needs it. Changed by `ClusterState` only.

    Attributes:
        gang: key of its gang; "" for a pod of another scheduler.
        node: where it runs or was bound by us (`assumed` until the API server's own event says so); "" while pending.
        problem: why it cannot be placed as it is; None where it can.
        binding: a bind request is in flight.
        retry_at: do not bind before, after a failure; seconds since the epoch.
        bound_since: when it was bound, as the API server says; 0 where unknown.
    """

    __slots__ = (
        "assumed", "attempt", "binding", "bound_since", "claims", "cls", "counted_on", "created", "error",
        "finished", "gang", "gates", "labels_error", "name", "namespace", "node", "owner", "priority", "problem",
        "retry_at", "running", "slot", "terminating", "traits", "uid",
    )  # fmt: skip

    def __init__(self, pod: Pod, member: Membership | None) -> None:
        self.uid = pod.uid
        self.namespace = pod.namespace
        self.name = pod.name
        self.gang = member.key if member else ""
        self.slot = member.slot if member else 0
        self.attempt = member.attempt if member else 0
        self.labels_error = member.error if member else ""
        self.created = seconds(pod.metadata.creation_timestamp)
        self.priority = pod.spec.priority or 0
        self.owner: OwnerReference | None = next((o for o in pod.metadata.owner_references if o.controller), None)
        self.traits = traits_of(pod)
        self.cls: PodClass | None = None
        self.node = ""
        self.assumed = False
        self.counted_on = ""
        self.terminating = False
        self.finished = False
        self.running = False
        self.gates: tuple[str, ...] = ()
        self.claims: tuple[str, ...] = ()
        self.problem: Reason | None = None
        self.error = ""
        self.binding = False
        self.retry_at = 0.0
        self.bound_since = 0.0

    @property
    def live(self) -> bool:
        """Whether it counts as a member: neither leaving nor finished."""
        return not (self.terminating or self.finished)


class Gang:
    """Pods that are useful only together. Changed by `ClusterState` only; decide reads it.

    Attributes:
        current: the live member of each slot, the newest where there are several.
        pending: those of `current` without a node.
        counts: how many of `pending` there are of each class.
        slot_class: the last known class of each slot's pod: what a held slot takes while it has none.
        placement: the plan as we last wrote it or saw it, None where there is none; `seen` is the API server's.
        placed: slot -> (node, node UID) of `placement`, unless that is Released.
        writing: a write of the placement is in flight; nothing is decided about the gang meanwhile.
        podless_since: when the last live member went; None while there is one.
        revision_since: when the present revision of `seen` was first seen; None before.
        holds: slot -> (node, pod class) kept on that node for the slot while it has no pod there.
        traits: what its pods say about who leaves first, and about their time limit.
        job: what its TrainingJob says; None where none is known.
        failed_nodes: (slot, node) where binding failed for good; not used again for the slot.
    """

    __slots__ = (
        "arrival", "binding", "counts", "current", "ended", "failed_nodes", "holds", "job", "key",
        "members_by_slot", "name", "namespace", "owner", "owner_missing", "pending", "pending_class", "placed",
        "placement", "podless_since", "pods", "priority", "problems", "queued_as", "revision_since", "seen",
        "single", "size", "size_attempt", "slot_class", "traits", "uid", "unknown_holds", "writing",
    )  # fmt: skip

    def __init__(self, key: str, namespace: str, name: str, uid: str, size: int, *, single: bool) -> None:
        self.key = key
        self.namespace = namespace
        self.name = name
        self.uid = uid
        self.size = size
        self.size_attempt = -1
        self.single = single
        self.priority = 0
        self.arrival = 0.0
        self.owner: OwnerReference | None = None
        self.pods: dict[str, PodRecord] = {}
        self.members_by_slot: dict[int, dict[str, PodRecord]] = {}
        self.current: dict[int, PodRecord] = {}
        self.pending: dict[int, PodRecord] = {}
        self.problems: dict[int, Reason] = {}
        self.pending_class: dict[int, PodClass] = {}
        self.counts: Counter[PodClass] = Counter()
        self.slot_class: dict[int, PodClass] = {}
        self.binding = 0
        self.placement: Placement | None = None
        self.seen: Placement | None = None
        self.revision_since: float | None = None
        self.placed: dict[int, tuple[str, str]] = {}
        self.holds: dict[int, tuple[str, PodClass | None]] = {}
        self.unknown_holds = 0
        self.writing = False
        self.podless_since: float | None = None
        self.ended = ""
        self.traits = Traits()
        self.job: JobFacts | None = None
        self.owner_missing = False
        self.failed_nodes: set[tuple[int, str]] = set()
        self.queued_as: tuple[frozenset[int], tuple[float, float, str]] | None = None

    @property
    def full_name(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def order(self) -> tuple[float, float, str]:
        """Place in the queue: priority, then arrival, then name."""
        return (-self.priority, self.arrival, self.key)

    @property
    def complete(self) -> bool:
        """Whether every slot has a live member."""
        return len(self.current) >= self.size

    @property
    def limit_s(self) -> float | None:
        """How long it may run; None where nothing ends it. A TrainingJob's own limit counts from its first start."""
        return self.job.limit_s if self.job is not None else self.traits.limit_s

    def nodes_beside(self, slots: Collection[int]) -> set[str]:
        """Return the nodes of all other slots than these: they take no more of the gang."""
        if self.single:
            return set()
        placed = {node for slot, (node, _) in self.placed.items() if slot not in slots and slot < self.size}
        return placed | {member.node for slot, member in self.current.items() if member.node and slot not in slots}

    def blocker(self) -> Reason | None:
        """Return why the gang cannot be considered at all yet, None where it can."""
        if self.problems:
            return self.problems[min(self.problems)]
        if not self.complete:
            return Reason(Why.WAITING_FOR_PODS, self.size, len(self.current))
        return None


def newest(members: dict[str, PodRecord]) -> PodRecord | None:
    """Return the live member of the newest attempt, None where none is live; of two, the one that has a node."""
    live = [record for record in members.values() if record.live]
    return max(live, key=lambda record: (record.attempt, bool(record.node), record.created, record.uid), default=None)
