"""Issue 11.3: stacks of ranks, from ranks that offer them; no other process is signalled."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster.cli.stacks import report
from tests.support.supervisor_stub import Node, StubController
from tests.support.waiting import TIMEOUT_S

pytestmark = pytest.mark.mpi


@pytest.fixture
async def stub(tmp_path: Path) -> AsyncIterator[StubController]:
    async with StubController(tmp_path) as controller:
        yield controller


async def stacks(stub: StubController, *nodes: Node) -> list[dict[str, Any]]:
    """As `muster stacks` runs it in each pod."""
    found = []
    for slot, node in enumerate(nodes):
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(stub.supervisor), "stacks", env=node.env, stdout=subprocess.PIPE
        )
        out, _ = await process.communicate()
        found += [{**json.loads(line), "slot": slot, "node": node.name} for line in out.splitlines()]
    return found


async def test_mpi_ranks_of_all_nodes_are_grouped_by_equal_stack(stub: StubController, tmp_path: Path) -> None:
    nodes = await stub.start(2)
    source = (
        "import time\nfrom mpi4py import MPI\n"
        "def load():\n    print('ready', flush=True)\n    time.sleep(600)\n"
        "def step():\n    print('ready', flush=True)\n    MPI.COMM_WORLD.Barrier()\n"
        "load() if MPI.COMM_WORLD.rank == 1 else step()\n"
    )
    for slot in range(2):  # the folder of the ranks has another path on each node, as on an embedded cluster
        (tmp_path / f"work-{slot}" / "train.py").write_text(source)
    code = "import os, runpy; runpy.run_path(os.environ['MUSTER_WORKDIR'] + '/train.py')"
    await stub.run(nodes, 1, [sys.executable, "-c", code], ranks_per_node=2)
    await stub.until(lambda: sum(node.output.count("ready") for node in nodes) == 4, "all ranks wait")
    found = await stacks(stub, *nodes)
    assert [(each["rank"], each["slot"], each["source"]) for each in found] == [
        (rank, rank // 2, "handler") for rank in range(4)
    ]
    lines = report(found)
    assert lines[0] == "ranks 0, 2-3 of 4, by handler"
    assert lines[1] == '  File "train.py", line 8 in step'
    (alone,) = (number for number, line in enumerate(lines) if line.startswith("rank 1"))
    assert lines[alone].startswith("rank 1 of 4 (slot 0 on job-0-1, process ")
    assert lines[alone + 1] == '  File "train.py", line 5 in load'


@pytest.mark.parametrize("how", ["sleep", "exec", "isolated"])
async def test_a_process_without_a_handler_is_never_signalled(stub: StubController, how: str) -> None:
    """A program that is not Python, one that took the place of a Python, and a Python without `site`."""
    nodes = await stub.start(1)
    sleep = shutil.which("sleep")
    command = {
        "sleep": [sleep, "600"],
        "exec": [sys.executable, "-c", f"import os; print('ready', flush=True); os.execv({sleep!r}, ['sleep', '600'])"],
        "isolated": [sys.executable, "-I", "-c", "import time; time.sleep(600)"],
    }[how]
    await stub.run(nodes, 1, [str(part) for part in command], launcher="none")
    began = {"sleep": str(sleep), "exec": "sleep", "isolated": sys.executable}[how]
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + TIMEOUT_S
    while not (found and found[0]["command"].startswith(began)):
        assert time.monotonic() < deadline, found
        found = await stacks(stub, *nodes)
    assert "it registered no handler" in found[0]["why"]
    assert found[0]["source"] in ("proc", "py-spy")
    assert found[0]["threads"][0]
    assert nodes[0].latest["state"] == "running"
    assert nodes[0].latest.get("exit") is None
