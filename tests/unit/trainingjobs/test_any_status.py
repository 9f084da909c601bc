"""Issue 11.10: every status that can be read leads somewhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from muster.api.run_record import FixedSpec, HandedCheckpoint, RunRecord, SlotRange
from muster.api.training_job_status import (
    Backoff,
    CheckpointStatus,
    Fault,
    Phase,
    Progress,
    Restarts,
    Timeline,
    TrainingJobStatus,
)
from muster.kube.objects.meta import Condition
from muster.trainingjobs.attempts import recovery
from muster.trainingjobs.faults.table import TABLE
from muster.trainingjobs.plan import RecordEvent
from muster.trainingjobs.pods.slots import slot_of
from muster.trainingjobs.snapshot import JobSnapshot, Member
from tests.unit.trainingjobs.world import T0, World, make_job

SIZE = 3
DONE = ("Running", "Suspended", "Succeeded", "Failed")
small = st.integers(-2, 5)
moments = st.none() | st.floats(-100_000, 100_000).map(lambda s: datetime.fromtimestamp(T0, UTC) + timedelta(seconds=s))
words = st.sampled_from(["", "n0", "n1", "n2", "n3", "gone", "Preempted", "Suspended", "Running", "x"])
slots = st.integers(-1, SIZE + 1)
timelines = st.builds(Timeline, **dict.fromkeys(Timeline.__struct_fields__, moments))
faults = st.builds(
    Fault,
    attempt=small,
    slot=slots,
    node=words,
    cause=st.sampled_from(["user", "infrastructure", "unknown"]),
    rule=st.sampled_from(["", "no-such-rule", *(row.id for row in TABLE)]),
    message=words,
    time=moments,
    step=st.none() | small,
    steps_lost=st.none() | small,
    slots=small,
    timeline=st.none() | timelines,
)
conditions = st.builds(
    Condition,
    type=st.sampled_from(["Admitted", "Running", "Complete", "Failed", "Suspended", "SpecIgnored", "Other"]),
    status=st.sampled_from(["True", "False", "Unknown", ""]),
    reason=words,
    message=words,
    last_transition_time=moments,
)
records = st.builds(
    RunRecord,
    attempt=small,
    launcher=st.sampled_from(["mpi", "torchrun", "none"]),
    launcher_slot=st.none() | slots,
    nodes=small,
    ranks_per_node=small,
    rank_order=st.lists(st.builds(SlotRange, first=slots, count=small), max_size=4).map(tuple),
    pods=words,
    master_address=words,
    master_port=small,
    checkpoint=st.none() | st.builds(HandedCheckpoint, path=words, step=small),
)
kept = st.builds(
    FixedSpec,
    values=st.dictionaries(st.sampled_from(["image", "command", "env", "x"]), words | small, max_size=3),
    too_large=st.dictionaries(st.sampled_from(["template", "command"]), words, max_size=1),
)
statuses = st.builds(
    TrainingJobStatus,
    phase=st.sampled_from(get_args(Phase)),
    conditions=st.lists(conditions, max_size=4, unique_by=lambda each: each.type).map(tuple),
    attempt=small,
    ran_attempt=small,
    ready_slots=small,
    size=small,
    left_out=st.lists(slots, max_size=3).map(tuple),
    fixed_spec=st.none() | kept,
    run=st.none() | records,
    restarts=st.none() | st.builds(Restarts, user=small, infrastructure=small, unknown=small, total=small),
    backoff=st.none() | st.builds(Backoff, failures=small, until=moments.filter(lambda m: m is None or m.year < 2028)),
    preemptions=small,
    progress=st.none() | st.builds(Progress, step=small, time=moments),
    last_checkpoint=st.none() | st.builds(CheckpointStatus, path=words, step=small, attempt=small, time=moments),
    faults=st.lists(faults, max_size=3).map(tuple),
    excluded_nodes=st.lists(words, max_size=3).map(tuple),
    slots_kept=st.none() | small,
    start_time=moments,
    completion_time=moments,
    message=words,
)


def settle(world: World) -> None:
    """Let everybody move until the job runs, or has ended; by then every deadline has passed."""
    for _ in range(200):
        world.control(rounds=30)
        world.step(10.0)
        if world.status.phase in DONE and (world.status.phase != "Running" or runs(world)):
            return
    pytest.fail(f"{world.status.phase} for ever: {world.status.message}")


def runs(world: World) -> bool:
    """Whether every rank of the attempt that the status speaks of runs."""
    part = {slot for slot in range(SIZE) if slot not in world.status.left_out}
    held = {slot_of(pod): pod.uid for pod in world.pods.values()}
    if not part <= set(held):
        return False
    members = [world.members.get(held[slot]) for slot in part]
    wanted = ("running", world.status.attempt)
    return bool(part) and all(each is not None and (each.state, each.attempt) == wanted for each in members)


@pytest.mark.parametrize("before", ["nothing", "pods", "runs", "runs again"])
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(status=statuses, launcher=st.sampled_from(["mpi", "none"]), forgotten=st.booleans())
def test_any_status_leads_somewhere(before: str, status: TrainingJobStatus, launcher: str, forgotten: bool) -> None:
    world = World(make_job(SIZE, launcher=launcher, checkpoint={"path": "/c"}), nodes=5)
    if before == "pods":
        world.control()
        world.step()
    elif before != "nothing":
        world.started()
    if before == "runs again":
        world.fail_pod(1, "Evicted")
        world.until("Running", attempt=2)
    assert world.job is not None
    world.job = replace(world.job, status=status)
    if forgotten:
        world.restart_controller()
    settle(world)


def test_a_status_that_was_wiped_begins_an_attempt_beyond_those_that_were() -> None:
    world = World(make_job(2)).started()
    world.fail_pod(1, "Evicted")
    world.until("Running", attempt=2)
    assert world.job is not None
    world.job = replace(world.job, status=TrainingJobStatus())
    world.until("Running", attempt=3)
    assert {member.attempt for member in world.members.values()} == {3}
    (event,) = [each for each in world.actions(RecordEvent) if each.reason == "StatusLost"]
    assert "it says attempt 0, and attempt 2 has been there; the job starts again as attempt 3" in event.message


@pytest.mark.parametrize("spec", [{}, {"noSpare": "Shrink", "minReplicas": 3}])
def test_left_out_slots_in_an_edited_status_do_not_let_a_job_run_with_fewer_nodes(spec: dict[str, Any]) -> None:
    world = World(make_job(SIZE, **spec), nodes=SIZE).started()
    world.kill_node(world.holder(1).spec.node_name)
    world.until("Restarting")
    world.control()
    world.step()
    assert world.job is not None
    world.job = replace(world.job, status=replace(world.status, left_out=(1,), size=SIZE - 1))
    for _ in range(5):
        world.step()
        world.control()
    assert (world.status.phase, world.status.left_out, world.status.size) == ("Restarting", (), SIZE)


def test_a_phase_that_was_changed_by_hand_restarts_the_ranks_uncharged() -> None:
    world = World(make_job(2)).started()
    assert world.job is not None
    world.job = replace(world.job, status=replace(world.status, phase="Starting"))
    world.until("Running", attempt=2)
    assert world.status.restarts is None
    assert "StatusLost" in [each.reason for each in world.actions(RecordEvent)]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_running_job_whose_phase_is_edited_to_an_end_runs_on(phase: Phase) -> None:
    """Issue 11.1: the ranks were stopped, and the job counted as Succeeded; with a TTL of 0 it was deleted."""
    world = World(make_job(2, ttlSecondsAfterFinished=0)).started()
    assert world.job is not None
    world.job = replace(world.job, status=replace(world.status, phase=phase))
    world.control()
    assert (world.status.phase, world.status.attempt, world.status.restarts) == ("Running", 1, None)
    assert {member.state for member in world.members.values()} == {"running"}
    assert "StatusLost" in [each.reason for each in world.actions(RecordEvent)]
    world.exit_rank(0, 0)
    world.exit_rank(1, 0)
    world.control()
    assert world.job is None, "it ended by itself, and its TTL is 0"


def test_an_ended_job_whose_phase_is_edited_back_stays_ended() -> None:
    world = World(make_job(2)).started()
    world.exit_rank(0, 0)
    world.exit_rank(1, 0)
    world.until("Succeeded", attempt=1)
    for phase in ("Running", "Pending", "Failed", "Suspended"):
        assert world.job is not None
        world.job = replace(world.job, status=replace(world.status, phase=phase))
        world.control()
        assert (world.status.phase, world.status.attempt) == ("Succeeded", 1)


def test_a_job_that_never_began_and_is_edited_to_an_end_begins() -> None:
    world = World(make_job(2))
    assert world.job is not None
    world.job = replace(world.job, status=TrainingJobStatus(phase="Succeeded"))
    world.until("Running", attempt=1)


def test_an_end_between_attempts_that_was_edited_leads_to_an_attempt() -> None:
    world = World(make_job(2)).started()
    world.fail_pod(1, "Evicted")
    world.control()
    assert world.status.phase == "Restarting"
    assert world.job is not None
    world.job = replace(world.job, status=replace(world.status, phase="Succeeded"))
    world.until("Running", attempt=3)


@pytest.mark.parametrize("node_rank", [-1, 0])
def test_supervisor_dismissed_before_its_ranks_began_is_not_a_contradiction(node_rank: int) -> None:
    """Issue 11.10: a gang was bound in part and given up, and a second restart was not charged (seed 345)."""
    job = make_job(name="train", replicas=1)
    job = replace(job, status=TrainingJobStatus(phase="Restarting", attempt=2))
    member = Member(pod_uid="p", state="stopping", attempt=2, node_rank=node_rank)
    actions = recovery.begin(JobSnapshot(job=job, pods=(), members={"p": member}), T0)
    assert bool(actions) == (node_rank >= 0)
