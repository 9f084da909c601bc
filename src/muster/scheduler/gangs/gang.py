"""Gangs: which pods belong together. Adapters turn pods into a `Membership`; all else knows only `Gang`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from datetime import datetime

import msgspec

from muster.api.names import LABEL_TEAM
from muster.api.placement import Placement
from muster.kube.meta import OwnerReference
from muster.kube.pod import Pod
from muster.scheduler.gangs.adapters import described
from muster.scheduler.gangs.adapters.membership import Membership, WorkloadRef
from muster.scheduler.gangs.members import Roster
from muster.scheduler.gangs.priority import JobFacts, Rank, Traits, traits_of
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.reasons import Reason, Why

UNSCHEDULABLE = "Unschedulable"
Order = tuple[int, float, float, float, str]
"""A place in the queue; the lowest comes first."""


def seconds(moment: datetime | None) -> float:
    """Return a timestamp in seconds since the epoch; 0 where there is none."""
    return moment.timestamp() if moment is not None else 0.0


class Tried(msgspec.Struct, frozen=True):
    """What a dry run of evicting the whole gang said: `refused` is why not, "" where all of it may go. Until then."""

    until: float
    refused: str = ""


class PodRecord:
    """A pod, as small as scheduling needs it. Changed by `ClusterState` only.

    Attributes:
        gang: key of its gang; "" for a pod of another scheduler.
        slot: its slot; -1 while the gang's roster has given it none.
        node: where it runs or was bound by us (`assumed` until the API server's own event says so); "" while pending.
        problem: why it cannot be placed as it is; None where it can.
        binding: a bind request is in flight.
        error: why the last bind or eviction failed.
        retry_at: do not bind or evict before, after a failure; seconds since the epoch.
        started, ready: its phase is past Pending; its Ready condition holds.
        bound_since: when it was bound, as the API server says; 0 where unknown.
        scale_up: it says that autoscalers may add nodes for it.
        unschedulable: autoscalers see it as a pod for which nodes are wanted.
    """

    __slots__ = (
        "assumed", "attempt", "binding", "bound_since", "claims", "cls", "counted_on", "created", "error",
        "finished", "gang", "gates", "labels_error", "name", "namespace", "node", "owner", "priority", "problem",
        "ready", "retry_at", "scale_up", "slot", "started", "succeeded", "terminating", "traits", "uid",
        "unschedulable",
    )  # fmt: skip

    def __init__(self, pod: Pod, member: Membership | None, team_key: str = LABEL_TEAM) -> None:
        self.uid = pod.uid
        self.namespace = pod.namespace
        self.name = pod.name
        self.gang = member.key if member else ""
        self.slot = member.slot if member else 0
        self.attempt = member.attempt if member else 0
        self.labels_error = member.error if member else ""
        self.created = seconds(pod.metadata.creation_timestamp)
        self.priority = pod.spec.priority or 0
        owners = pod.metadata.owner_references
        self.owner: OwnerReference | None = next((o for o in owners if o.controller), None) if owners else None
        self.traits = traits_of(pod, team_key)
        self.cls: PodClass | None = None
        self.node = ""
        self.assumed = False
        self.counted_on = ""
        self.terminating = False
        self.finished = False
        self.succeeded = False
        self.started = False
        self.ready = False
        self.gates: tuple[str, ...] = ()
        self.claims: tuple[str, ...] = ()
        self.problem: Reason | None = None
        self.error = ""
        self.binding = False
        self.retry_at = 0.0
        self.bound_since = 0.0
        self.scale_up = False
        self.unschedulable = False

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
        roster: who is a member, where an object of others says how many there are; None where the pods say so.
        joiners: slot -> pending pod beyond the minimum: not in `current` before it is placed.
        tried: what the last dry run of evicting all of it said; None before the first.
        given_up: slot -> attempt: the gang goes on without it, and without pods of the slot up to that attempt.
    """

    __slots__ = (
        "arrival", "binding", "counts", "current", "ended", "failed_nodes", "given_up", "holds", "job", "joiners",
        "joining_as", "key", "members_by_slot", "name", "namespace", "owner", "owner_missing", "pending",
        "pending_class", "placed", "placement", "podless_since", "pods", "priority", "problems", "queued_as",
        "revision_since", "roster", "seen", "single", "size", "size_attempt", "slot_class", "traits", "tried",
        "uid", "unknown_holds", "workload", "writing",
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
        self.queued_as: tuple[frozenset[int], Order] | None = None
        self.joining_as: tuple[frozenset[int], Order] | None = None
        self.workload: WorkloadRef | None = None
        self.roster: Roster | None = None
        self.joiners: dict[int, PodRecord] = {}
        self.given_up: dict[int, int] = {}
        self.tried: Tried | None = None

    @property
    def full_name(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def order(self) -> Order:
        """Place in the queue: priority, then what the job says of its place, then arrival, then name.

        Borrowers come after all that do not borrow, balloons last: what they took or kept in front of an owner's gang
        they would have to give back at once.
        """
        return (Rank.OTHER - self.traits.rank, -self.priority, -self.traits.queue_priority, self.arrival, self.key)

    @property
    def borrows(self) -> bool:
        """Whether it runs on what other teams own until they need it."""
        return self.traits.rank is Rank.BORROWED

    @property
    def team(self) -> str:
        """Whose it is; "" where nobody says."""
        return self.traits.team

    @property
    def complete(self) -> bool:
        """Whether every slot has a live member, or as many have one as must run together."""
        return self.roster.complete if self.roster is not None else len(self.current) >= self.wanted

    @property
    def lost_its_placement(self) -> bool:
        """Whether all members of a job's attempt are bound and its Placement is not there: it was deleted by hand."""
        if self.placement is not None or self.job is None or self.ended or self.single:
            return False
        if not self.current or len(self.pending) > len(self.job.left_out):
            return False
        without = self.ran_without
        bound = len(self.current) - len(self.pending)
        return self.pending.keys() <= without.keys() and bound + len(without) >= self.size

    @property
    def ran_without(self) -> dict[int, int]:
        """Slot -> attempt of the slots that the running attempt goes on without, as its job recorded them.

        A pod of a later attempt, or one that has a node, is a member.
        """
        if self.job is None:
            return {}
        attempt, current = self.job.attempt, self.current
        return {
            slot: attempt
            for slot in self.job.left_out
            if slot not in current or (not current[slot].node and current[slot].attempt <= attempt)
        }

    @property
    def wanted(self) -> int:
        """How many members it goes on with: all, but for slots that were given up and have no newer pod."""
        return self.size - sum(slot not in self.current for slot in self.given_up)

    @property
    def limit_s(self) -> float | None:
        """How long it may run; None where nothing ends it. A TrainingJob's own limit counts from its first start."""
        return self.job.limit_s if self.job is not None else self.traits.limit_s

    @property
    def elastic(self) -> bool:
        """Whether members may come and go while it runs: its size is what its workload says, and no slot's limit."""
        return self.roster is not None

    @property
    def has_pods(self) -> bool:
        """Whether there is a live member, or a pod that has no slot yet."""
        return bool(self.current) or (self.roster is not None and bool(self.roster.standing))

    @property
    def surplus(self) -> list[int]:
        """Placed slots without a pod that nobody will come for: the workload has become smaller."""
        shape = self.roster.shape if self.roster is not None else None
        if shape is None or not self.current:
            return []
        wanted = self.size if shape.size is not None else max(shape.minimum, len(self.current))
        extra = len(self.placed) - wanted  # pods that wait to join have slots of their own
        if extra <= 0:
            return []
        return sorted((slot for slot in self.placed if not self.members_by_slot.get(slot)), reverse=True)[:extra]

    def extras(self, slots: Collection[int]) -> set[int]:
        """Return those of the slots without which the gang is whole."""
        if self.roster is None:
            return set() if self.job is None else {slot for slot in slots if slot in self.job.left_out}
        return {slot for slot in slots if not self.roster.is_member(slot)}

    def nodes_beside(self, slots: Collection[int]) -> set[str]:
        """Return the nodes of all other slots than these: they take no more of the gang. Foreign gangs share nodes."""
        if self.single or self.roster is not None:
            return set()
        placed = {node for slot, (node, _) in self.placed.items() if slot not in slots and slot < self.size}
        return placed | {member.node for slot, member in self.current.items() if member.node and slot not in slots}

    def takes(self) -> Iterator[tuple[str, PodClass]]:
        """Yield (node, class) of each pod and each held slot of the gang: the room it takes."""
        for pod in self.pods.values():
            if pod.counted_on and pod.cls is not None:
                yield pod.counted_on, pod.cls
        for node, cls in self.holds.values():
            if cls is not None:
                yield node, cls

    def blocker(self) -> Reason | None:
        """Return why the gang cannot be considered at all yet, None where it can."""
        if self.problems:
            return self.problems[min(self.problems)]
        roster = self.roster
        if (
            roster is not None
            and roster.orphan
            and self.workload is not None
            and len(self.pending) == len(self.current)
        ):
            return Reason(Why.WAITING_FOR_WORKLOAD, have=roster.present, detail=described(self.workload))
        if self.complete:
            return None
        if roster is None:
            return Reason(Why.WAITING_FOR_PODS, self.wanted, len(self.current))
        if roster.shape is None and self.workload is not None:
            return Reason(Why.WAITING_FOR_WORKLOAD, have=roster.present, detail=described(self.workload))
        return Reason(Why.WAITING_FOR_PODS, roster.minimum, roster.ready)


def is_unschedulable(pod: Pod) -> bool:
    """Whether autoscalers are told to add nodes for it (Kubernetes: PodScheduled False with reason Unschedulable)."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False" and condition.reason == UNSCHEDULABLE:
            return True
    return False


def newest(members: dict[str, PodRecord]) -> PodRecord | None:
    """Return the live member of the newest attempt, None where none is live; of two, the one that has a node."""
    live = [record for record in members.values() if not (record.terminating or record.finished)]
    if len(live) < 2:
        return live[0] if live else None
    return max(live, key=lambda record: (record.attempt, bool(record.node), record.created, record.uid), default=None)
