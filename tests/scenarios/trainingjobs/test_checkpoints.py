"""Issue 11.2: a checkpoint belongs to its job, also where jobs share a path. Issue 11.21: one that was deleted."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from muster.api.training_job import TrainingJob
from muster.api.training_job_status import TrainingJobStatus
from muster.kube.objects.core import Event
from tests.scenarios.trainingjobs.conftest import Arena
from tests.support.anyserver import BY_FILES, BY_RANKS
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SAVING = """
    import os, pathlib, time
    import muster
    folder = pathlib.Path({folder!r})
    mine = "{name}-%d" % muster.attempt()
    last = muster.last_checkpoint()
    step = int(pathlib.Path(last.path).read_text()) if last else 0
    (folder / ("began-" + mine)).write_text("%d %s" % (step, last.path if last else ""))
    (folder / ("pid-" + mine)).write_text(str(os.getpid()))
    while not (folder / "done").exists():
        step += 1
        muster.report(step=step, total_steps=1000)
        if step % 2 == 0 and step < {last_saved}:
            muster.save_checkpoint(step, lambda path: pathlib.Path(path).write_text(str(step)))
        time.sleep(0.05)
"""


LOADING = """
    import pathlib, time
    import muster
    folder = pathlib.Path({folder!r})
    last = muster.last_checkpoint()
    (folder / ("handed-%d" % muster.attempt())).write_text(last.path if last else "-")
    while muster.attempt() == 2 and not (folder / "deleted").exists():
        time.sleep(0.05)
    step = int(pathlib.Path(last.path).read_text()) if last else 0
    while not (folder / "done").exists():
        step += 1
        if step < 5:
            muster.save_checkpoint(step, lambda path: pathlib.Path(path).write_text(str(step)))
        time.sleep(0.05)
"""
"""Its second attempt reads the checkpoint only after a user had time to delete it; it never reports a step."""


class Saving:
    """Jobs on one node each that save to one and the same path."""

    def __init__(self, arena: Arena) -> None:
        self.arena, self.folder = arena, arena.folder
        self.path = self.folder / "checkpoints"

    async def submit(self, name: str, *, last_saved: int = 10**6, checkpoint: object = None) -> None:
        program = SAVING.format(folder=str(self.folder), name=name, last_saved=last_saved)
        checkpoint = {"path": str(self.path)} | (checkpoint if isinstance(checkpoint, dict) else {})
        await self.arena.submit(name, program, replicas=1, backoffLimit=0, unknownLimit=3, checkpoint=checkpoint)

    async def saved(self, name: str, step: int, attempt: int = 1) -> TrainingJobStatus:
        """The status once this attempt has a confirmed checkpoint of this step or a later one."""
        return await self.arena.reaches(
            name,
            lambda status: (
                status.last_checkpoint
                and status.last_checkpoint.step >= step
                and status.last_checkpoint.attempt == attempt
            ),
        )

    async def began(self, name: str, attempt: int) -> tuple[int, str]:
        """The step and the path that an attempt began from."""
        path = self.folder / f"began-{name}-{attempt}"

        async def written() -> bool:
            return path.exists() and bool(path.read_text())

        await until(f"attempt {attempt} of {name} began", written)
        step, _, where = path.read_text().partition(" ")
        return int(step), where

    def kill(self, name: str, attempt: int) -> None:
        """Its rank is killed."""
        os.kill(int((self.folder / f"pid-{name}-{attempt}").read_text()), signal.SIGKILL)

    async def end(self, *names: str) -> None:
        (self.folder / "done").touch()
        for name in names:
            await self.arena.phase(name, "Succeeded")


def delete(path: str) -> None:
    """As a person would."""
    shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()


def there(path: str) -> bool:
    return Path(path).exists()


def in_folder(path: str) -> list[str]:
    return sorted(each.name for each in Path(path).glob("step-*"))


@pytest.fixture
def saving(arena: Arena) -> Saving:
    return Saving(arena)


@BY_RANKS
async def test_two_jobs_with_one_path_keep_all_their_confirmed_checkpoints(saving: Saving) -> None:
    """Issue 11.2: pruning by one job deleted the other's; after a fault that one failed and was charged."""
    await saving.submit("one", last_saved=5)  # it saves at 2 and 4, then runs on
    await saving.submit("two")
    one, two = await saving.saved("one", 4), await saving.saved("two", 20)
    assert one.last_checkpoint is not None
    assert two.last_checkpoint is not None
    for name in ("one", "two"):
        saving.kill(name, 1)
    assert await saving.began("one", 2) == (4, one.last_checkpoint.path)
    step, where = await saving.began("two", 2)
    assert step >= two.last_checkpoint.step
    assert there(where)
    two = await saving.saved("two", step + 8, attempt=2)
    for name in ("one", "two"):
        await saving.arena.phase(name, "Running", 2)
    jobs = {name: await saving.arena.job(name) for name in ("one", "two")}
    for name, job in jobs.items():
        assert job.status.checkpoint_dir == f"{saving.path}/{name}-{job.uid[:8]}"
        assert job.status.restarts is not None
        assert (job.status.restarts.total, job.status.phase) == (1, "Running")
    assert in_folder(jobs["one"].status.checkpoint_dir) == ["step-00000002-attempt-1", "step-00000004-attempt-1"]
    assert there(where), "the one that this attempt began from stays"
    await saving.submit("three")
    assert await saving.began("three", 1) == (0, "")

    async def said() -> bool:
        events = (await saving.arena.client.list(Event, saving.arena.namespace)).items
        found = [each for each in events if each.reason == "OtherCheckpoints" and each.involved_object.name == "three"]
        return any("of job two, step" in each.message and "--from-checkpoint" in each.message for each in found)

    await until("an Event names the checkpoints of the other jobs", said)
    await saving.end("one", "two", "three")


async def suspended(saving: Saving, name: str, suspend: bool) -> None:
    patch = {"spec": {"suspend": suspend}}
    await saving.arena.client.patch(TrainingJob, name, patch, namespace=saving.arena.namespace)


@BY_FILES
async def test_a_checkpoint_that_was_deleted_while_the_job_was_stopped_is_not_handed_over(saving: Saving) -> None:
    """Issue 11.21: it was handed over all the same, and the program was charged."""
    await saving.submit("one", last_saved=5)
    status = await saving.saved("one", 4)
    newest, older = status.checkpoints
    await suspended(saving, "one", True)
    await saving.arena.phase("one", "Suspended")
    delete(newest.path)
    await suspended(saving, "one", False)
    assert await saving.began("one", 2) == (older.step, older.path)
    status = await saving.arena.phase("one", "Running", 2)
    assert f"confirmed checkpoints are gone, as every node reports: step 4 ({newest.path})" in status.message
    assert status.run is not None
    assert status.run.checkpoint is not None
    assert (status.run.checkpoint.step, status.run.checkpoint.path) == (older.step, older.path)
    assert older in status.checkpoints  # attempt 2 may have saved another one by now
    assert newest not in status.checkpoints
    assert status.restarts is None

    async def warned() -> list[str]:
        events = (await saving.arena.client.list(Event, saving.arena.namespace)).items
        return [each.type for each in events if each.reason == "CheckpointGone"]

    assert await until("an Event says so", warned) == ["Warning"]
    await suspended(saving, "one", True)
    await saving.arena.phase("one", "Suspended")
    delete(status.checkpoint_dir)
    await suspended(saving, "one", False)
    assert await saving.began("one", 3) == (0, "")
    status = await saving.arena.phase("one", "Running", 3)
    assert "no other is left, so attempt 3 starts from the BEGINNING" in status.message
    assert status.restarts is None
    await saving.end("one")


async def test_folder_that_cannot_be_written_fails_the_job_before_its_program_starts(saving: Saving) -> None:
    saving.path.write_text("a file where the folder should be")
    await saving.submit("train")
    status = await saving.arena.phase("train", "Failed")
    assert "cannot write to the checkpoint folder" in status.message
    assert "remove that file" in status.message
    assert [fault.rule for fault in status.faults] == ["cannot-write"]
    assert status.ran_attempt == 0
    assert not (saving.folder / "pid-train-1").exists(), "the program has started"


@BY_FILES
async def test_a_checkpoint_that_is_deleted_before_the_program_reads_it_is_not_charged_to_the_program(
    saving: Saving,
) -> None:
    """Issue 11.21: supervisors saw it, and then it was deleted."""
    program, checkpoint = LOADING.format(folder=str(saving.folder)), {"path": str(saving.path)}
    await saving.arena.submit("one", program, replicas=1, backoffLimit=0, checkpoint=checkpoint)
    newest, older, *_ = (await saving.saved("one", 4)).checkpoints
    await suspended(saving, "one", True)
    await saving.arena.phase("one", "Suspended")
    await suspended(saving, "one", False)
    handed = saving.folder / "handed-2"

    async def was_handed() -> bool:
        return handed.exists() and handed.read_text() == newest.path

    await until("attempt 2 was handed its checkpoint", was_handed)
    delete(newest.path)
    (saving.folder / "deleted").touch()
    status = await saving.arena.phase("one", "Running", 3)
    fault = status.faults[-1]
    assert (fault.rule, fault.cause, fault.attempt) == ("checkpoint-gone", "infrastructure", 2)
    assert newest.path in fault.message
    assert "FileNotFoundError" in fault.message
    assert status.run is not None
    assert status.run.checkpoint is not None
    assert status.run.checkpoint.path == older.path
    await saving.end("one")


@BY_FILES
async def test_a_job_continues_from_another_ones_checkpoint_also_after_its_deletion(saving: Saving) -> None:
    """Issue 11.2: what a folder holds says by itself whose it is, and that it was confirmed."""
    client, namespace = saving.arena.client, saving.arena.namespace
    await saving.submit("one", last_saved=5)
    last = (await saving.saved("one", 4)).last_checkpoint
    assert last is not None
    await saving.submit("two", checkpoint={"from": {"job": "one"}})
    assert await saving.began("two", 1) == (4, last.path)
    await client.delete(TrainingJob, "one", namespace=namespace)
    await saving.submit("three", checkpoint={"from": {"job": "one"}})
    assert await saving.began("three", 1) == (4, last.path)
    await saving.submit("four", last_saved=0, checkpoint={"from": {"path": str(Path(last.path).parent)}})
    assert await saving.began("four", 1) == (4, last.path)
    for name in ("two", "three", "four"):
        source = (await saving.arena.phase(name, "Running")).checkpoint_source
        assert source is not None
        assert (source.job, source.path, source.step) == ("one", last.path, 4)
    for name in ("two", "three"):
        await saving.saved(name, 14)
    assert in_folder(str(Path(last.path).parent)) == ["step-00000002-attempt-1", "step-00000004-attempt-1"]
    await saving.end("two", "three", "four")


@BY_FILES
async def test_a_job_that_is_to_continue_never_starts_from_the_beginning_instead(saving: Saving) -> None:
    """Issue 11.2: what was asked for is not there."""
    await saving.submit("lost", checkpoint={"from": {"job": "never-was"}})
    status = await saving.arena.phase("lost", "Failed")
    assert "there is no job never-was any more" in status.message
    assert "spec.checkpoint.from.path" in status.message
    assert not (saving.folder / "began-lost-1").exists()


@BY_FILES
async def test_a_job_whose_status_was_wiped_continues_from_its_own_checkpoint(saving: Saving) -> None:
    """Issue 11.2: the folder says by itself which job wrote what. Issue 11.10: the status was lost."""
    await saving.submit("one", last_saved=5)
    last = (await saving.saved("one", 4)).last_checkpoint
    assert last is not None
    client, namespace = saving.arena.client, saving.arena.namespace
    await client.patch(TrainingJob, "one", {"status": None}, namespace=namespace, subresource="status")
    assert await saving.began("one", 2) == (4, last.path)
    await saving.end("one")
