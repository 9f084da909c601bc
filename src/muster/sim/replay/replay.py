"""Replays jobs in virtual time: handles events in the order of their time, and runs the scheduler after each one."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b

import msgspec

from muster.api.scheduling import BackfillPolicy, QueueOrder
from muster.scheduler.decide import decide
from muster.scheduler.plan import Settings
from muster.sim.replay.cluster import Cluster, Decide
from muster.sim.replay.failing import Crashes, Failing
from muster.sim.replay.faults import Care, Faults
from muster.sim.replay.job import Job, NodeShape, Shape
from muster.sim.replay.room import InvariantBroken
from muster.sim.replay.run import Run
from muster.sim.replay.series import Series

DETECT_S = 9.0
"""Time to detect that a machine has lost power (docs/limits.md)."""
PROGRESS_EVENTS = 1000


class Conditions(msgspec.Struct, frozen=True):
    """Settings of a replay, besides its jobs.

    Attributes:
        seed: seed of the failures.
        days: length of the replay; with 0 it runs until the last job is done.
        mtbf_hours: mean time between failures of one node, exponentially distributed; 0 for no failures.
        repair_hours: mean repair time of a failed node, exponentially distributed.
        checkpoint_minutes: time between two checkpoints, so a job loses at most this much work to a failure.
        restart_minutes: time from when a job has all its nodes again until it works again.
        care: how broken nodes are handled, for replays with faults of all kinds. Without it, nodes only crash.
        policy: which jobs may start on nodes that are reserved for a job before them.
        order: how jobs of the same priority are ordered. Only TrainingJobs have users; other pods share one namespace.
        forecasts: whether the starts of waiting jobs are forecast. That takes time and changes no placement.
    """

    seed: int = 0
    days: float = 0.0
    mtbf_hours: float = 0.0
    repair_hours: float = 4.0
    checkpoint_minutes: float = 60.0
    restart_minutes: float = 5.0
    care: Care | None = None
    policy: BackfillPolicy = "preemptible"
    order: QueueOrder = "arrival"
    forecasts: bool = True


class Outcome(msgspec.Struct, frozen=True):
    """The results of a replay.

    `asked` counts the preemptions of backfilled jobs. `placements_hash` is a hash of all placements in their order.
    """

    runs: Sequence[Run]
    series: Series
    end_s: float
    gpus: int
    node_failures: int
    preemptions: int
    asked: int
    released: int
    plans: int
    events: int
    placements_hash: str


Event = tuple[float, int, Callable[[], None]]


class Replay:
    """Replays jobs on simulated nodes.

    Args:
        nodes: the nodes of the cluster.
        jobs: the jobs, in the order of their submission.
        conditions: the settings of the replay.
        planner: the scheduler's `decide` function.
        progress: called from time to time with the virtual time and the number of submitted jobs.
    """

    def __init__(
        self,
        nodes: Sequence[NodeShape],
        jobs: Sequence[Job],
        conditions: Conditions,
        *,
        planner: Decide = decide,
        progress: Callable[[float, int], None] | None = None,
    ) -> None:
        settings = Settings(policy=conditions.policy, order=conditions.order)
        self._cluster = Cluster(nodes, planner, settings, forecasts=conditions.forecasts)
        self._jobs = jobs
        self._conditions = conditions
        self._progress = progress
        self._now = 0.0
        self._events: list[Event] = []
        self._numbers = itertools.count()
        self._failing = self._failing_of(conditions, [node.name for node in nodes])
        self._runs: list[Run] = []
        self._open = len(jobs)
        self._waiting_gpus = 0
        self._waiting_jobs = 0
        self._stopped_gpus = 0
        self._queued_restartable: Counter[tuple[Shape, int]] = Counter()
        self._wake_at: float | None = None
        self._checkpoint_s = conditions.checkpoint_minutes * 60
        self._series = Series()
        self._hash = blake2b(digest_size=16)

    def run(self) -> Outcome:
        """Run to the end. If the scheduler breaks an invariant, raises InvariantBroken with the time."""
        end_s = self._conditions.days * 86400 or float("inf")
        count = shown = 0
        if self._jobs:
            self.at(self._jobs[0].submit_s, self._arrive)
        if self._conditions.mtbf_hours:
            self._failing.begin()
        self._note()
        while self._events and self._open and self._events[0][0] < end_s:
            self._now = self._events[0][0]
            while self._events and self._events[0][0] == self._now:
                heapq.heappop(self._events)[2]()
                count += 1
            self._settle()
            if self._progress is not None and count >= shown + PROGRESS_EVENTS:
                self._progress(self._now, len(self._runs))
                shown = count
        if self._conditions.days:
            self._now = end_s
            self._note()
        return Outcome(
            runs=self._runs,
            series=self._series,
            end_s=self._now,
            gpus=self._cluster.room.gpus,
            node_failures=self._failing.failures,
            preemptions=self._cluster.preemptions,
            asked=self._cluster.asked,
            released=self._cluster.released,
            plans=self._cluster.plans,
            events=count,
            placements_hash=self._hash.hexdigest(),
        )

    def _failing_of(self, conditions: Conditions, names: Sequence[str]) -> Failing:
        if conditions.care is not None:
            return Faults(self, names, conditions.seed, mtbf_hours=conditions.mtbf_hours, care=conditions.care)
        rng = random.Random(f"failures {conditions.seed}")
        return Crashes(self, names, rng, mtbf_hours=conditions.mtbf_hours, repair_hours=conditions.repair_hours)

    # Interface for sources of failures

    @property
    def now(self) -> float:
        """Return the virtual seconds since the beginning."""
        return self._now

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        """Schedule a call at a virtual time."""
        heapq.heappush(self._events, (when_s, next(self._numbers), what))

    def lose_node(self, name: str, saved: bool) -> None:
        """Take a node out of use. Its jobs move to other nodes; `saved`: they save their work first."""
        for run, slot in self._cluster.fail(name):
            self._interrupt(run, 0.0 if saved else self._checkpoint_s, run.job.gpus)
            self._cluster.replace(run, slot, self._now)

    def return_node(self, name: str) -> None:
        """Return a node to use."""
        self._cluster.repair(name)

    def stop_work(self, name: str) -> None:
        """Restart the programs on a node; the node itself stays ready."""
        for run, slot in self._cluster.on(name):
            self._interrupt(run, self._checkpoint_s, run.job.gpus)
            self._cluster.replace(run, slot, self._now)

    def _settle(self) -> None:
        try:
            whole, wake_at = self._cluster.settle(self._now, self._evicted)
        except InvariantBroken as error:
            raise InvariantBroken(f"{error} (at {self._now:.3f} s, seed {self._conditions.seed})") from error
        for run in whole:
            self._go(run)
        if wake_at is not None and self._now < wake_at and (self._wake_at is None or wake_at < self._wake_at):
            self._wake_at = wake_at
            self.at(wake_at, self._wake)
        self._note()

    def _note(self) -> None:
        room = self._cluster.room
        self._series.add(
            self._now, room.busy, room.down, room.split, room.idle,
            self._waiting_gpus, self._waiting_jobs, self._stopped_gpus, self._restartable_fits(),
        )  # fmt: skip

    def _restartable_fits(self) -> bool:
        room = self._cluster.room
        return room.idle > 0 and any(room.has_room(shape, members) for shape, members in self._queued_restartable)

    def _enqueue(self, run: Run) -> None:
        if not run.queued:
            run.queued = True
            self._waiting_gpus += run.job.gpus
            self._waiting_jobs += 1
            if run.job.restartable:
                self._queued_restartable[run.job.shape, run.job.members] += 1

    def _dequeue(self, run: Run) -> None:
        if run.queued:
            run.queued = False
            self._waiting_gpus -= run.job.gpus
            self._waiting_jobs -= 1
            if run.job.restartable:
                self._queued_restartable -= Counter([(run.job.shape, run.job.members)])

    # Events

    def _arrive(self) -> None:
        number = len(self._runs)
        run = Run(self._jobs[number])
        self._runs.append(run)
        self._cluster.submit(run, self._now)
        self._enqueue(run)
        if number + 1 < len(self._jobs):
            self.at(self._jobs[number + 1].submit_s, self._arrive)

    def _go(self, run: Run) -> None:
        self._dequeue(run)
        self._stopped_gpus -= run.held_up
        run.held_up = 0
        done_at = run.go(self._now, DETECT_S + self._conditions.restart_minutes * 60)
        self._failing.going(run, done_at - (run.job.run_s - run.done_s))
        self._hash.update(f"{self._now!r} {run.key} {','.join(run.nodes.values())}".encode())
        attempt = run.attempt
        self.at(done_at, lambda: self._finish(run, attempt))

    def _finish(self, run: Run, attempt: int) -> None:
        if run.attempt == attempt:
            run.ended_s = self._now
            self._open -= 1
            self._cluster.end(run, self._now)

    def _wake(self) -> None:
        self._wake_at = None

    def _evicted(self, run: Run, queued: bool) -> None:
        """Record that a job was preempted. If it was asked to leave, it returns to the queue.

        A restartable job then saves its work. Another TrainingJob loses all its work.
        """
        if not queued:
            self._interrupt(run, self._checkpoint_s, run.job.gpus)
            return
        self._enqueue(run)
        if run.job.training_job and not run.job.restartable:
            run.lose_all(self._now)
        else:
            run.unsaved_s += run.since_checkpoint_s(self._now, self._checkpoint_s)
        self._interrupt(run, 0.0, 0)

    def _interrupt(self, run: Run, checkpoint_s: float, held_up: int) -> None:
        run.interrupt(self._now, checkpoint_s)
        if run.started_s is None:
            return
        self._stopped_gpus += held_up - run.held_up
        run.held_up = held_up
