"""Issue 11.2: where a job keeps its checkpoints is fixed when it first starts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from muster.api.checkpoint_dir import folder_of, own_folder
from muster.api.training_job_status import TrainingJobStatus
from muster.trainingjobs.pods.pod import build_pod
from tests.unit.trainingjobs.world import PODS, World, make_job


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/shared/ckpt", "/shared/ckpt/train-1a2b3c4d"),
        ("/shared/ckpt/", "/shared/ckpt/train-1a2b3c4d"),
        ("/", "/train-1a2b3c4d"),
        ("ckpt", "ckpt/train-1a2b3c4d"),
        ("s3://bucket", "s3://bucket/train-1a2b3c4d"),
        ("s3://bucket/a/?endpoint=x", "s3://bucket/a/train-1a2b3c4d?endpoint=x"),
    ],
)
def test_a_folder_or_url_gets_a_part_for_the_job(path: str, folder: str) -> None:
    assert own_folder(path, "train", "1a2b3c4d-5678-90ab-cdef-000000000000") == folder


def given(world: World) -> str | None:
    """What the pods of the job are given."""
    assert world.job is not None
    pod = build_pod(world.job, 0, 1, (), PODS)
    env = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    return env.get("MUSTER_CHECKPOINT_DIR")


def test_it_is_recorded_with_the_first_attempt_and_stays() -> None:
    world = World(make_job(2, checkpoint={"path": "/c"})).started()
    assert world.status.checkpoint_dir == "/c/job-job-uid"
    assert given(world) == "/c/job-job-uid"
    world.exit_rank(0, 1)
    world.until("Running", attempt=2)
    assert given(world) == "/c/job-job-uid"
    assert world.job is not None
    world.job = replace(world.job, spec=replace(world.job.spec, checkpoint=None))
    assert given(world) == "/c/job-job-uid"


def test_a_job_that_is_created_suspended_gets_it_when_it_first_starts() -> None:
    world = World(make_job(2, checkpoint={"path": "/c"}, suspend=True))
    world.until("Suspended")
    assert world.status.checkpoint_dir == ""
    assert world.job is not None
    world.job = replace(
        world.job, spec=replace(world.job.spec, suspend=False), metadata=replace(world.job.metadata, generation=2)
    )
    world.until("Running")
    assert world.status.checkpoint_dir == "/c/job-job-uid"


def test_a_job_of_an_earlier_version_keeps_the_path_itself() -> None:
    world = World(make_job(2, checkpoint={"path": "/c"})).started()
    assert world.job is not None
    world.job = replace(world.job, status=replace(world.status, checkpoint_dir=""))
    assert given(world) == "/c"
    world.exit_rank(0, 1)
    world.until("Running", attempt=2)
    assert (world.status.checkpoint_dir, given(world)) == ("", "/c")


def test_a_job_without_checkpoints_has_none() -> None:
    world = World(make_job(2)).started()
    assert (world.status.checkpoint_dir, given(world)) == ("", None)
    assert folder_of(replace(make_job(2), status=TrainingJobStatus())) == ""
