"""What the operator sees the Event about a job."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec.structs import replace
from rich.console import Console

from muster.api.training_job import TrainingJob, TrainingJobSpec
from muster.api.training_job_status import (
    CheckpointStatus,
    Fault,
    Progress,
    RankState,
    Restarts,
    Stall,
    Timeline,
    TrainingJobStatus,
)
from muster.cli.jobs import describe
from muster.cli.jobs.follow import render
from muster.kube.objects.meta import Condition, ObjectMeta

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def job(**status: object) -> TrainingJob:
    return TrainingJob(
        metadata=ObjectMeta(name="train", namespace="default"),
        spec=TrainingJobSpec(replicas=4, command=("python3", "train.py"), image="x"),
        status=TrainingJobStatus(**status),  # type: ignore[arg-type]
    )


FAULT = Fault(
    attempt=1,
    slot=2,
    node="node-2",
    cause="infrastructure",
    rule="node-lost",
    message="the node stopped answering",
    time=at(0),
    slots=1,
    steps_lost=3,
    timeline=Timeline(fault=at(0), detected=at(2), stopped=at(2.5), running=at(4)),
)
USEFUL = msgspec.structs.replace(
    FAULT, timeline=Timeline(fault=at(0), detected=at(2), stopped=at(2.5), running=at(4), useful=at(5))
)


def test_stages_are_the_time_between_the_moments_that_are_known() -> None:
    assert describe.stages(FAULT.timeline) == [("detected", 2.0), ("stopped", 0.5), ("running", 1.5)]
    assert describe.stages(None) == []
    assert describe.time_to_useful_s(FAULT) is None
    assert describe.time_to_useful_s(USEFUL) == 5.0


def test_a_fault_says_where_whose_by_which_rule_and_what_it_cost() -> None:
    assert describe.fault_headline(FAULT) == ("attempt 1 ended at slot 2 on node-2: infrastructure, rule node-lost")
    assert list(describe.fault_details(USEFUL)) == [
        "the node stopped answering",
        "1 slot replaced, 3 steps done again",
        "useful again after 5.0s (detected 2.0s + stopped 0.5s + running 1.5s + useful 1.0s)",
    ]


def test_slots_that_are_kept_are_counted_once_it_is_certain() -> None:
    """Issue 11.26: the demo said "4 of 4 slots kept" and later "3 of 4": evidence came in between."""
    early = msgspec.structs.replace(FAULT, slots=0, steps_lost=None, timeline=Timeline(fault=at(0), detected=at(2)))
    assert not any("kept" in line for line in describe.fault_details(early))
    before, running = job(phase="Running", attempt=1), job(phase="Running", attempt=2, slots_kept=3, faults=(FAULT,))
    restarting = job(phase="Restarting", attempt=2, slots_kept=4, faults=(early,))
    said = describe.events(before, restarting) + describe.events(restarting, running)
    assert [line for line in said if "kept" in line] == ["attempt 2: 3 of 4 slots kept their pods"]


def test_the_same_last_lines_are_shown_once() -> None:
    trace = "its last lines:\nTraceback (most recent call last):\nKeyError: 'x'"
    said = [
        f"rank 0 ended: KeyError: 'x'\n{trace}",
        "the node stopped answering",
        f"rank 5 ended: KeyError: 'x'\n{trace}",
        "rank 0 ended: OSError\nits last lines:\nOSError",
        f"rank 2 ended: KeyError: 'x'\n{trace}",
    ]
    faults = [
        msgspec.structs.replace(FAULT, attempt=attempt, message=text) for attempt, text in enumerate(said, start=1)
    ]
    reported_now = describe.newest_first(faults)
    assert [fault.attempt for fault in reported_now] == [5, 4, 3, 2, 1]
    assert [fault.message for fault in reported_now] == [
        said[4],
        said[3],
        "rank 5 ended: KeyError: 'x'\nits last lines: same as attempt 5",
        said[1],
        "rank 0 ended: KeyError: 'x'\nits last lines: same as attempt 5",
    ]


def test_a_stage_that_was_over_early_took_no_time() -> None:
    timeline = Timeline(fault=at(0), detected=at(1), stopped=at(3), placed=at(1.5), ready=at(4))
    assert describe.stages(timeline) == [("detected", 1.0), ("stopped", 2.0), ("placed", 0.0), ("ready", 1.0)]


def test_changed_verdict_is_reported_again() -> None:
    first = msgspec.structs.replace(FAULT, cause="unknown", rule="launcher-failed", slot=0)
    before = job(phase="Running", attempt=2, faults=(first,))
    after = job(phase="Running", attempt=2, faults=(FAULT,))
    assert describe.events(before, after) == ["attempt 1 ended at slot 2 on node-2: infrastructure, rule node-lost"]


def test_each_event_is_reported_once() -> None:
    first = job(phase="Running", attempt=1)
    second = job(phase="Restarting", attempt=2, slots_kept=3, faults=(FAULT,))
    third = job(phase="Running", attempt=2, slots_kept=3, faults=(USEFUL,))
    assert describe.events(None, first) == ["Running"]
    assert describe.events(first, first) == []
    assert describe.events(first, second) == [
        "attempt 1 ended at slot 2 on node-2: infrastructure, rule node-lost",
        "attempt 2",
        "Restarting",
    ]
    assert describe.events(second, third) == [
        "useful again 5.0s after the fault of attempt 1",
        "Running",
        "attempt 2: 3 of 4 slots kept their pods",
    ]
    assert describe.events(third, third) == []


ENDED = msgspec.structs.replace(FAULT, cause="user", timeline=Timeline(fault=at(0), detected=at(1), stopped=at(2)))


def test_attempt_that_never_started_is_not_reported() -> None:
    over = Restarts(user=4, total=4)
    said = "attempt 1 ended (exit-code, slot 2); backoffLimit 3 is used up: ..."
    before = job(phase="Running", attempt=1)
    settling = job(phase="Restarting", attempt=2, slots_kept=4, faults=(ENDED,), restarts=over, message=said)
    after = job(phase="Failed", attempt=2, slots_kept=4, faults=(ENDED,), restarts=over, message="backoffLimit 3 ...")
    assert [describe.attempt(each) for each in (before, settling, after)] == [1, 1, 1]
    assert describe.events(before, settling) == [describe.fault_headline(ENDED), said]
    assert describe.events(settling, after) == ["Failed: backoffLimit 3 ..."]
    assert list(describe.fault_details(ENDED, final=True)) == ["the node stopped answering"]


def test_an_attempt_that_came_counts_however_the_job_ended() -> None:
    within = Restarts(user=1, total=1)
    assert describe.attempt(job(phase="Restarting", attempt=2, faults=(ENDED,), restarts=within)) == 2
    assert describe.attempt(job(phase="Failed", attempt=2, faults=(FAULT,), restarts=within)) == 2  # the time limit
    assert describe.attempt(job(phase="Failed", attempt=2, faults=(ENDED,), restarts=within)) == 1  # it, while waiting
    assert describe.attempt(job(phase="Failed", attempt=3, faults=(ENDED,))) == 3  # stopped and resumed in between
    assert describe.attempt(job(phase="Failed", attempt=1)) == 1


def test_new_checkpoint_is_reported() -> None:
    before = job(phase="Running", attempt=1)
    after = job(phase="Running", attempt=1, last_checkpoint=CheckpointStatus(path="/c/40", step=40))
    assert describe.events(before, after) == ["checkpoint at step 40"]


def test_scripts_find_the_phase_even_where_it_is_the_default() -> None:
    assert describe.as_data(job())["status"] == {"phase": "Pending", "attempt": 0, "readySlots": 0}
    assert describe.as_data(job(phase="Running", attempt=2))["status"]["phase"] == "Running"


def test_fault_beyond_the_limit_does_not_count_as_restart() -> None:
    assert describe.restarts_text(job()) == ""
    once = job(restarts=Restarts(user=1, total=1))
    assert describe.restarts(once) == 1
    assert describe.restarts_text(once).startswith("1 of 3 by the program, 0 of 50 by infrastructure, 0 of 5 by unk")
    over = job(restarts=Restarts(user=4, infrastructure=2, total=6), phase="Failed")
    assert describe.restarts(over) == 5
    assert describe.restarts_text(over).startswith("3 of 3 by the program, 2 of 50 by infrastructure")
    assert describe.restarts_text(over).endswith("; then the program once more, beyond the limit")


def test_progress_on_one_line() -> None:
    assert describe.progress_text(job()) == ""
    running = job(progress=Progress(step=41, total_steps=200, metrics={"loss": 0.123456, "accuracy": 0.9}))
    assert describe.progress_text(running) == "step 41 of 200  accuracy 0.9  loss 0.1235"
    reported = job(progress=Progress(step=40, total_steps=200, time=START))
    assert describe.progress_text(reported, at(12)) == "step 40 of 200, 12s ago"


def test_a_stall_and_ranks_that_do_not_run_are_said_everywhere() -> None:
    """Issue 11.3: `status` prints these texts, `list` the last one, `--follow` the events."""
    stall = Stall(attempt=1, step=40, since=START, suspicion="rank 1 printed a traceback:\nE", message="for people")
    idle = (RankState(rank=1, state="stopped", slot=1, node="node-1"),)
    running = job(phase="Running", attempt=1, progress=Progress(step=40, time=START))
    stuck = replace(running, status=replace(running.status, stall=stall, idle_ranks=idle))
    assert describe.stall_text(stuck, at(360)) == "no step for 6m after step 40; rank 1 printed a traceback:\nE"
    assert describe.idle_ranks(stuck) == ["rank 1 (slot 1 on node-1) is stopped (SIGSTOP or a debugger)"]
    assert describe.reported_text(stuck).endswith("ago, stalled")
    assert [each.partition(" for ")[0] for each in describe.events(running, stuck)[:1]] == ["no step"]
    assert describe.events(stuck, running) == ["the program reports again"]
    over = replace(stuck, status=replace(stuck.status, phase="Failed"))
    assert (describe.stall_text(over), describe.idle_ranks(over)) == ("", [])


def test_a_stall_that_an_earlier_version_wrote_has_its_suspicion_in_the_message() -> None:
    message = "no step for 5 min after step 40; rank 1 printed a traceback:\nE"
    stuck = job(phase="Running", attempt=1, stall=Stall(attempt=1, step=40, since=START, message=message))
    assert describe.stall_text(stuck, at(360)) == "no step for 6m after step 40; rank 1 printed a traceback:\nE"


def test_next_step_fits_the_phase_and_the_command_name() -> None:
    assert describe.next_steps(job(phase="Pending"), "kubectl muster")[0].startswith("kubectl muster explain train")
    assert any("resume train" in step for step in describe.next_steps(job(phase="Suspended")))
    assert any("logs train" in step for step in describe.next_steps(job(phase="Failed")))


def test_a_restarting_job_that_lacks_nodes_is_to_be_explained() -> None:
    lacks = Condition(type="Admitted", status="False", reason="NotEnoughNodes")
    waits = job(phase="Restarting", attempt=2, conditions=(lacks,))
    assert describe.next_steps(waits)[0].startswith("muster explain train")
    assert describe.next_steps(job(phase="Restarting", attempt=2))[0].startswith("muster logs train")


def test_times_do_not_call_a_wait_or_a_stop_running() -> None:
    """Issue 11: a suspended job "ran" for as long as it was suspended."""
    suspended = job(phase="Suspended", start_time=at(5))
    assert describe.times_text(suspended, at(65)) == "- ago, started 60s ago"
    ended = job(phase="Succeeded", start_time=at(5), completion_time=at(35))
    assert describe.times_text(ended, at(65)) == "- ago, started 60s ago, ended 30s ago"


def test_only_success_exits_with_zero() -> None:
    assert describe.exit_status(job(phase="Succeeded")) == 0
    assert describe.exit_status(job(phase="Failed")) == 1
    assert [describe.finished(job(phase=phase)) for phase in ("Running", "Succeeded", "Failed", "Suspended")] == [
        False, True, True, False,
    ]  # fmt: skip


def test_the_live_display_shows_where_the_job_stands_at_any_width() -> None:
    running = job(
        phase="Running",
        attempt=2,
        ready_slots=4,
        progress=Progress(step=50, total_steps=200, metrics={"loss": 0.5}),
        last_checkpoint=CheckpointStatus(path="/c/40", step=40),
    )
    for width in (20, 80, 200):
        screen = io.StringIO()
        Console(file=screen, width=width, force_terminal=True, color_system=None).print(render(running))
        shown = " ".join(screen.getvalue().split())
        assert "train" in shown
        assert all(len(line) <= width for line in screen.getvalue().splitlines())
    for wanted in ("Running", "attempt 2", "4/4 slots ready", "step 50 of 200 loss 0.5", "checkpoint at step 40"):
        assert wanted in shown
