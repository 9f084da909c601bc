"""A node vanishes and there is no spare: the job continues with fewer ranks, later with all of them again."""

from __future__ import annotations

import pytest

from muster.api.placement import Placement
from muster.kube.errors import NotFound
from tests.scenarios.trainingjobs.conftest import Arena, TestNode
from tests.support.anyserver import BY_SCHEDULER
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ELASTIC = """
    import os, pathlib, time
    import muster
    folder = pathlib.Path({folder!r})
    last = muster.last_checkpoint()
    step = int(pathlib.Path(last.path).read_text()) if last else 0
    said = "%s of %s on %s from %d" % (os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["NODE_RANK"], step)
    (folder / ("ran-%d-%d" % (muster.attempt(), muster.rank()))).write_text(said)
    while not (folder / "done").exists():
        step += 1
        muster.report(step=step)
        if step == 5 or muster.should_checkpoint():
            muster.save_checkpoint(step, lambda path: pathlib.Path(path).write_text(str(step)))
        time.sleep(0.05)
"""
"""It saves once by itself, and then only when it is asked to."""


async def shrunk(arena: Arena) -> TestNode:
    """A job on all three nodes that lost the one of slot 1 and runs on the other two; returns the node."""
    folder = str(arena.folder)
    await arena.submit(
        "train",
        ELASTIC.format(folder=folder),
        replicas=3,
        minReplicas=2,
        noSpare="Shrink",
        backoffLimit=0,
        checkpoint={"path": f"{folder}/checkpoints"},
    )
    await arena.reaches("train", lambda status: status.last_checkpoint is not None)
    name = next(pod.spec.node_name for pod in await arena.pods("train") if pod.name == "train-1-1")
    lost = next(node for node in arena.nodes if node.name == name)
    lost.lose()
    status = await arena.phase("train", "Running", 2)
    assert (status.size, status.left_out, status.ready_slots) == (2, (1,), 2)
    assert status.restarts is not None
    assert (status.restarts.infrastructure, status.restarts.user) == (1, 0)
    return lost


async def ran(arena: Arena, attempt: int, ranks: int) -> list[tuple[int, int, int, int]]:
    """What each rank of an attempt said: rank, world size, node rank, and the step it began from."""

    async def all_wrote() -> bool:
        return len([path for path in arena.folder.glob(f"ran-{attempt}-*") if path.read_text()]) == ranks

    await until(f"{ranks} ranks of attempt {attempt} run", all_wrote)
    texts = [path.read_text() for path in sorted(arena.folder.glob(f"ran-{attempt}-*"))]
    said = [tuple(int(word) for word in text.split() if word.isdecimal()) for text in texts]
    return [(rank, size, node, step) for rank, size, node, step in said]


@BY_SCHEDULER
async def test_it_continues_from_the_checkpoint_with_one_rank_less_and_ends(arena: Arena) -> None:
    """Issue 11.10: its Placement, which is deleted by hand meanwhile, is written again as it was."""
    await shrunk(arena)
    assert await ran(arena, 2, 2) == [(0, 2, 0, 5), (1, 2, 1, 5)]
    placement = await arena.client.get(Placement, "train", arena.namespace)
    await arena.client.delete(Placement, "train", namespace=arena.namespace)

    async def back() -> bool:
        new = await arena.client.get(Placement, "train", arena.namespace)
        same = (new.spec.slots, new.spec.given_up) == (placement.spec.slots, placement.spec.given_up)
        return new.uid != placement.uid and same and new.status.phase == "Bound"

    await until("the Placement is there again", back, ignoring=(NotFound,))
    (arena.folder / "done").touch()
    status = await arena.phase("train", "Succeeded", 2)
    assert status.size == 2


STUBBORN = """
    import pathlib, signal, time
    import muster
    folder = pathlib.Path({folder!r})
    if muster.attempt() == 1 and muster.rank() == 2:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / "deaf").touch()
    while not (folder / "deaf").exists():
        time.sleep(0.05)
    if muster.rank() == 0:
        muster.save_checkpoint(5, lambda path: pathlib.Path(path).write_text("5"))
    while not (folder / "done").exists() and not (folder / "stubborn").exists():
        time.sleep(0.05)
    while muster.attempt() == 2 and not (folder / "done").exists():
        time.sleep(0.05)
"""
"""Rank 2 of the first attempt ignores SIGTERM before a checkpoint is saved. So the second attempt can begin only when
`stubborn` exists."""


@BY_SCHEDULER
async def test_placement_deleted_before_the_smaller_attempt_runs_is_restored(arena: Arena) -> None:
    folder, name = str(arena.folder), "train"
    checkpoint = {"path": f"{folder}/checkpoints"}
    await arena.submit(
        name, STUBBORN.format(folder=folder), replicas=3, minReplicas=2, noSpare="Shrink", launcher="none",
        backoffLimit=0, stopGraceSeconds=120, checkpoint=checkpoint,
    )  # fmt: skip
    await arena.reaches(name, lambda status: status.last_checkpoint is not None)
    held = next(pod.spec.node_name for pod in await arena.pods(name) if pod.name == "train-1-1")
    next(node for node in arena.nodes if node.name == held).lose()
    status = await arena.reaches(name, lambda status: status.left_out == (1,))
    assert (status.phase, status.attempt, status.size) == ("Restarting", 2, 2)
    placement = await arena.client.get(Placement, name, arena.namespace)
    await arena.client.delete(Placement, name, namespace=arena.namespace)

    async def back() -> bool:
        new = await arena.client.get(Placement, name, arena.namespace)
        same = (new.spec.slots, new.spec.given_up) == (placement.spec.slots, placement.spec.given_up)
        return new.uid != placement.uid and same

    await until("the Placement is there again", back, ignoring=(NotFound,))
    (arena.folder / "stubborn").touch()
    status = await arena.phase(name, "Running", 2)
    assert (status.size, status.left_out) == (2, (1,))
    (arena.folder / "done").touch()
    await arena.phase(name, "Succeeded", 2)


@pytest.mark.parametrize("which", ["another node", "the same node"])
@BY_SCHEDULER
async def test_it_grows_again_at_a_checkpoint_that_it_is_asked_for(arena: Arena, which: str) -> None:
    if which == "the same node":
        arena.controllers[-1].terminate()
        arena.control("--exclusion=3")
    lost = await shrunk(arena)
    if which == "another node":
        arena.add_node()
    else:
        lost.restart()
    status = await arena.phase("train", "Running", 3)
    assert (status.size, status.left_out) == (3, ())
    assert status.restarts is not None
    assert status.restarts.total == 1  # no budget is charged for growing
    last = status.last_checkpoint
    assert last is not None
    assert last.attempt == 2
    assert await ran(arena, 3, 3) == [(rank, 3, rank, last.step) for rank in range(3)]
    (arena.folder / "done").touch()
    await arena.phase("train", "Succeeded", 3)
