"""Issue 11.3: stacks of ranks, from ranks that offer them; no other process is signalled."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster.cli.ranks.stacks import report
from muster.trainingjobs.supervisor.ranks.hook import STACK_SIGNAL
from tests.support.supervisor_stub import Node, StubController
from tests.support.waiting import TIMEOUT_S

pytestmark = pytest.mark.mpi


@pytest.fixture
async def stub(tmp_path: Path) -> AsyncIterator[StubController]:
    async with StubController(tmp_path) as controller:
        yield controller


async def stacks(stub: StubController, *nodes: Node) -> list[dict[str, Any]]:
    """As `muster stacks` runs it in each pod, with the rights of its supervisor."""
    found = []
    for slot, node in enumerate(nodes):
        command = [*stub.run_command[:-1], "stacks"]
        process = await asyncio.create_subprocess_exec(*command, env=node.env, stdout=subprocess.PIPE)
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
    lines = report(found, 4)
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
        "isolated": [sys.executable, "-I", "-c", "import time; print('ready', flush=True); time.sleep(600)"],
    }[how]
    await stub.run(nodes, 1, [str(part) for part in command], launcher="none")
    if how == "isolated":  # py-spy cannot read a Python that is still starting
        await stub.until(lambda: "ready" in nodes[0].output, "the rank is ready")
    began = {"sleep": str(sleep), "exec": "sleep", "isolated": sys.executable}[how]
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + TIMEOUT_S
    while not (found and found[0]["command"].startswith(began)):
        assert time.monotonic() < deadline, found
        found = await stacks(stub, *nodes)
    found = await stacks(stub, *nodes)  # py-spy may have seen the Python whose place another program took just then
    assert "it registered no handler" in found[0]["why"]
    assert found[0]["source"] == ("py-spy" if how == "isolated" else "proc")
    assert found[0]["threads"][0]
    assert nodes[0].latest["state"] == "running"
    assert nodes[0].latest.get("exit") is None


async def one(stub: StubController, node: Node, program: str, *options: str) -> dict[str, Any]:
    """The stack of a rank that says when it is ready, and that still runs after that."""
    await stub.run([node], 1, [sys.executable, *options, "-c", program], launcher="none")
    await stub.until(lambda: "ready" in node.output, "the rank is ready")
    (found,) = await stacks(stub, node)
    assert node.latest["state"] == "running"
    assert node.latest.get("exit") is None
    return found


WAITS = "import time\ndef waits():\n    print('ready', flush=True)\n    time.sleep(600)\n"


async def test_py_spy_shows_a_python_that_registered_no_handler(stub: StubController) -> None:
    """Issue 11.3: with py-spy on the PATH of the pod."""
    (node,) = await stub.start(1)
    found = await one(stub, node, WAITS + "waits()", "-I")
    assert found["source"] == "py-spy"
    assert found["threads"][0][0].startswith("waits (")
    assert "it registered no handler" in found["why"]


@pytest.mark.parametrize("hook", [True, False])
async def test_a_rank_that_may_not_be_traced_is_shown_by_proc(stub: StubController, hook: bool) -> None:
    """Issue 11.3: a rank that hides itself (PR_SET_DUMPABLE) from a container without SYS_PTRACE.

    The kernel hides its environment too, by which ranks are found otherwise. With a handler it shows its stacks.
    """
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("needs setpriv, to give up SYS_PTRACE")
        stub.run_command = [setpriv, "--bounding-set=-sys_ptrace", *stub.run_command]
    (node,) = await stub.start(1)
    hide = "import ctypes\nctypes.CDLL(None).prctl(4, 0)\n"
    found = await one(stub, node, WAITS + hide + "waits()", *([] if hook else ["-I"]))
    assert found["rank"] == 0
    if hook:
        assert (found["source"], found["why"]) == ("handler", "")
    else:
        assert found["source"] == "proc"
        assert "py-spy may not trace it" in found["why"]
        assert "the container lacks the capability SYS_PTRACE" in found["why"]
        assert found["threads"][0][0] == "state: sleeping"


@pytest.mark.parametrize(
    "own",
    [
        "signal.signal(number, lambda *_: print('mine', flush=True))",
        "import asyncio\nasyncio.new_event_loop().add_signal_handler(number, print, 'mine')",
        "import threading\nsignal.pthread_sigmask(signal.SIG_BLOCK, [number])\n"
        "threading.Thread(target=lambda: print('mine', signal.sigwait([number]), flush=True)).start()",
        "import faulthandler, sys\nfaulthandler.register(number, file=sys.stderr)\nfaulthandler.unregister(number)",
    ],
    ids=["signal", "asyncio", "sigwait", "unregister"],
)
async def test_a_program_s_own_use_of_the_signal_is_respected(stub: StubController, own: str) -> None:
    """Issue 11.3: a program that uses the signal for stacks never gets it from us."""
    (node,) = await stub.start(1)
    use = f"import signal\nnumber = signal.SIGRTMIN + {STACK_SIGNAL}\n{own}\n"
    found = await one(stub, node, WAITS + use + "waits()")
    reason = "it registered no handler" if "unregister" in own else "the program uses the signal for stacks itself"
    assert reason in found["why"]
    assert found["source"] == "py-spy"
    assert any("waits (" in line for thread in found["threads"] for line in thread)
    assert "mine" not in node.output
