"""Issue 11.1: what others do to nodes while an attempt runs does not change who its launcher is."""

from __future__ import annotations

import pytest

from muster.api.names import LABEL_ZONE
from muster.api.training_job_status import TrainingJobStatus
from muster.kube.objects.node import Node
from tests.scenarios.trainingjobs.conftest import Arena
from tests.support.anyserver import BY_RANKS
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

LONG_RANK_ZERO = """
    import pathlib, time
    import muster
    folder = pathlib.Path({folder!r})
    (folder / ("began-%d-%d" % (muster.attempt(), muster.rank()))).touch()
    step = 0
    while muster.rank() == 0 and not (folder / "done").exists():
        step += 1
        muster.report(step=step)
        time.sleep(0.05)
    if muster.rank() == 0:
        (folder / "last-step").write_text(str(muster.attempt()))
"""
"""Rank 0 trains on while the others have ended long since."""


async def moves_on(arena: Arena, before: TrainingJobStatus) -> TrainingJobStatus:
    """The status when the controller has written a later step, or something else than that the job runs."""
    step = before.progress.step if before.progress is not None else 0

    def wanted(status: TrainingJobStatus) -> bool:
        return status.phase != "Running" or (status.progress is not None and status.progress.step > step)

    return await arena.reaches("train", wanted)


@pytest.mark.parametrize("change", [pytest.param("relabel", marks=BY_RANKS), "delete"])
async def test_a_job_succeeds_only_when_its_own_launcher_has_ended(arena: Arena, change: str) -> None:
    folder = arena.folder
    await arena.submit("train", LONG_RANK_ZERO.format(folder=str(folder)), replicas=3, launcher="mpi")
    await arena.phase("train", "Running", 1)

    async def began() -> bool:
        return len(list(folder.glob("began-1-*"))) == 3

    await until("all ranks began", began)
    before = await arena.reaches("train", lambda status: status.progress is not None)
    assert before.run is not None
    assert before.run.launcher_slot == 0
    pod = next(pod for pod in await arena.pods("train") if pod.name == "train-2-1")
    if change == "relabel":
        labels = {"metadata": {"labels": {LABEL_ZONE: "a"}}}
        await arena.client.patch(Node, pod.spec.node_name, labels)
        others = {node.name for node in arena.nodes} - {pod.spec.node_name}
        for name in others:
            await arena.client.patch(Node, name, {"metadata": {"labels": {LABEL_ZONE: "b"}}})
    else:
        await arena.client.delete(Node, pod.spec.node_name)
    for _ in range(2):  # each time the controller has looked at the job again
        before = await moves_on(arena, before)
        assert before.phase != "Succeeded", before.message
    (folder / "done").touch()
    status = await arena.phase("train", "Succeeded")
    assert (folder / "last-step").read_text() == str(status.attempt)
    if change == "relabel":
        assert status.attempt == 1
        for node in arena.nodes:
            await arena.client.patch(Node, node.name, {"metadata": {"labels": {LABEL_ZONE: None}}})
