"""Runs the scheduler with a model of the API server in this process, and executes its plans at once.

Requests do not fail, and take no virtual time. Every write is checked as the API server would check it, and every
bind is checked against `Room`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import msgspec

from muster.api.placement import Placement, PlacementStatus
from muster.scheduler.decide import DEFAULTS, decide
from muster.scheduler.gangs.adapters.membership import gang_key
from muster.scheduler.gangs.placements import bound_status, leaving_status
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.memo import EMPTY, Memo
from muster.scheduler.plan import (
    Action,
    Bind,
    DeletePlacement,
    EvictMember,
    MarkBound,
    Plan,
    ReleaseGang,
    RemoveMember,
    Settings,
    TellToLeave,
    TryEviction,
    WritePlacement,
)
from muster.scheduler.queue.fair import FairOrder
from muster.scheduler.snapshot import Snapshot
from muster.scheduler.state import ClusterState
from muster.sim.replay.forecasts import Forecasts
from muster.sim.replay.history import History
from muster.sim.replay.job import NodeShape
from muster.sim.replay.objects import NAMESPACE, START_S, PodMaker, node_of
from muster.sim.replay.room import InvariantBroken, Room
from muster.sim.replay.run import Run

Evicted = Callable[[Run, bool], None]
"""Called before the pods of a preempted job are removed. The second argument: whether it goes back to the queue."""
Decide = Callable[[Snapshot, float, Settings, Memo], Plan]
_ROUNDS_MAX = 1000
"""Maximum number of plans for one moment. With more, the scheduler is in a loop."""


class Cluster:
    """Model of the API server: holds nodes, pods and placements for one scheduler.

    Args:
        nodes: all nodes.
        planner: the scheduler's `decide` function. Tests replace it by broken ones.
        settings: the scheduler's settings.
        forecasts: whether the starts of waiting jobs are forecast.
    """

    def __init__(
        self,
        nodes: Iterable[NodeShape],
        planner: Decide = decide,
        settings: Settings = DEFAULTS,
        *,
        forecasts: bool = True,
    ) -> None:
        self._shapes = {node.name: node for node in nodes}
        self._planner = planner
        self._settings = settings
        self._history = History()
        self._order = FairOrder()
        self._state = ClusterState(bind_deadline_s=self._settings.bind_deadline_s)
        self._memo = EMPTY
        self._state.budgets.known = True  # replays have no disruption budgets
        self._runs: dict[str, Run] = {}
        self._forecasts = Forecasts() if forecasts else None
        self._on: dict[str, dict[str, Run]] = {name: {} for name in self._shapes}
        self._placements: dict[str, Placement] = {}
        self._versions = itertools.count(1)
        self.room = Room(self._shapes.values())
        self.released = 0
        self.preemptions = 0
        self.asked = 0
        self.plans = 0
        for node in self._shapes.values():
            self._state.set_node(node_of(node, ready=True))

    def submit(self, run: Run, now: float) -> None:
        """Create the job's pods."""
        job = run.job
        maker = PodMaker(job, run.attempt, START_S + now)
        for slot in range(job.members):
            run.pods.append("")
            self._make(run, slot, now, maker)
        run.key = (
            gang_key(NAMESPACE, job.name, job.name) if job.gang else f"{NAMESPACE}/{run.pods[0]}/pod/{run.pods[0]}"
        )
        self._runs[run.key] = run
        if self._forecasts is not None:
            self._forecasts.arrived(run)
        self._say(run)

    def end(self, run: Run, now: float) -> None:
        """Remove a finished job and its objects."""
        self._history.add(run, self._state.gangs[run.key], now)
        del self._runs[run.key]
        placement = self._placements.pop(run.key, None)
        if placement is not None:
            self._state.remove_placement(placement)
        for uid in run.pods:
            self._remove(run, uid, now)
        run.pods.clear()
        if run.job.training_job:
            self._state.jobs.remove(run.job.name)

    def fail(self, name: str) -> list[tuple[Run, int]]:
        """Make a node not ready. Returns the (job, slot) pairs on it."""
        self.room.set_down(name, True)
        self._state.set_node(node_of(self._shapes[name], ready=False))
        return self.on(name)

    def on(self, name: str) -> list[tuple[Run, int]]:
        """Return the (job, slot) pairs on the node."""
        return [(run, run.pods.index(uid)) for uid, run in self._on[name].items()]

    def repair(self, name: str) -> None:
        """Make a failed node ready again."""
        self.room.set_down(name, False)
        self._state.set_node(node_of(self._shapes[name], ready=True))

    def replace(self, run: Run, slot: int, now: float) -> None:
        """Replace the lost, preempted or evicted pod of a slot, as its owner does.

        If the job is a single pod and not a gang, the new pod gets a new scheduler key, because that key contains the
        pod's UID.
        """
        self._remove(run, run.pods[slot], now)
        self._make(run, slot, now, PodMaker(run.job, run.attempt, START_S + now))
        if not run.job.gang:
            del self._runs[run.key]
            run.key = f"{NAMESPACE}/{run.pods[slot]}/pod/{run.pods[slot]}"
            self._runs[run.key] = run

    def settle(self, now: float, evicted: Evicted) -> tuple[list[Run], float | None]:
        """Plan and execute until the plan is empty; calls `evicted` with jobs that lose pods.

        Returns the jobs whose pods are now all bound, and when to plan again even without events. Raises
        InvariantBroken.
        """
        touched: dict[str, Run] = {}
        if self._history.is_due(now):
            self._state.set_run_times(self._history.model(self._runs.values(), self._state.gangs, now))
        for _ in range(_ROUNDS_MAX):
            self._order.apply_all(self._state, self._settings, START_S + now)
            plan = self._planner(self._state.snapshot(), START_S + now, self._settings, self._memo)
            self._memo = plan.memo
            self._state.searched(plan.searches)
            self.plans += 1
            for action in plan.actions:
                self._carry_out(action, now, touched, evicted)
            if all(type(action) is MarkBound for action in plan.actions):
                if self._forecasts is not None:
                    self._forecasts.look(self._state.snapshot(), plan, self._settings, now)
                break  # MarkBound frees no room, so another plan would be the same
        else:
            raise InvariantBroken(f"the scheduler is still busy after {_ROUNDS_MAX} plans for one moment")
        whole = []
        for run in touched.values():
            if run.whole:
                self._check_spread(run)
                if self._forecasts is not None:
                    self._forecasts.started(run, now)
                whole.append(run)
            elif run.nodes and run.started_s is None:
                raise InvariantBroken(f"{run.key} has {len(run.nodes)} of {run.job.members} members bound")
        return whole, plan.wake_at - START_S if plan.wake_at is not None else None

    def _carry_out(self, action: Action, now: float, touched: dict[str, Run], evicted: Evicted) -> None:
        if isinstance(action, Bind):
            run = self._runs[action.gang]
            if action.uid in run.nodes or run.pods[max(action.slot, 0)] != action.uid:
                raise InvariantBroken(f"{action.pod} was bound twice, or is gone")
            self.room.take(action.node, run.job.shape, action.pod)
            self._state.begin_bind(action.uid, action.node)
            self._state.end_bind(action.uid, START_S + now, node=action.node)
            run.nodes[action.uid] = action.node
            self._on[action.node][action.uid] = run
            touched[action.gang] = run
        elif isinstance(action, WritePlacement):
            self._write(action.gang, action.placement, None, now)
        elif isinstance(action, MarkBound):
            status = bound_status(action.placement, START_S + now, self._settings.bind_deadline_s)
            self._write(action.gang, action.placement, status, now)
        elif isinstance(action, ReleaseGang):
            self.released += 1
            self._write(action.gang, action.placement, PlacementStatus(phase="Released"), now)
        elif isinstance(action, DeletePlacement):
            self._state.remove_placement(self._placements.pop(action.gang))
        elif isinstance(action, TellToLeave):
            run = self._runs[action.gang]
            status = leaving_status(action.placement, START_S + now, action.reason, action.message)
            self._write(action.gang, action.placement, status, now)
            self.preemptions += 1
            if action.reason in ("Backfilled", "Moved"):
                self.asked += 1
                run.asked += 1
            evicted(run, True)
            self._say(run)
            for slot in range(run.job.members):
                self.replace(run, slot, now)
        elif isinstance(action, TryEviction):
            self._state.tried(self._state.gangs[action.gang], START_S + now + 1.0, "")
        elif isinstance(action, RemoveMember | EvictMember):
            run = self._runs[action.gang]
            self.preemptions += not run.job.gang
            evicted(run, False)
            self.replace(run, run.pods.index(action.uid), now)
        else:
            raise InvariantBroken(f"the scheduler took an action that a replay cannot need: {action}")

    def _say(self, run: Run) -> None:
        """Tell the scheduler what the controller of training jobs would write about the job."""
        job = run.job
        if job.training_job:
            facts = JobFacts(
                limit_s=float(job.limit_s) if job.limit_s is not None else None,
                since=START_S + job.submit_s,
                restartable=job.restartable,
                requeueable=True,
                asked=run.asked,
                submitter=job.user,
                ran_s=run.done_s + run.redone_s,
            )
            self._state.jobs.set(job.name, facts)

    def _write(self, key: str, placement: Placement, status: PlacementStatus | None, now: float) -> None:
        """Store a placement. A write of the spec does not change the status, as with a status subresource."""
        old = self._placements.get(key)
        had = old.metadata.resource_version if old is not None else ""
        if placement.metadata.resource_version != had:
            raise InvariantBroken(f"the placement of {key} was written over another version")
        version = str(next(self._versions))
        uid = old.uid if old is not None else f"placement-{version}"
        meta = msgspec.structs.replace(placement.metadata, uid=uid, resource_version=version)
        if status is None:
            status = old.status if old is not None else PlacementStatus()
        stored = msgspec.structs.replace(placement, metadata=meta, status=status)
        self._placements[key] = stored
        self._state.set_placement(stored, START_S + now)

    def _make(self, run: Run, slot: int, now: float, maker: PodMaker) -> None:
        pod = maker.pod(slot)
        run.pods[slot] = pod.uid
        self._state.set_pod(pod, START_S + now)

    def _remove(self, run: Run, uid: str, now: float) -> None:
        node = run.nodes.pop(uid, "")
        if node:
            self.room.give(node, run.job.shape)
            del self._on[node][uid]
        self._state.remove_pod(uid, START_S + now)

    @staticmethod
    def _check_spread(run: Run) -> None:
        if run.job.gang and len(set(run.nodes.values())) != run.job.members:
            raise InvariantBroken(f"{run.key} has two members on one node: {sorted(run.nodes.values())}")
