"""Maintains the scheduler's view of the cluster from events: free room of nodes, gangs, and waiting gangs.

The cost of an event depends on what it changes, not on the size of the cluster. `snapshot` updates the touched nodes
and gangs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from muster.api.names import ANNOTATION_BACKFILLED, ANNOTATION_SCALE_UP, APPROVED, LABEL_TEAM, LABEL_USER
from muster.api.placement import Placement
from muster.api.preflight import Preflight
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.scheduler.forecast.run_times import NO_RUN_TIMES, RunTimes
from muster.scheduler.gangs.adapters import membership
from muster.scheduler.gangs.adapters.membership import Membership, Workload, WorkloadRef
from muster.scheduler.gangs.budgets import Budgets
from muster.scheduler.gangs.foreign import ForeignGangs
from muster.scheduler.gangs.gang import Gang, Place, PodRecord, Tried, is_unschedulable, newest, seconds
from muster.scheduler.gangs.likeness import likeness_of
from muster.scheduler.gangs.placements import gang_of, given_up_slots, holds_as, newer, placed_slots
from muster.scheduler.gangs.reserved_slots import Holding
from muster.scheduler.gangs.team_usage import TeamCounts
from muster.scheduler.gangs.training_jobs import Jobs
from muster.scheduler.gangs.usage import Usage
from muster.scheduler.nodes.daemons import DaemonSet
from muster.scheduler.nodes.node_table import NodeTable
from muster.scheduler.nodes.trust import Trust
from muster.scheduler.persistent import Journal
from muster.scheduler.pods.claims import Claims
from muster.scheduler.pods.pod_class import ClassTable
from muster.scheduler.pods.volumes import ClaimState
from muster.scheduler.preemption.searches import FailedSearch
from muster.scheduler.queue.backfill import nodes_of
from muster.scheduler.queue.queues import Queues
from muster.scheduler.reasons import Reason, Why
from muster.scheduler.snapshot import Snapshot


class ClusterState:
    """Cache of the scheduler. Its input is whole objects, with the versions of each object in order.

    Args:
        bind_deadline_s: time limit for binding a gang; distinguishes open placements from bound ones.
        team_key: label of nodes and pods that names their team, and key of the taint of nodes.
        trusting: Muster's own namespace if nodes with GPUs are used only after they passed their tests.
    """

    def __init__(
        self, *, bind_deadline_s: float = 30.0, team_key: str = LABEL_TEAM, trusting: str | None = None
    ) -> None:
        self.pods: dict[str, PodRecord] = {}
        self.gangs: dict[str, Gang] = {}
        self.claims = Claims()
        self.teams = TeamCounts()
        self.usage = Usage()
        self._team_key = team_key
        self._changed_gangs = Journal()
        self._searches: dict[str, FailedSearch] = {}
        self._classes = ClassTable(trusting=trusting)
        self._trust = Trust() if trusting is not None else None
        self._table = NodeTable(self._classes, team_key, self._trust)
        self._queues = Queues(bind_deadline_s)
        self._gangs_by_name: dict[str, set[str]] = defaultdict(set)
        self._on_the_way: dict[str, tuple[str, str, int]] = {}
        self._holding = Holding(self._table)
        self._gangs_by_uid: dict[str, set[str]] = defaultdict(set)
        self._deleted_placements: set[str] = set()
        self._dirty: dict[str, None] = {}
        self._now = 0.0
        self._shown: set[str] = set()
        self._stopping: dict[str, PodRecord] = {}
        self.budgets = Budgets(self._classes.peers.labels_of)
        self.foreign = ForeignGangs(self.gangs, join=self._join, refresh=self._refresh, changed=self._touch)
        self.jobs = Jobs(self.gangs, self._gangs_by_uid, lost=self.foreign.lost, changed=self._touch)
        self._snapshot = Snapshot(
            nodes=self._table.nodes,
            pods=self.pods,
            gangs=self.gangs,
            gangs_by_name=self._gangs_by_name,
            buckets=self._table.buckets.all,
            empty_buckets=self._table.empty_buckets.all,
            queues=self._queues.by_classes,
            attention=self._queues.attention,
            waiting=self._queues.waiting,
            holding=self._queues.holding,
            movable=self._queues.movable,
            ending=self._queues.ending,
            joining=self._queues.joining,
            shown=self._shown,
            stopping=self._stopping,
            giving_up=self._holding.giving_up,
            budgets=self.budgets,
            searches=self._searches,
            owners=self._table.owners,
            borrowing=self._queues.borrowing,
            backfilled=self._queues.backfilled,
            changed_gangs=self._changed_gangs,
            run_times=NO_RUN_TIMES,
            team_key=team_key,
            pools=False,
            epoch=object(),
            classes=(),
        )

    def snapshot(self, now: float = 0.0) -> Snapshot:
        """Return the present state, which is valid until the next event is applied.

        Test ages are computed for `now`, or for the time of the last event if that is later.
        """
        now = max(now, self._now)
        if self._classes.peers.many:
            self._forget_rules()
        if self._classes.by_domain:
            self._table.sum_by(self._classes.by_domain)
            self._classes.by_domain.clear()
        self.budgets.changed(self._dirty)
        for key in self._dirty:
            gang = self.gangs[key]
            self.foreign.seat(gang)
            self._holding.look_again(gang)
            self.usage.look(gang, now)
            end = self._queues.end_of(gang)
            if gang.likeness is None or gang.likeness.nodes != gang.size:
                gang.likeness = likeness_of(gang)
            self._queues.sort_in(gang)
            if self._queues.end_of(gang) != end:  # whether it is the last to leave a node may have changed
                self._table.touch(nodes_of(gang))
            if key in self._shown and not any(pod.unschedulable for pod in gang.pending.values()):
                self._shown.discard(key)
            if not gang.pods and gang.placement is None and not gang.writing:
                self._forget(gang)
        self._table.age(self._classes.ages, now)
        if self._queues.movable or self._queues.ending:
            self._changed_gangs.extend(self._dirty)
            self._changed_gangs.extend(self._table.touched_gangs(self.pods))
        elif self._dirty or self._table.touched:  # nothing is known of gangs where none can end
            self._changed_gangs.skip()
        self._dirty.clear()
        self.teams.look(self._table.touched, self._table.owners, self._table.nodes, self.pods, self.gangs)
        rebuilt, pools = self._table.settle(self._classes.label_keys), bool(self._table.pools)
        if rebuilt or pools != self._snapshot.pools:
            self._snapshot = replace(self._snapshot, epoch=object(), pools=pools)
        return self._snapshot

    @property
    def run_times(self) -> RunTimes:
        """Run times of ended gangs, for predictions."""
        return self._snapshot.run_times

    def set_run_times(self, model: RunTimes) -> None:
        """Use this model for predictions, from the next snapshot on."""
        self._snapshot = replace(self._snapshot, run_times=model)

    def queued(self) -> Iterator[Gang]:
        """Yield the gangs that wait for nodes, as of the last snapshot."""
        for queue in self._queues.by_classes.values():
            yield from (queue[index] for index in range(len(queue)))

    def set_place(self, gang: Gang, place: Place | None) -> None:
        """Set the gang's place in the queue; None: its own."""
        gang.place = place
        self._dirty[gang.key] = None

    def _touch(self, gang: Gang) -> None:
        """Mark the gang for an update."""
        self._dirty[gang.key] = None

    # Nodes

    def set_node(self, node: Node) -> None:
        """Add or update a node. Raises QuantityError for an invalid quantity."""
        if self._table.set(node):
            self._look_at_slots(node.name)

    def remove_node(self, name: str) -> None:
        """Remove a node. Pods bound to it stay counted there until they are gone too."""
        if self._table.remove(name):
            self._look_at_slots(name)

    def _look_at_slots(self, name: str) -> None:
        """Reserve or release the slots placed on the node."""
        for key, slot in self._holding.placed_on(name):
            self._holding.look(self.gangs[key], slot)
            self._dirty[key] = None

    def set_tested(self, name: str, record: Preflight | None) -> None:
        """Set or (None) remove the record of a node's tests."""
        self._table.set_tested(name, record)

    def suppose_tested(self, name: str, like: str) -> None:
        """Assume for a hypothetical node the test results of an existing one."""
        if self._trust is not None:
            self._trust.suppose(name, like)

    def set_leaving(self, names: frozenset[str]) -> None:
        """Set the nodes that change hands soon: nothing new starts there; present pods and slots stay."""
        self._table.set_leaving(names)

    def stays_for_now(self, name: str) -> bool:
        """Return whether the gang (`NAMESPACE/NAME`) is still on closed nodes and does not wait for others yet."""
        gangs = [self.gangs[key] for key in self._gangs_by_name.get(name, ())]
        if any(gang.pending for gang in gangs):
            return False
        nodes, placed = self._table.nodes, {each for gang in gangs for each, _ in gang.placed.values()}
        return any(each in nodes and nodes[each].closed for each in placed)

    def node_labels(self, name: str) -> Mapping[str, str] | None:
        """Return the node's labels; None if the node does not exist."""
        return self._table.nodes[name].labels if self._table.exists(name) else None

    def set_daemons(self, daemons: DaemonSet) -> None:
        """Add or update a DaemonSet; room is reserved on nodes that lack its pod."""
        self._table.set_daemons(daemons)

    def remove_daemons(self, uid: str) -> None:
        """Remove a DaemonSet."""
        self._table.remove_daemons(uid)

    # Pods

    def set_pod(self, pod: Pod, now: float) -> None:
        """Add or update a pod; `now` is recorded if a gang lost its last pod. Raises QuantityError."""
        self._now = now
        record = self.pods.get(pod.uid)
        if record is None:
            member = membership(pod)
            record = PodRecord(pod, member, self._team_key)
            self._classes.peers.set_pod(pod.uid, pod.namespace, pod.metadata.labels)
            record.cls = self._classes.of(pod, ours=member is not None)
            self.pods[pod.uid] = record
            if member is not None:
                self._join(record, member)
                self._describe(self.gangs[record.gang], pod)
            was: tuple[object, ...] = ()
        else:
            was = _moving_parts(record)
            if self._classes.peers.set_pod(pod.uid, pod.namespace, pod.metadata.labels):
                self.budgets.changed([record.gang])
                self._classify([pod.uid], now)
        if pod.spec.node_name:
            record.node, record.assumed = pod.spec.node_name, False
            record.bound_since = record.bound_since or _bound_since(pod)
        record.terminating = record.terminating or pod.terminating
        if pod.terminating:
            record.stops_by = seconds(pod.metadata.deletion_timestamp)
        if record.terminating and record.node:
            self._stopping[pod.uid] = record
        record.finished = pod.finished
        record.succeeded = pod.status.phase == "Succeeded"
        ran = (record.started, record.ready)
        record.started, record.ready = pod.status.phase not in ("", "Pending"), pod.ready
        if ran != (record.started, record.ready):
            self.budgets.changed([record.gang])
        record.backfilled = ANNOTATION_BACKFILLED in pod.metadata.annotations
        record.scale_up = pod.metadata.annotations.get(ANNOTATION_SCALE_UP) == APPROVED
        record.unschedulable = not record.node and is_unschedulable(pod)
        if record.unschedulable:
            self._shown.add(record.gang)
        record.gates = tuple([gate.name for gate in pod.spec.scheduling_gates])
        if was != _moving_parts(record):
            if record.gang and not record.node:
                self._judge(record, pod)
            if record.node or record.counted_on:
                self._count(record)
            self._refresh_slot(record, now)
        self._classify(self._classes.peers.newcomers(), now)

    def remove_pod(self, uid: str, now: float) -> None:
        """Remove a pod."""
        record = self.pods.pop(uid, None)
        if record is None:
            return
        self._stopping.pop(uid, None)
        self.claims.forget(record)
        self._classes.peers.remove_pod(uid)
        self._table.uncount(record)
        self._arrived(uid)
        gang = self.gangs.get(record.gang)
        if gang is not None:
            del gang.pods[uid]
            if gang.roster is not None and record.slot < 0:
                del gang.roster.standing[uid]
            else:
                del gang.members_by_slot[record.slot][uid]
            gang.binding -= record.binding
            self._refresh_slot(record, now)

    def set_namespace(self, name: str, labels: Mapping[str, str] | None, now: float) -> None:
        """Set a namespace's labels, or None if it is gone; rules of pods may then select other pods."""
        self._classify(self._classes.peers.set_namespace(name, labels), now)

    def _classify(self, uids: Iterable[str], now: float) -> None:
        """Update the classes of pods after rules of other pods, or the pods' labels, changed."""
        for uid in uids:
            record = self.pods.get(uid)
            if record is None or record.cls is None:
                continue
            cls = self._classes.variant(record.cls, self._classes.peers.of(uid))
            if cls is not record.cls:
                self._table.uncount(record)
                record.cls = cls
                self._table.count(record)
                self._refresh_slot(record, now)

    def _forget_rules(self) -> None:
        """Drop unused classes of pods with rules, and unused sets of pods."""
        used = {pod.cls for pod in self.pods.values() if pod.cls is not None}
        for gang in self.gangs.values():
            used.update(gang.slot_class.values())
        gone = frozenset(self._classes.forget(used))
        self._table.drop_sums(gone)
        self._snapshot = replace(self._snapshot, classes=frozenset(used))
        self._classify([uid for uid, pod in self.pods.items() if pod.cls and pod.cls.matches & gone], self._now)

    def begin_bind(self, uid: str, node: str) -> None:
        """Record a bind in flight: decide ignores the pod. A pod without a placement takes its room now."""
        record = self.pods.get(uid)
        if record is not None and not record.binding:
            record.binding = True
            gang = self.gangs[record.gang]
            gang.binding += 1
            self._dirty[gang.key] = None
            if gang.single and gang.placement is None and record.cls is not None:
                self._table.hold(node, record.uid, 0, record.cls)
                self._on_the_way[uid] = node, uid, 0
            else:
                self._on_the_way[uid] = node, record.gang, record.slot
            self._table.arriving(*self._on_the_way[uid], is_=True)

    def end_bind(self, uid: str, now: float, *, node: str = "", error: str = "", retry_at: float = 0.0) -> None:
        """Record the end of a bind: bound to `node`, or failed with `error` and not retried before `retry_at`."""
        record = self.pods.get(uid)
        if record is None or not record.binding:
            return
        gang = self.gangs[record.gang]
        self._arrived(uid)
        record.binding = False
        gang.binding -= 1
        self._dirty[gang.key] = None
        record.error, record.retry_at = error, retry_at
        if node and not record.node:
            record.node, record.assumed, record.bound_since = node, True, now
            self._count(record)
            self._refresh_slot(record, now)
        else:
            self._holding.look(gang, record.slot)  # the bind may have been the only reason to reserve room

    def _count(self, record: PodRecord) -> None:
        """Count the pod on its node; usually it takes the reservation of its slot."""
        gang = self.gangs.get(record.gang)
        held = gang.holds.get(record.slot) if gang is not None else None
        if gang is not None and held == (record.node, record.cls) and self._table.take_held(record):
            del gang.holds[record.slot]
        else:
            self._table.count(record)

    def _arrived(self, uid: str) -> None:
        held = self._on_the_way.pop(uid, None)
        if held is not None:
            self._table.arriving(*held, is_=False)
            if held[1] == uid:
                self._table.unhold(*held)

    def tried(self, gang: Gang, until: float, refused: str) -> None:
        """Record a dry run of evicting the whole gang, valid `until` then. `refused` is why not, "" if allowed."""
        gang.tried = Tried(until, refused)

    def searched(self, searches: Mapping[str, FailedSearch | None]) -> None:
        """Record the plan's searches for victims that found none; None: the gang's next search is due at once."""
        for key, failed in searches.items():
            if failed is None:
                self._searches.pop(key, None)
            elif key in self.gangs:
                self._searches[key] = failed

    def eviction_ended(self, uid: str, error: str, retry_at: float) -> None:
        """Record that an eviction was admitted, or failed with `error` and is not retried before `retry_at`."""
        record = self.pods.get(uid)
        if record is not None:
            record.error, record.retry_at = error, retry_at

    def avoid(self, gang: Gang, slot: int, node: str) -> None:
        """Exclude the node for that slot."""
        gang.failed_nodes.add((slot, node))
        self._dirty[gang.key] = None

    def _join(self, record: PodRecord, member: Membership) -> None:
        if member.workload is not None:
            member = self.foreign.resolve(member)
            record.gang = member.key
        gang = self._gang(record.gang, record.namespace, member)
        gang.pods[record.uid] = record
        if member.workload is not None:
            self.foreign.enrol(gang, record, member)
        else:
            gang.members_by_slot.setdefault(record.slot, {})[record.uid] = record
            gang.owner = gang.owner or record.owner
        if not member.error and not member.single and member.workload is None:
            if member.attempt > gang.size_attempt:
                gang.size_attempt, gang.size = member.attempt, member.size
            elif member.attempt == gang.size_attempt and member.size != gang.size:
                record.labels_error = f"pod {record.name} says its gang has {member.size} members, not {gang.size}"
        gang.priority = record.priority if len(gang.pods) == 1 else max(gang.priority, record.priority)
        gang.traits = record.traits if len(gang.pods) == 1 else gang.traits.with_member(record.traits)
        gang.arrival = min(gang.arrival, record.created) if gang.arrival else record.created

    @staticmethod
    def _describe(gang: Gang, pod: Pod) -> None:
        """Record what the newest pod says about the work of its gang."""
        gang.user = pod.metadata.labels.get(LABEL_USER, "")
        gang.image = pod.spec.containers[0].image if pod.spec.containers else ""
        gang.likeness = None

    def _gang(self, key: str, namespace: str, member: Membership) -> Gang:
        gang = self.gangs.get(key)
        if gang is None:
            gang = Gang(key, namespace, member.name, member.uid, member.size, single=member.single)
            self.gangs[key] = gang
            if gang.uid or member.workload is None:
                self._gangs_by_name[gang.full_name].add(key)
                self._gangs_by_uid[gang.uid].add(key)
            self.jobs.tell(gang)
        return gang

    def _forget(self, gang: Gang) -> None:
        self._queues.remove(gang)
        self._searches.pop(gang.key, None)
        self._shown.discard(gang.key)
        del self.gangs[gang.key]
        names = self._gangs_by_name[gang.full_name]
        names.discard(gang.key)
        self._gangs_by_uid[gang.uid].discard(gang.key)
        if not self._gangs_by_uid[gang.uid]:
            del self._gangs_by_uid[gang.uid]
        if not names:
            del self._gangs_by_name[gang.full_name]
        for other in names:
            self._queues.sort_in(self.gangs[other])

    def _judge(self, record: PodRecord, pod: Pod) -> None:
        """Find why a pending pod cannot be placed, and the node constraints of its volumes."""
        record.problem, needs = self.claims.judge(record, pod)
        if needs:
            self._table.uncount(record)
            record.cls = self._classes.of(pod, needs)
        if record.gates:
            gates = ", ".join(record.gates)
            record.problem = Reason(Why.GATED, detail=f"pod {record.name} has scheduling gates: {gates}")
        if record.cls is not None and record.cls.refusals:
            record.problem = Reason(Why.NOT_SUPPORTED, detail=f"pod {record.name}: {'; '.join(record.cls.refusals)}")
        if record.labels_error:
            record.problem = Reason(Why.INVALID, detail=record.labels_error)

    def _refresh_slot(self, record: PodRecord, now: float) -> None:
        """Update the current member of the pod's slot, and what depends on it."""
        gang = self.gangs.get(record.gang)
        if gang is not None:
            self._now = now
            self._dirty[gang.key] = None
            if record.slot >= 0:  # otherwise `seat` assigns one before the next snapshot
                self._refresh(gang, record.slot)

    def _refresh(self, gang: Gang, slot: int) -> None:
        had_live = bool(gang.current)
        gang.current.pop(slot, None)
        gang.joiners.pop(slot, None)
        gang.problems.pop(slot, None)
        if gang.pending.pop(slot, None) is not None:
            cls = gang.pending_class.pop(slot)
            left = gang.counts[cls] - 1
            if left:
                gang.counts[cls] = left
            else:
                del gang.counts[cls]
        member = newest(gang.members_by_slot[slot])
        if gang.roster is not None:
            self.foreign.note(gang, slot, member)
        if member is not None and (_is_given_up(gang, slot, member) or not self.foreign.counts(gang, slot, member)):
            gang.joiners[slot] = member
        elif member is not None and member.cls is not None:
            gang.current[slot] = member
            gang.slot_class[slot] = member.cls
            if not member.node:
                gang.pending[slot] = member
                gang.pending_class[slot] = member.cls
                gang.counts[member.cls] += 1
                if member.problem is not None:
                    gang.problems[slot] = member.problem
        if gang.current:
            gang.podless_since = None
        elif had_live or gang.podless_since is None:
            gang.podless_since = self._now
        if gang.placed or gang.holds:
            self._holding.look(gang, slot)

    # Placements

    def set_placement(self, placement: Placement, now: float) -> None:
        """Add or update a placement; versions older than the known one are ignored."""
        if placement.uid in self._deleted_placements:
            return
        spec = placement.spec
        member = gang_of(placement)
        gang = self._gang(member.key, placement.namespace, member)
        self._now = now
        self.foreign.adopt(gang)
        if not gang.current and gang.podless_since is None:
            gang.podless_since = now
        if not gang.pods and (gang.roster is None or gang.roster.shape is None):
            gang.size = member.size
        created = seconds(placement.metadata.creation_timestamp)
        if created:
            gang.arrival = min(gang.arrival, created) if gang.arrival else created
        if gang.seen is not None and gang.seen.uid == placement.uid:
            placement = newer(gang.seen, placement)
        if gang.seen is None or (gang.seen.uid, gang.seen.spec.attempt) != (placement.uid, spec.attempt):
            gang.revision_since = now
        gang.seen = placement
        if not gang.writing:
            self._effective(gang, placement)

    def remove_placement(self, placement: Placement) -> None:
        """Remove a placement that the API server no longer holds."""
        self._deleted_placements.discard(placement.uid)
        gang = self.gangs.get(gang_of(placement).key)
        if gang is not None and gang.seen is not None and gang.seen.uid == placement.uid:
            gang.seen = None
            if not gang.writing:
                self._effective(gang, None)

    def begin_write(self, gang: Gang, intended: Placement | None) -> None:
        """Record a write of the placement in flight (None: its deletion). Its slots count from now on.

        The slots that it gives up also count until the write ends. Otherwise a process could see the room promised
        twice: it may read another gang's write first, and this one may be lost.
        """
        gang.writing = True
        if intended is not None:
            before, held = gang.placed, gang.holds.copy()
            self._effective(gang, intended)
            self._holding.keep_until_written(gang, before, held)

    def end_write(self, gang: Gang, written: Placement | None, *, deleted: bool = False) -> None:
        """Record the end of a write: the written object, its deletion, or (both unset) a failure."""
        gang.writing = False
        self._holding.written(gang)
        if written is not None:
            same = gang.seen is not None and gang.seen.uid == written.uid
            gang.seen = newer(gang.seen, written) if same and gang.seen is not None else written
        elif deleted and gang.seen is not None:
            self._deleted_placements.add(gang.seen.uid)
            gang.seen = None
        self._effective(gang, gang.seen)

    def _effective(self, gang: Gang, placement: Placement | None) -> None:
        before, old = gang.placed, gang.placement
        same = old is not None and placement is not None and holds_as(old, placement)
        after = before if same else placed_slots(placement)
        gang.placement, gang.placed = placement, after
        given_up, gang.given_up = gang.given_up, given_up_slots(placement)
        if placement is None:
            gang.failed_nodes.clear()
        self.jobs.look_for_owner(gang)
        self._dirty[gang.key] = None
        for slot in before.keys() | after.keys() if before != after else ():
            if before.get(slot) != after.get(slot):
                self._holding.place(gang, slot, before.get(slot), after.get(slot))
                if gang.roster is not None and slot in gang.members_by_slot:
                    self._refresh(gang, slot)
        for slot in given_up.keys() | gang.given_up.keys():
            if given_up.get(slot) != gang.given_up.get(slot) and slot in gang.members_by_slot:
                self._refresh(gang, slot)

    # Foreign workloads

    def set_workload(self, workload: Workload, now: float) -> None:
        """Add or update a workload object, with its description of its pods."""
        self._now = now
        self.foreign.set(workload)

    def remove_workload(self, ref: WorkloadRef) -> None:
        """Remove a workload object; its pods keep their gang."""
        gang = self.foreign.remove(ref)
        if gang is not None:
            self.jobs.look_for_owner(gang)
            self._dirty[gang.key] = None

    def workloads_listed(self, source: str) -> None:
        """Record that all objects of the adapter are listed: a placement with an unknown owner is an orphan."""
        for gang in self.foreign.listed(source):
            self.jobs.look_for_owner(gang)
            self._dirty[gang.key] = None

    # Claims

    def set_claim(self, key: str, claim: ClaimState, now: float) -> None:
        """Record the claim `namespace/name`, and judge the pending pods that use it again."""
        for uid, pod in self.claims.learn(key, claim):
            record = self.pods.get(uid)
            if record is not None and not record.node:
                self._judge(record, pod)
                self._refresh_slot(record, now)

    def claims_wanted(self) -> list[str]:
        """Return the claims of pending pods that are not known to be bound, as `namespace/name`."""
        return list(self.claims.wanted(self.pods))


def _moving_parts(record: PodRecord) -> tuple[object, ...]:
    return (record.node, record.assumed, record.terminating, record.finished, record.gates)


def _bound_since(pod: Pod) -> float:
    """Return the bind time: from the PodScheduled condition, which the API server sets, else the kubelet's start."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "True" and condition.last_transition_time:
            return condition.last_transition_time.timestamp()
    return seconds(pod.status.start_time)


def _is_given_up(gang: Gang, slot: int, member: PodRecord) -> bool:
    """Return whether the gang continues without this pod; a bound pod is a member all the same."""
    return not member.node and member.attempt <= gang.given_up.get(slot, -1)
