"""Issue 11.3: stalls are detected from reported steps, and nothing that happens to the controller looks like one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from muster.api.training_job_status import Progress, TrainingJobStatus
from muster.trainingjobs.decide import decide
from muster.trainingjobs.plan import Plan, RecordEvent
from muster.trainingjobs.pods.slots import slots_of
from muster.trainingjobs.snapshot import IdleRank, RankTrace, Watched
from muster.trainingjobs.status import stalls
from muster.trainingjobs.status.progress import ProgressBook
from tests.unit.trainingjobs.world import World, make_job, moment


class Watching(World):
    """A world whose controller counts how long nothing was reported."""

    quiet: Watched | None = None

    def plan(self) -> Plan:
        snapshot = self.snapshot()
        self.quiet = stalls.watched(self.quiet, snapshot, slots_of(snapshot)[0], self.now)
        return decide(replace(snapshot, quiet=self.quiet, progress_due=True), self.now)

    def restart_controller(self) -> None:
        super().restart_controller()
        self.quiet = None
        self.progress = None

    def report(self, step: int, step_s: float | None = None) -> None:
        assert self.job is not None
        attempt = self.job.status.attempt
        self.progress = Progress(step=step, time=moment(self.now), attempt=attempt, step_seconds=step_s)

    def pass_s(self, seconds: float, each_s: float = 5.0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.step(min(each_s, end - self.now))
            self.control()

    @property
    def status(self) -> TrainingJobStatus:
        assert self.job is not None
        return self.job.status

    def events(self) -> list[str]:
        return [each.reason for each in self.log if isinstance(each, RecordEvent)]


def running(**spec: Any) -> Watching:
    world = Watching(make_job(2, **spec))
    for _ in range(6):
        world.control()
        world.step()
    world.control()
    assert world.status.phase == "Running"
    return world


@pytest.mark.slow
def test_no_step_for_five_minutes_is_a_stall_and_the_next_step_ends_it() -> None:
    world = running()
    world.report(40)
    world.pass_s(290)
    assert world.status.stall is None
    world.pass_s(20)
    stall = world.status.stall
    assert stall is not None
    assert (stall.attempt, stall.step, stall.limit_seconds) == (1, 40, 300)
    assert stall.message == "no step for 5 min after step 40"
    writes = len(world.history)
    world.pass_s(3600)
    assert len(world.history) == writes
    assert world.status.phase == "Running"
    world.report(41)
    world.pass_s(5)
    assert world.status.stall is None
    assert [each for each in world.events() if "tall" in each] == ["Stalled", "StallEnded"]


def test_slow_steps_have_ten_times_their_median() -> None:
    world = running()
    world.report(3, step_s=60)
    world.pass_s(590)
    assert world.status.stall is None
    world.pass_s(20)
    assert world.status.stall is not None


def test_a_job_that_never_reports_is_judged_by_an_explicit_limit_only() -> None:
    world = running()
    world.pass_s(7200, 60)
    assert world.status.stall is None
    assert world.status.quiet is None
    world = running(stall={"firstStepSeconds": 1200})
    world.pass_s(1190)
    assert world.status.stall is None
    world.pass_s(60)  # this leader has led for a moment only when the ranks began
    assert world.status.stall is not None
    assert world.status.stall.message == "no step for 20 min"


def test_a_traceback_is_shown_and_never_a_reason() -> None:
    world = running()
    world.report(40)
    pod = world.holder(1)
    trace = RankTrace(rank=1, lines=("Traceback (most recent call last):", "ValueError: no such batch"))
    world.remembered[pod.uid] = world.members[pod.uid] = replace(world.members[pod.uid], traces=(trace,))
    world.pass_s(290)
    assert world.status.stall is None
    world.pass_s(20)
    assert world.status.stall is not None
    assert world.status.stall.suspicion.startswith("rank 1 printed a traceback:\n")
    assert world.status.stall.message == (
        "no step for 5 min after step 40; rank 1 printed a traceback:\n"
        "Traceback (most recent call last):\nValueError: no such batch"
    )


def test_a_rank_that_does_not_run_is_shown_at_once() -> None:
    world = running()
    pod = world.holder(1)
    before = world.members[pod.uid]
    world.remembered[pod.uid] = world.members[pod.uid] = replace(
        before, idle=(IdleRank(rank=1, state="stopped"), IdleRank(rank=2, state="of a later version"))
    )
    world.pass_s(1)
    (idle,) = world.status.idle_ranks
    assert (idle.rank, idle.state, idle.slot, idle.node) == (1, "stopped", 1, pod.spec.node_name)
    assert world.events()[-1] == "RankIdle"
    world.restart_controller()
    world.pass_s(1)
    world.remembered[pod.uid] = world.members[pod.uid] = before
    world.pass_s(1)
    assert world.status.idle_ranks == ()
    assert world.events()[-1] == "RankRuns"


def test_restart_ends_the_attempt_and_a_stall_at_the_same_step_is_the_programs() -> None:
    world = running(stall={"action": "Restart"})
    world.report(40)
    world.pass_s(330)
    first = world.status.faults[-1]
    assert (first.rule, first.cause, first.step) == ("stalled", "unknown", 40)
    assert (world.status.stall, world.status.quiet) == (None, None)
    world.progress = None
    world.pass_s(30)
    assert world.status.phase == "Running"
    world.report(40)
    world.pass_s(330)
    assert [fault.rule for fault in world.status.faults] == ["stalled", "stalled-again"]
    restarts = world.status.restarts
    assert restarts is not None
    assert (restarts.unknown, restarts.user) == (1, 1)


def test_a_new_leader_continues_to_count() -> None:
    world = running()
    world.report(40)
    world.pass_s(5)
    for _ in range(8):  # each leads for less than the limit, the clocks of two machines are an hour apart
        world.pass_s(120)
        world.now += 3600
        world.restart_controller()
    assert world.status.stall is not None


@pytest.mark.slow
def test_an_outage_or_a_partition_is_not_a_stall() -> None:
    world = running()
    world.report(40)
    world.pass_s(200)
    world.now += 3600  # the controller was away; the program went on
    world.restart_controller()
    world.pass_s(40)
    world.report(400)
    world.pass_s(200)
    pod = world.holder(0)
    world.trusted = False
    for _ in range(720):
        world.now += 5
        world.members[pod.uid] = replace(world.members[pod.uid], silent_since=world.now - 100)
        world.control()
    world.trusted = True
    world.pass_s(40)
    world.report(800)
    world.pass_s(100)
    assert "Stalled" not in world.events()


def test_a_controller_that_was_stopped_for_long_waits_for_what_was_reported_meanwhile() -> None:
    world = running()
    world.report(40)
    world.pass_s(200)
    world.now += 3600
    world.strained_at = world.now
    world.control()
    world.pass_s(40)
    world.report(400)
    world.pass_s(100)
    assert "Stalled" not in world.events()


Doing = st.sampled_from(["report", "silence", "restart", "strain", "distrust", "trust", "wait"])


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(Doing, st.floats(1, 200)), max_size=25))
def test_no_stall_without_the_limit_spent_listening(deeds: list[tuple[str, float]]) -> None:
    """Whatever happens: since the newest report the controller has listened for the limit, or there is no stall."""
    world = running()
    step, listened = 1, 0.0
    world.report(step)
    world.control()
    for what, seconds in deeds:
        if what == "report":
            step += 1
            world.report(step)
        elif what == "restart":
            world.restart_controller()
        elif what == "strain":
            world.strained_at = world.now
        elif what in ("distrust", "trust"):
            world.trusted = what == "trust"
        elif what == "silence":  # no controller runs
            world.now += seconds
            world.leading_since = world.now
            world.restart_controller()
        world.control()
        if what == "report":
            listened = 0.0
            assert world.status.stall is None
        world.pass_s(seconds)
        listened += seconds if world.trusted else 0.0
        if world.status.stall is not None:
            assert listened >= 300 - 1e-6


def test_the_median_is_that_of_reported_steps_and_outlasts_an_attempt() -> None:
    book = ProgressBook()
    at = 1000.0
    for step, took_s in enumerate([100.0, 2.0, 2.0, 300.0, 2.0]):
        at += took_s
        book.report("job", 1, step, None, {}, at)
        book.report("job", 1, step, None, {}, at + 1)  # the same step again is a sign of life, and not a step
    newest = book.newest("job", 1)
    assert newest is not None
    assert newest.step_seconds == 2.0
    book.report("job", 2, 0, None, {}, at + 5000)
    newest = book.newest("job", 2)
    assert newest is not None
    assert (newest.step_seconds, newest.attempt) == (2.0, 2)
