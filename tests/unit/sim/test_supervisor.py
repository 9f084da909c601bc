"""The simulated supervisor says what the real one says, to the same directives."""

from __future__ import annotations

import base64
import random
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster.sim.longpoll import Link
from muster.sim.supervisor import Identity, SimSupervisor, Work
from tests.support.supervisor_stub import Node, StubController

FOR_EVER = [sys.executable, "-c", "import time; time.sleep(600)"]
KILL_ITSELF = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]


@pytest.fixture
async def stub(tmp_path: Path) -> AsyncIterator[StubController]:
    async with StubController(tmp_path) as controller:
        yield controller


def simulated(stub: StubController, node: Node) -> SimSupervisor:
    tls = ssl.create_default_context(cadata=base64.b64decode(node.env["MUSTER_CA_DATA"]).decode())
    url, slot = node.env["MUSTER_URL"], int(node.env["MUSTER_SLOT"])
    return SimSupervisor(
        Identity(job="default/job", slot=slot, pod=node.name, pod_uid=node.env["POD_UID"], address=node.address),
        (Link(url, tls), Link(url, tls)),
        Link(url, tls),
        f"token-{node.name}",
        work=Work(stop_s=0.05, launch_s=0.01, step_s=0.01),
        rng=random.Random(1),
        on_change=lambda: None,
        on_exit=lambda code: None,
        wall=time.time,
    )


def said(node: Node) -> list[tuple[Any, ...]]:
    """States in the order they were first reported: of two connections the slower may say an older one once more."""
    lines = [(r["state"], r["attempt"], (r.get("exit") or {}).get("signal")) for r in node.reports]
    return [line for line in dict.fromkeys(lines) if line[0] != "stopping"]


@pytest.mark.slow
async def test_says_what_the_real_one_says_when_held_run_and_held_again(stub: StubController) -> None:
    (real,) = await stub.start(1)
    twin = stub.node(1)
    simulation = simulated(stub, twin)
    for node in (real, twin):
        await stub.hold([node], 1)
        await stub.run([node], 1, FOR_EVER, launcher="none")
        await stub.until(lambda node=node: node.latest.get("state") == "running", "it runs")
        await stub.hold([node], 2)
    simulation.close()
    assert said(twin) == said(real)
    assert ("running", 1, None) in said(twin)


@pytest.mark.slow
async def test_killed_rank_is_reported_like_a_real_one(stub: StubController) -> None:
    (real,) = await stub.start(1)
    twin = stub.node(1)
    simulation = simulated(stub, twin)
    for node in (real, twin):
        await stub.run([node], 1, KILL_ITSELF if node is real else FOR_EVER, launcher="none")
        if node is twin:
            await stub.until(lambda: simulation.state == "running", "it runs")
            simulation.kill_rank()
        await stub.until(lambda node=node: node.latest.get("state") == "finished", "it is over")
        assert node.latest["exit"]["signal"] == signal.SIGKILL
        assert set(node.latest["exit"]) == set(real.latest["exit"])
    simulation.close()
    assert said(twin)[-1] == said(real)[-1] == ("finished", 1, signal.SIGKILL)


async def test_steps_go_on_from_the_checkpoint(stub: StubController) -> None:
    node = stub.node(0)
    simulation = simulated(stub, node)
    await stub.hold([node], 1)
    await stub.run([node], 1, FOR_EVER, launcher="none", checkpoint={"path": "/c", "step": 40})
    await stub.until(lambda: stub.progress, "a step")
    assert stub.progress[0]["step"] == 41
    step = await simulation.checkpoint()
    assert stub.checkpoint == {"path": f"/checkpoints/{step}", "step": step}
    simulation.vanish()
