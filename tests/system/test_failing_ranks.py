"""Issue 11.3: a rank that fails ends the attempt, although Python waits for the other ranks before it ends."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.supervisor_stub import Node, StubController

pytestmark = pytest.mark.mpi


@pytest.fixture
async def stub(tmp_path: Path) -> AsyncIterator[StubController]:
    async with StubController(tmp_path) as controller:
        yield controller


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


async def finished(stub: StubController, nodes: list[Node]) -> None:
    await stub.until(lambda: all(node.latest["state"] == "finished" for node in nodes), "finished")


@pytest.mark.parametrize(
    ("deed", "code", "last"),
    [
        ("raise ValueError('no such batch')", 1, "ValueError: no such batch"),
        ("print('cannot go on', file=sys.stderr); sys.exit(3)", 3, "cannot go on"),
        ("print('cannot go on', file=sys.stderr); raise SystemExit(3)", 3, "cannot go on"),
        ("sys.excepthook = lambda *error: print('mine', file=sys.stderr); 1 / 0", 1, "mine"),
    ],
)
async def test_an_uncaught_exception_in_one_mpi_rank_ends_the_attempt(
    stub: StubController, deed: str, code: int, last: str
) -> None:
    """Issue 11.3: without the hook `MPI_Finalize` of the failed rank and the barrier of the others never return."""
    nodes = await stub.start(3)
    program = f"""
import atexit, sys
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
atexit.register(print, "tidied up", MPI.COMM_WORLD.rank, flush=True)
if MPI.COMM_WORLD.rank == 1:
    {deed}
MPI.COMM_WORLD.Barrier()
"""
    await stub.run(nodes, 1, python(program))
    await finished(stub, nodes)
    failure = nodes[1].latest["exit"]
    assert (failure["rank"], failure["code"], failure["signal"], failure["reason"]) == (1, code, 0, "rank exited")
    assert failure["tail"][-1] == last
    assert "tidied up 1" in nodes[1].output
    assert nodes[2].latest["exit"]["rank"] == -1


async def test_a_failed_rank_that_does_not_end_is_killed(stub: StubController) -> None:
    """Issue 11.3: as with torchrun, where the destructor of a process group may wait for its peers for ever."""
    nodes = await stub.start(2)
    program = """
import muster, threading, time
if muster.rank() == 1:
    threading.Thread(target=time.sleep, args=(600,)).start()
    raise ValueError("no such batch")
time.sleep(600)
"""
    await stub.run(nodes, 1, python(program), launcher="none")
    await finished(stub, nodes[1:])
    failure = nodes[1].latest["exit"]
    assert (failure["rank"], failure["code"], failure["signal"]) == (1, 1, 0)
    assert failure["tail"][-1] == "ValueError: no such batch"
    assert "did not end within 10 s: killed" in nodes[1].output


async def test_exception_handled_by_the_program_changes_nothing(stub: StubController, tmp_path: Path) -> None:
    """Issue 11.3: exceptions of children, threads and consoles; a sitecustomize that the user has."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("print('my sitecustomize', flush=True)\n")
    program = """
import code, multiprocessing, os, pickle, subprocess, sys, threading
def fail(): raise ValueError("handled")
if __name__ == "__main__":
    assert "hook" not in os.environ.get("PYTHONPATH", "") and "MUSTER_RANK_HOOK" not in os.environ
    for kind in ("fork", "spawn"):
        worker = multiprocessing.get_context(kind).Process(target=fail)
        worker.start(), worker.join()
        assert worker.exitcode == 1
    assert subprocess.run([sys.executable, "-c", "import sys; sys.exit(3)"]).returncode == 3
    for target in (fail, sys.exit, lambda: sys.exit(4), lambda: exit(4)):
        thread = threading.Thread(target=target)
        thread.start(), thread.join()
    for leave in (sys.exit, exit, SystemExit):
        try:
            raise leave(5) or 0
        except SystemExit as error:
            assert type(error) is SystemExit and error.code == 5 and error.args == (5,)
            error.code = 6
            assert error.code == 6 and pickle.loads(pickle.dumps(error)).code == 5
    code.InteractiveInterpreter(globals()).runsource("1 / 0")
    from mpi4py import MPI
    MPI.COMM_WORLD.Barrier()
    print("all is well", flush=True)
"""
    (tmp_path / "program.py").write_text(program)
    nodes = await stub.start(2, PYTHONPATH=str(tmp_path / "site"))
    await stub.run(nodes, 1, [sys.executable, str(tmp_path / "program.py")])
    await finished(stub, nodes)
    for node in nodes:
        assert node.latest["exit"]["code"] == 0
        assert node.output.count("all is well") == 1
        assert "my sitecustomize" in node.output
        assert "in thread Thread-1" in node.output
        assert "in thread Thread-2" not in node.output


async def test_a_script_that_tries_again_is_left_alone(stub: StubController) -> None:
    """Issue 11.3: a Python that fails below a shell fails as it always did; the shell's own exit code counts."""
    nodes = await stub.start(1)
    line = f"{sys.executable} -c 'raise ValueError(1)' || {sys.executable} -c 'print(\"second try\")'"
    await stub.run(nodes, 1, ["sh", "-c", line], launcher="none")
    await finished(stub, nodes)
    assert nodes[0].latest["exit"]["code"] == 0
    assert "second try" in nodes[0].output
