"""Jobs with real processes and checkpoints on reserved nodes, and gangs of plain pods on modelled ones."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from muster.api.training_job_status import BackfillStatus, TrainingJobStatus
from muster.cli.main import run
from muster.kube.objects.core import Event
from tests.scenarios.backfill.gangs import a_second_later
from tests.scenarios.scheduler.conftest import cluster
from tests.scenarios.trainingjobs.conftest import Arena, arena, arenas
from tests.scenarios.trainingjobs.test_jobs import QUICK
from tests.support.waiting import until

__all__ = ["arena", "arenas", "cluster"]  # fixtures

HOLDS = """
    import pathlib, time
    while not (pathlib.Path({folder!r}) / "{name}-ends").exists():
        time.sleep(0.05)
"""
"""Holds its nodes until it may end; it reports nothing and saves nothing."""

TRAINS = """
    import json, os, pathlib, time
    import muster
    folder, attempt, rank = pathlib.Path({folder!r}), muster.attempt(), muster.rank()
    last = muster.last_checkpoint()
    state = json.loads(pathlib.Path(last.path).read_text()) if last else {{"step": 0, "weight": 0.0}}
    def put(what, value):
        part = folder / ("{name}-%s-%d-%d.part" % (what, attempt, rank))
        part.write_text(str(value))
        part.rename(part.with_suffix(""))
    put("began", state["step"])
    put("pid", os.getpid())
    def exists(name):
        return (folder / ("{name}-" + name)).exists()
    def save():
        muster.save_checkpoint(state["step"], lambda path: pathlib.Path(path).write_text(json.dumps(state)))
    while rank == 0 and state["step"] < {steps}:
        muster.report(step=state["step"], total_steps={steps})
        if muster.backfilled():
            (folder / ("{name}-flag-%d" % attempt)).touch()
        if muster.should_checkpoint() and {listens}:
            (folder / ("{name}-asked-%d" % attempt)).touch()
            while {saves_late} and not exists("saves"):
                time.sleep(0.05)
            save()
            time.sleep(3600)
        if state["step"] == {pause} and not exists("ends"):
            time.sleep(0.05)
            continue
        state["weight"] += 0.1 * (3.0 - state["weight"])
        state["step"] += 1
        with open(folder / "{name}-log", "a") as log:
            log.write(json.dumps(state) + "\\n")
        if {every} and state["step"] % {every} == 0:
            save()
    while rank and not exists("ends"):
        time.sleep(0.05)
"""
"""Rank 0 trains. It saves every few steps, and when it is asked to; then it waits until it is stopped."""

STEPS, PAUSE = 20, 13
"""A job that trains waits at step `PAUSE` until it may end; so it is there when others need its nodes."""


def uninterrupted(steps: int = STEPS) -> list[dict[str, float]]:
    """Return what a run that nothing interrupts writes about its steps."""
    found: list[dict[str, float]] = []
    weight = 0.0
    for step in range(1, steps + 1):
        weight += 0.1 * (3.0 - weight)
        found.append({"step": step, "weight": weight})
    return found


class Jobs:
    """The jobs of a test, and the files by which they and the test talk to each other."""

    def __init__(self, arena: Arena) -> None:
        self.arena, self.folder = arena, arena.folder

    def path(self, name: str, what: str) -> Path:
        return self.folder / f"{name}-{what}"

    def full_name(self, name: str) -> str:
        return f"{self.arena.namespace}/{name}"

    async def hold(self, name: str, nodes: int, **spec: Any) -> None:
        """A job that holds its nodes until it may end."""
        await self.arena.submit(name, HOLDS.format(folder=str(self.folder), name=name), replicas=nodes, **spec)

    async def train(
        self, name: str, nodes: int, *, every: int = 5, listens: bool = True, saves_late: bool = False, **spec: Any
    ) -> None:
        """A job that trains. `every`: the steps between its checkpoints. `saves_late`: when the test lets it."""
        how = {"steps": STEPS, "pause": PAUSE, "every": every, "listens": listens, "saves_late": saves_late}
        body = {
            "checkpoint": {"path": str(self.folder / "checkpoints")},
            "stopGraceSeconds": 30,
            "backoffLimit": 0,
            "infrastructureLimit": 0,
            "unknownLimit": 0,
            **spec,
        }
        await self.arena.submit(name, TRAINS.format(folder=str(self.folder), name=name, **how), replicas=nodes, **body)

    def end(self, *names: str) -> None:
        for name in names:
            self.path(name, "ends").touch()

    async def wide_waits(self, **spec: Any) -> None:
        """A long job has one of the three nodes; a wide one waits for all three."""
        await self.hold("long", 1)
        await self.arena.phase("long", "Running")
        await self.arena.submit("wide", QUICK, replicas=3, **spec)
        await self.waits("wide")

    async def wrote(self, name: str, what: str) -> str:
        """Wait for a file of the job, and return what is in it."""
        path = self.path(name, what)
        await until(f"{path.name} is written", path.exists)
        return path.read_text()

    async def waits(self, name: str, why: str = "NotEnoughNodes") -> None:
        """The scheduler has said why it waits."""
        await self.arena.reaches(name, lambda status: f"[{why}]" in status.message)
        await a_second_later()

    async def backfilled_for(self, name: str, other: str) -> TrainingJobStatus:
        """The job runs on nodes that are reserved for the other one, as its status says."""
        return await self.arena.reaches(
            name, lambda status: status.phase == "Running" and state(status).gang == self.full_name(other)
        )

    async def asked(self, name: str) -> TrainingJobStatus:
        return await self.arena.reaches(name, lambda status: state(status).asked == 1)

    async def left(self, name: str) -> TrainingJobStatus:
        """The job has left its nodes and waits for others."""
        return await self.arena.reaches(name, lambda status: status.preemptions == 1)

    def log(self, name: str) -> list[dict[str, float]]:
        """What the job wrote about each step that it did, in all of its attempts."""
        return [json.loads(line) for line in self.path(name, "log").read_text().splitlines()]

    async def event(self, name: str, reason: str) -> Event:
        """The one Event of the job with this reason. It may be written a little later than the status."""

        async def written() -> list[Event]:
            events = (await self.arena.client.list(Event, self.arena.namespace)).items
            return [each for each in events if each.reason == reason and each.involved_object.name == name]

        found: list[Event] = await until(f"{reason} of {name} is said", written)
        assert len(found) == 1, found
        return found[0]

    async def command(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
        """What a command of `muster` prints."""
        kubeconfig = str(self.arena.server.kubeconfig)
        options = ["--kubeconfig", kubeconfig, "--namespace", self.arena.namespace]
        capsys.readouterr()
        status = await asyncio.to_thread(run, [*arguments, *options])
        printed = capsys.readouterr()
        assert status == 0, printed.err
        return " ".join(printed.out.split())


def state(status: TrainingJobStatus) -> BackfillStatus:
    return status.backfill or BackfillStatus()


@pytest.fixture(scope="session")
def scheduler_config() -> str:
    """Backfilled jobs may be asked to leave after a few seconds."""
    return "backfillMinRunSeconds: 3"


@pytest.fixture
def jobs(arena: Arena) -> Jobs:
    return Jobs(arena)
