"""Gangs and their pods, with the facts that scheduling needs. Adapters compute the `Membership` of a pod."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from datetime import datetime

import msgspec

from muster.api.names import LABEL_TEAM
from muster.api.placement import Placement
from muster.kube.objects.meta import OwnerReference
from muster.kube.objects.pod import Pod
from muster.scheduler.forecast.likeness import Likeness
from muster.scheduler.gangs.accounts import Account, accounts_of
from muster.scheduler.gangs.adapters import described
from muster.scheduler.gangs.adapters.membership import Membership, WorkloadRef
from muster.scheduler.gangs.members import Roster
from muster.scheduler.gangs.priority import JobFacts, Rank, Traits, traits_of
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.reasons import Reason, Why

UNSCHEDULABLE = "Unschedulable"
REQUEUED_NODES_MAX = 4
"""A gang that would lose its work is not backfilled if it has more members than this."""
Place = tuple[float, float, str]
"""A place in the queue among gangs of the same priority: minus the job's own priority, arrival, and key of a gang."""
Order = tuple[int, float, float, float, str, str]
"""Sort key of the queue; the lowest comes first."""


def seconds(moment: datetime | None) -> float:
    """Return a timestamp in seconds since the epoch; 0 for None."""
    return moment.timestamp() if moment is not None else 0.0


class Tried(msgspec.Struct, frozen=True):
    """Result of a dry run of evicting the whole gang: `refused` is why not, "" if allowed. Valid until `until`."""

    until: float
    refused: str = ""


class PodRecord:
    """A pod, reduced to what scheduling needs. Only `ClusterState` changes it.

    Attributes:
        gang: key of its gang; "" for a pod of another scheduler.
        slot: its slot; -1 until the gang's roster assigns one.
        node: node that it is bound to; "" while pending.
        assumed: whether `node` comes from a bind that the watch has not confirmed yet.
        problem: why it cannot be placed; None if it can.
        binding: a bind request is in flight.
        error: why the last bind or eviction failed.
        retry_at: earliest retry after a failed bind or eviction; seconds since the epoch.
        started: its phase is not Pending any more.
        ready: its Ready condition is True.
        stops_by: if it is being deleted, when its grace ends, in seconds since the epoch; 0 if that is unknown.
        bound_since: when it was bound, from the API server; 0 if unknown.
        scale_up: autoscalers may add nodes for it.
        unschedulable: its condition asks autoscalers for nodes.
        backfilled: its bind recorded that the node is reserved for a gang before it.
    """

    __slots__ = (
        "assumed", "attempt", "backfilled", "binding", "bound_since", "claims", "cls", "counted_on", "created", "error",
        "finished", "gang", "gates", "labels_error", "name", "namespace", "node", "owner", "priority", "problem",
        "ready", "retry_at", "scale_up", "slot", "started", "stops_by", "succeeded", "terminating", "traits", "uid",
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
        self.stops_by = 0.0
        self.scale_up = False
        self.unschedulable = False
        self.backfilled = False

    @property
    def live(self) -> bool:
        """Whether it counts as a member: neither terminating nor finished."""
        return not (self.terminating or self.finished)


class Gang:
    """Pods that are useful only together. Only `ClusterState` changes it; decide reads it.

    Attributes:
        current: the live member of each slot. If a slot has several live pods, the newest one.
        pending: members of `current` without a node.
        counts: number of `pending` members of each class.
        slot_class: last known class of each slot's pod. While a slot has no pod, it reserves room for this class.
        placement: the last Placement that was written or read; None without one.
        seen: the version of the Placement that the API server has.
        placed: slot -> (node, node UID) of `placement`, unless that is Released.
        writing: a write of the placement is in flight; decide ignores the gang until it ends.
        podless_since: when the last live member went; None while there is one.
        revision_since: when the present revision of `seen` was first seen; None before.
        holds: slot -> (node, pod class) of the room that is reserved while the slot has no pod on that node.
        traits: preemption order and time limit, from its pods.
        job: facts from its TrainingJob; None if unknown.
        failed_nodes: (slot, node) where binding failed permanently; not used again for the slot.
        roster: the members, if a foreign object has their number; None if the pods have it.
        joiners: slot -> pending pod beyond the minimum; not in `current` until it is placed.
        tried: result of the last dry run of evicting all of it; None before the first.
        given_up: slot -> attempt: the gang continues without the slot and its pods up to that attempt.
        user: user who runs it, from the label of its newest pod; "" without one.
        image: image of the first container of its newest pod; "" before its first pod.
        likeness: what it has in common with similar gangs; None until the next snapshot after it changed.
        place: the place that the order `fair` gave it (queue/fair.py); None: its own. A gang keeps it while it holds
            nodes, so a later change of the order does not affect gangs that run.
    """

    __slots__ = (
        "arrival", "binding", "counts", "current", "ended", "failed_nodes", "given_up", "holds", "image", "job",
        "joiners", "joining_as", "key", "likeness", "members_by_slot", "name", "namespace", "owner", "owner_missing",
        "pending", "pending_class", "place", "placed", "placement", "podless_since", "pods", "priority", "problems",
        "queued_as",
        "revision_since", "roster", "seen", "single", "size", "size_attempt", "slot_class", "traits", "tried",
        "uid", "unknown_holds", "user", "workload", "writing",
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
        self.user = ""
        self.image = ""
        self.likeness: Likeness | None = None
        self.place: Place | None = None

    @property
    def full_name(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def order(self) -> Order:
        """Sort key of the queue: rank, priority, the job's own priority (`queue_priority`), arrival, key.

        By rank, borrowers come after all gangs that do not borrow, and balloons come last. If they came first, they
        would have to give nodes back at once. With the order `fair`, it has the place of another gang of its team.
        """
        place = self.place or self.own_place
        return (Rank.OTHER - self.traits.rank, -self.priority, *place, self.key)

    @property
    def own_place(self) -> Place:
        """Its place by the job's own priority, arrival and key."""
        return (-self.traits.queue_priority, self.arrival, self.key)

    @property
    def accounts(self) -> tuple[Account, ...]:
        """The accounts to which its usage is charged; the first is its user, by whom the queue is ordered."""
        return accounts_of(self.namespace, self.job.submitter if self.job is not None else "")

    @property
    def borrows(self) -> bool:
        """Whether it runs on other teams' nodes until they need them."""
        return self.traits.rank is Rank.BORROWED

    @property
    def backfilled(self) -> bool:
        """Whether it started on nodes that were reserved for a gang before it in the queue."""
        if self.placement is not None:
            return self.placement.spec.backfill is not None
        return self.single and any(pod.backfilled for pod in self.current.values())

    @property
    def restartable(self) -> bool:
        """Whether it loses little when it is stopped and started again, as its job or its pods say."""
        return self.job.restartable if self.job is not None else self.traits.restartable

    @property
    def requeueable(self) -> bool:
        """Whether it may be backfilled because it is expected to end in time, although it would lose its work.

        Muster can queue only TrainingJobs again. A job that was asked to leave once was predicted badly. A large gang
        would lose too much if the prediction is wrong.
        """
        if self.job is None or self.single or self.size > REQUEUED_NODES_MAX:
            return False
        return self.job.requeueable and not self.job.asked

    @property
    def times_asked(self) -> int:
        """How often it was asked to leave nodes on which it was backfilled; known of TrainingJobs only."""
        return self.job.asked if self.job is not None else 0

    @property
    def team(self) -> str:
        """The team; "" without one."""
        return self.traits.team

    @property
    def complete(self) -> bool:
        """Whether every slot, or as many as must run together, have a live member."""
        return self.roster.complete if self.roster is not None else len(self.current) >= self.wanted

    @property
    def lost_its_placement(self) -> bool:
        """Whether all members of a job's attempt are bound without a Placement: a user or operator deleted it."""
        if self.placement is not None or self.job is None or self.ended or self.single:
            return False
        if not self.current or len(self.pending) > len(self.job.left_out):
            return False
        without = self.ran_without
        bound = len(self.current) - len(self.pending)
        return self.pending.keys() <= without.keys() and bound + len(without) >= self.size

    @property
    def ran_without(self) -> dict[int, int]:
        """Slot -> attempt of the slots that the running attempt continues without, as recorded by its job.

        A slot with a pod of a later attempt, or with a bound pod, does not count.
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
        """Number of members it continues with: all, except slots that were given up and have no newer pod."""
        if not self.given_up:
            return self.size
        return self.size - sum(slot not in self.current for slot in self.given_up)

    @property
    def limit_s(self) -> float | None:
        """Time limit; None without one. A TrainingJob's own limit counts from its first start."""
        return self.job.limit_s if self.job is not None else self.traits.limit_s

    @property
    def elastic(self) -> bool:
        """Whether members may come and go while it runs, so that the size does not limit slot numbers."""
        return self.roster is not None

    @property
    def has_pods(self) -> bool:
        """Whether it has a live member, or a pod without a slot."""
        return bool(self.current) or (self.roster is not None and bool(self.roster.standing))

    @property
    def surplus(self) -> list[int]:
        """Placed slots that will get no pod, because the workload was scaled down.

        A gang of fixed size keeps such a slot while it has a pod of an earlier, larger attempt.
        """
        if self.roster is None and len(self.placed) > self.size and self.current:
            return sorted(
                (slot for slot in self.placed if slot >= self.size and slot not in self.current), reverse=True
            )
        shape = self.roster.shape if self.roster is not None else None
        if shape is None or not self.current:
            return []
        wanted = self.size if shape.size is not None else max(shape.minimum, len(self.current))
        extra = len(self.placed) - wanted  # joining pods have slots of their own
        if extra <= 0:
            return []
        return sorted((slot for slot in self.placed if not self.members_by_slot.get(slot)), reverse=True)[:extra]

    def extras(self, slots: Collection[int]) -> set[int]:
        """Return which of the slots the gang does not need to be complete."""
        if self.roster is None:
            return set() if self.job is None else {slot for slot in slots if slot in self.job.left_out}
        return {slot for slot in slots if not self.roster.is_member(slot)}

    def nodes_beside(self, slots: Collection[int]) -> set[str]:
        """Return the nodes of all other slots, which this gang may not use again. Gangs of others may share nodes."""
        if self.single or self.roster is not None:
            return set()
        if not self.placed and len(self.pending) == len(self.current):
            return set()
        placed = {node for slot, (node, _) in self.placed.items() if slot not in slots and slot < self.size}
        return placed | {member.node for slot, member in self.current.items() if member.node and slot not in slots}

    def takes(self) -> Iterator[tuple[str, PodClass]]:
        """Yield (node, class) of each pod and each reserved slot of the gang. This is the room that the gang takes."""
        for pod in self.pods.values():
            if pod.counted_on and pod.cls is not None:
                yield pod.counted_on, pod.cls
        for node, cls in self.holds.values():
            if cls is not None:
                yield node, cls

    def blocker(self) -> Reason | None:
        """Return why the gang cannot be placed yet, None if it can."""
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
    """Return whether the pod asks autoscalers for nodes (Kubernetes: PodScheduled False, reason Unschedulable)."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False" and condition.reason == UNSCHEDULABLE:
            return True
    return False


def newest(members: dict[str, PodRecord]) -> PodRecord | None:
    """Return the live member of the newest attempt, preferring one that has a node; None without a live member."""
    live = [record for record in members.values() if not (record.terminating or record.finished)]
    if len(live) < 2:
        return live[0] if live else None
    return max(live, key=lambda record: (record.attempt, bool(record.node), record.created, record.uid), default=None)
