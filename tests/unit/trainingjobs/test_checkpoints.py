"""Issue 11.21: what an attempt starts from when checkpoints are gone. Issue 11.2: starting from another job's."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from muster.api.training_job import TrainingJob
from muster.api.training_job_status import CheckpointSource, CheckpointStatus, Progress, TrainingJobStatus
from muster.api.validate import validate
from muster.trainingjobs.attempts.checkpoints import known, with_newest
from muster.trainingjobs.plan import Directive, RecordEvent
from muster.trainingjobs.pods.pod import build_pod
from tests.unit.trainingjobs.world import PODS, World, make_job, moment


def saved(*steps: int, **spec: Any) -> World:
    """A job that runs and has saved these checkpoints, oldest first."""
    limits = {"backoffLimit": 0, "unknownLimit": 9, **spec}
    world = World(make_job(2, checkpoint={"path": "/c"}, **limits)).started()
    for step in steps:
        world.checkpoint(step)
    return world


def restarted(world: World, attempt: int = 2) -> tuple[str, list[str]]:
    """Its node fails; the checkpoint that the next attempt is given, and what Events say of checkpoints."""
    world.kill_node("n0")
    world.node_ready("n0", False)
    world.until("Running", attempt=attempt)
    said = [each.message for each in world.actions(RecordEvent) if each.reason.startswith("Checkpoint")]
    return handed(world.directive), said


def handed(directive: Directive | None) -> str:
    assert directive is not None
    assert directive.run is not None
    return directive.run.checkpoint.path if directive.run.checkpoint is not None else ""


def test_the_newest_that_is_there_is_used() -> None:
    world = saved(10, 20, 30)
    world.disk = {"/10", "/20"}
    path, said = restarted(world)
    assert path == "/20"
    assert said == [
        "confirmed checkpoints are gone, as every node reports: step 30 (/30); attempt 2 starts from the next older "
        "one: step 20 (/20)"
    ]
    assert said[0] in world.status.message
    assert [each.step for each in world.status.checkpoints] == [20, 10]
    assert world.status.last_checkpoint == world.status.checkpoints[0]
    assert world.status.restarts is not None
    assert world.status.restarts.user == 0


def test_where_all_is_well_nothing_is_said() -> None:
    world = saved(10, 20)
    world.disk = {"/20"}  # older ones are removed by the job itself
    assert restarted(world) == ("/20", [])
    assert [each.step for each in world.status.checkpoints] == [20, 10]


def test_without_a_checkpoint_it_starts_from_the_beginning_and_says_so() -> None:
    world = saved(10, 20)
    world.disk = set()
    path, said = restarted(world)
    assert path == ""
    assert "step 20 (/20), step 10 (/10); no other is left, so attempt 2 starts from the BEGINNING" in said[0]
    assert (world.status.last_checkpoint, world.status.checkpoints) == (None, ())


def test_one_that_is_not_listed_any_more_is_better_than_the_beginning() -> None:
    world = saved(10, 20)
    world.disk, world.found = set(), CheckpointSource(job="job", uid="job-uid", path="/c/5", step=5)
    path, said = restarted(world)
    assert path == "/c/5"
    assert "attempt 2 starts from the next older one: step 5 (/c/5)" in said[0]
    assert [each.path for each in world.status.checkpoints] == ["/c/5"]


def test_supervisors_that_cannot_judge_leave_it_as_it_was() -> None:
    world = saved(10, 20)
    assert restarted(world) == ("/20", [])


def test_one_node_that_sees_it_is_enough() -> None:
    world = saved(10, 20)
    world.disk = set()
    world.kill_node("n0")
    world.node_ready("n0", False)
    supervise = world.supervise

    def sees_on_slot_1(pod: Any) -> None:
        world.disk = {"/20"} if pod.metadata.labels["muster.dev/slot"] == "1" else set()
        supervise(pod)

    world.supervise = sees_on_slot_1  # type: ignore[method-assign]
    world.until("Running", attempt=2)
    assert handed(world.directive) == "/20"


def test_an_attempt_does_not_begin_while_a_node_still_looks() -> None:
    world = saved(10)
    world.kill_node("n0")
    world.node_ready("n0", False)
    supervise = world.supervise

    def looks(pod: Any) -> None:
        supervise(pod)
        if pod.uid in world.members:
            world.members[pod.uid] = replace(world.members[pod.uid], looking=True)

    world.supervise = looks  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="Restarting and not Running"):
        world.until("Running", attempt=2)
    world.supervise = supervise  # type: ignore[method-assign]
    for uid, member in world.members.items():
        world.members[uid] = world.remembered[uid] = replace(member, looking=False)
    world.until("Running", attempt=2)


def test_the_list_is_bounded_and_names_each_path_once() -> None:
    status = TrainingJobStatus()
    for step in (1, 2, 3, 3, 4, 5, 6, 7):
        newest = CheckpointStatus(path=f"/{step}", step=step)
        status = replace(status, checkpoints=with_newest(status, newest), last_checkpoint=newest)
    assert [each.step for each in status.checkpoints] == [7, 6, 5, 4, 3]
    long = CheckpointStatus(path="/" + "x" * 4090, step=8)
    assert with_newest(status, long) == (long, *status.checkpoints[:2])
    old = CheckpointStatus(path="/old", step=1)
    assert known(TrainingJobStatus(last_checkpoint=old)) == (old,), "of a job of an earlier version"


# -- deleted between the look and the load


def handed_40(**spec: Any) -> World:
    """Its attempt 2 runs from the checkpoint of step 40, which the nodes saw; an older one is there too."""
    world = saved(20, 40, **spec)
    world.disk = {"/20", "/40"}
    path, _ = restarted(world)
    assert path == "/40"
    world.step()
    return world


def test_a_program_that_did_not_find_the_checkpoint_it_was_handed_is_not_charged() -> None:
    """Issue 11.21: it was deleted after the supervisors had looked."""
    world = handed_40()
    assert world.disk is not None
    world.disk.discard("/40")
    world.exit_rank(0, 1, tail="FileNotFoundError: /40")
    world.until("Running", attempt=3)
    assert handed(world.directive) == "/20"
    fault = world.status.faults[-1]
    assert (fault.rule, fault.cause, fault.attempt) == ("checkpoint-gone", "infrastructure", 2)
    assert "step 40 that attempt 2 began from is gone" in fault.message
    assert "FileNotFoundError: /40" in fault.message
    assert world.status.restarts is not None
    assert (world.status.restarts.user, world.status.restarts.infrastructure) == (0, 2)
    assert world.status.backoff is None or world.status.backoff.until is None
    assert [each.reason for each in world.actions(RecordEvent)].count("CheckpointGone") == 1


def sees(world: World, by_slot: dict[int, set[str]]) -> None:
    """From now on the nodes of these slots see these checkpoints."""
    supervise = world.supervise

    def of_its_slot(pod: Any) -> None:
        world.disk = by_slot[int(pod.metadata.labels["muster.dev/slot"])]
        supervise(pod)

    world.supervise = of_its_slot  # type: ignore[method-assign]


def test_checkpoint_deleted_on_the_failing_node_alone_is_not_charged_to_the_program() -> None:
    """Another node still sees it, and the failing node sees an older one. All ranks continue from the older one."""
    world = handed_40()
    sees(world, {0: {"/20"}, 1: {"/20", "/40"}})
    node = world.holder(0).spec.node_name
    world.exit_rank(0, 1, tail="FileNotFoundError: /40")
    world.until("Running", attempt=3)
    fault = world.status.faults[-1]
    assert (fault.rule, fault.cause, fault.node) == ("checkpoint-gone-here", "infrastructure", node)
    assert f"is gone on {node}: /40" in fault.message
    assert "FileNotFoundError: /40" in fault.message
    assert handed(world.directive) == "/20"
    assert world.holder(0).spec.node_name == node
    assert world.status.restarts is not None
    assert world.status.restarts.user == 0
    (said,) = [each.message for each in world.actions(RecordEvent) if each.reason == "CheckpointGone"]
    assert f"gone on {node}: step 40 (/40); attempt 3 starts from the next older one: step 20" in said


def test_node_that_lost_all_checkpoints_is_replaced_and_the_job_continues_from_the_newest() -> None:
    world = handed_40()
    sees(world, {0: set(), 1: {"/20", "/40"}})
    node = world.holder(0).spec.node_name
    world.exit_rank(0, 1, tail="FileNotFoundError: /40")
    world.until("Running", attempt=3)
    fault = world.status.faults[-1]
    assert (fault.rule, fault.cause, fault.node) == ("checkpoints-lost-here", "infrastructure", node)
    assert node in world.status.excluded_nodes
    assert world.holder(0).spec.node_name != node
    assert handed(world.directive) == "/40"


def test_folders_that_differ_from_the_start_do_not_excuse_a_failing_rank() -> None:
    """Each node has its own folder, and only rank 0 reads checkpoints. So a missing one explains nothing."""
    world = saved(20, 40)
    sees(world, {0: set(), 1: {"/20", "/40"}})
    world.kill_node("n0")
    world.node_ready("n0", False)
    world.until("Running", attempt=2)
    world.step()
    assert handed(world.directive) == "/40"
    world.exit_rank(0, 1, tail="boom")
    world.until("Failed")
    assert world.status.faults[-1].rule == "rank-failed"


@pytest.mark.parametrize("what", ["it is there", "its node sees it", "it had read it", "it has saved since"])
def test_other_failures_are_charged_to_the_program(what: str) -> None:
    """Issue 11.21: unless the checkpoint's absence explains the failure."""
    world = handed_40()
    if what == "it had read it":
        world.progress = Progress(step=41, time=moment(world.now))
    if what == "it has saved since":
        world.checkpoint(50)
    if what in ("it had read it", "it has saved since"):
        world.disk = {"/50"}
    if what == "its node sees it":
        sees(world, {0: {"/40"}, 1: set()})
    world.exit_rank(0, 1, tail="boom")
    world.until("Failed")
    assert world.status.faults[-1].rule == "rank-failed"
    assert world.status.message.startswith("backoffLimit 0 is used up")


def test_a_program_that_deletes_what_it_is_handed_restarts_a_bounded_number_of_times() -> None:
    """Issue 11.21: each attempt saves a checkpoint if it was handed none, and deletes the one it was handed."""
    world = saved(1, 2, 3, 4, 5, backoffLimit=3, infrastructureLimit=1000)
    world.disk = {f"/{step}" for step in range(1, 6)}
    world.kill_node("n0")
    world.node_ready("n0", False)
    for attempt in range(2, 20):
        for _ in range(300):
            world.control()
            if (world.status.phase, world.status.attempt) == ("Running", attempt) or world.status.phase == "Failed":
                break
            world.step()
        if world.status.phase == "Failed":
            break
        world.step()
        path = handed(world.directive)
        world.disk.discard(path)
        if not path:
            world.checkpoint(attempt + 10)
            world.disk.add(f"/{attempt + 10}")
        world.exit_rank(0, 1, tail="boom")
        world.control()
    assert world.status.phase == "Failed"
    assert [fault.rule for fault in world.status.faults].count("checkpoint-gone") <= 3
    assert "backoffLimit 3 is used up" in world.status.message


def test_an_event_names_other_jobs_checkpoints_that_a_job_leaves_alone() -> None:
    """Issue 11.2: the command and the log said so, and no Event did."""
    world = World(make_job(2, checkpoint={"path": "/c"}))
    world.others = (CheckpointSource(job="old", uid="u", path="/c/old-1a2b3c4d/step-7", step=7),)
    world.started()
    (said,) = [each for each in world.actions(RecordEvent) if each.reason == "OtherCheckpoints"]
    assert not said.warning
    assert said.message == (
        "/c holds checkpoints of job old, step 7 (/c/old-1a2b3c4d/step-7). This job starts from the beginning, in "
        "/c/job-job-uid, and leaves them alone. To continue from the first: --from-checkpoint /c/old-1a2b3c4d/step-7"
    )
    world.log.clear()
    world.checkpoint(10)
    restarted(world)
    assert [each.reason for each in world.actions(RecordEvent)].count("OtherCheckpoints") == 0


# -- from another job


def source(*steps: int) -> TrainingJob:
    job = saved(*steps).job
    assert job is not None
    return replace(job, metadata=replace(job.metadata, name="other", uid="other-uid"))


def starting(**source: str) -> World:
    world = World(make_job(2, checkpoint={"path": "/c", "from": source}))
    world.disk = set()
    return world


def env_of(world: World) -> dict[str, str]:
    assert world.job is not None
    pod = build_pod(world.job, 0, 1, (), PODS)
    return {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}


def test_a_job_starts_from_the_newest_checkpoint_of_another() -> None:
    world = starting(job="other")
    world.source, world.disk = source(10, 20), {"/10", "/20"}
    world.until("Running")
    assert handed(world.directive) == "/20"
    assert world.status.checkpoint_source == CheckpointSource(job="other", uid="other-uid", path="/20", step=20)
    assert "starts from job other's checkpoint of step 20: /20" in world.status.message
    assert "MUSTER_CHECKPOINT_FROM_JOB" not in env_of(world)
    world.source = source(30)  # resolved once
    path, _ = restarted(world)
    assert path == "/20"
    world.checkpoint(21)
    world.disk.add("/21")
    world.kill_node("n1")
    world.node_ready("n1", False)
    world.until("Running", attempt=3)
    assert handed(world.directive) == "/21"


def test_it_waits_for_the_first_checkpoint_of_a_job_that_has_none_yet() -> None:
    world = starting(job="other")
    world.source = source()
    world.control()
    assert (world.status.phase, world.status.attempt) == ("Pending", 0)
    assert world.status.message == "job other has not confirmed a checkpoint yet; this job starts from its first one"
    assert world.plan().wake_at is not None
    ended = source()
    world.source = replace(ended, status=replace(ended.status, phase="Failed", completion_time=moment(world.now)))
    world.control()
    assert "has ended without a checkpoint that can be restored" in world.status.message
    world.source, world.disk = source(5), {"/5"}
    world.until("Running")
    assert handed(world.directive) == "/5"


@pytest.mark.parametrize("named", [{"job": "other"}, {"path": "/c/other-1a2b3c4d"}])
def test_of_a_deleted_job_or_a_path_the_nodes_find_it(named: dict[str, str]) -> None:
    world = starting(**named)
    world.found = CheckpointSource(job="other", uid="u", path="/c/other-1a2b3c4d/step-7", step=7)
    world.control()
    env = env_of(world)
    assert (env["MUSTER_CHECKPOINT_FROM_JOB"], env["MUSTER_CHECKPOINT_FROM_PATH"]) == (
        named.get("job", ""),
        named.get("path", ""),
    )
    assert env["MUSTER_CHECKPOINT_ROOT"] == "/c"
    world.until("Running")
    assert handed(world.directive) == "/c/other-1a2b3c4d/step-7"
    assert world.status.checkpoint_source == world.found
    assert world.status.start_time is not None


@pytest.mark.parametrize("named", [{"job": "other"}, {"path": "/nowhere"}])
def test_a_job_never_starts_from_the_beginning_instead(named: dict[str, str]) -> None:
    world = starting(**named)
    world.until("Failed")
    assert "spec.checkpoint.from." in world.status.message
    assert world.status.restarts is None
    assert world.directed_run == set()


def test_nor_does_it_when_all_that_it_had_is_gone() -> None:
    world = starting(job="other")
    world.source, world.disk = source(10), {"/10"}
    world.until("Running")
    world.disk = set()
    world.kill_node("n0")
    world.node_ready("n0", False)
    world.until("Failed")
    assert "step 10 (/10); no " in world.status.message


def test_a_url_is_handed_over_as_it_is() -> None:
    world = starting(path="s3://bucket/step-40")
    world.until("Running")
    assert handed(world.directive) == "s3://bucket/step-40"


def test_a_source_that_is_named_after_the_first_start_changes_nothing() -> None:
    world = World(make_job(2, checkpoint={"path": "/c"}, suspend=False)).started()
    assert world.job is not None
    for generation, suspend in ((2, True), (3, False)):
        spec = make_job(2, checkpoint={"path": "/c", "from": {"job": "other"}}, suspend=suspend).spec
        world.job = replace(world.job, spec=spec, metadata=replace(world.job.metadata, generation=generation))
        world.until("Suspended" if suspend else "Running")
    assert (world.status.checkpoint_source, handed(world.directive)) == (None, "")


def test_a_job_whose_status_was_wiped_finds_its_own_checkpoint_again() -> None:
    """Issue 11.2: what a folder holds says by itself that it is this job's; issue 11.10: a wiped status."""
    world = starting(job="other")
    world.source, world.disk = source(10), {"/10"}
    world.until("Running")
    assert world.job is not None
    world.found = CheckpointSource(job="job", uid="job-uid", path="/c/job-job-uid/step-50", step=50)
    world.disk.add(world.found.path)
    world.job = replace(world.job, status=TrainingJobStatus())
    world.until("Running", attempt=2)
    assert handed(world.directive) == "/c/job-job-uid/step-50"
    assert [each.reason for each in world.actions(RecordEvent)].count("CheckpointRecovered") == 1
    world.checkpoint(60)
    world.disk.add("/60")
    assert [each.step for each in world.status.checkpoints] == [60, 50, 10]
    world.kill_node("n0")
    world.node_ready("n0", False)
    world.until("Running", attempt=3)
    assert handed(world.directive) == "/60", "the status knows more than what was found"


@pytest.mark.parametrize("named", [{}, {"job": "a", "path": "/b"}, {"job": "a/b"}, {"job": "Ab"}])
def test_exactly_one_source_is_named(named: dict[str, str]) -> None:
    job = make_job(2, checkpoint={"path": "/c", "from": named})
    assert [each.field.startswith("spec.checkpoint.from") for each in validate(job)] == [True]
