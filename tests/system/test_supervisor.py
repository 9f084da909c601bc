"""Rank supervisors as a job's workers: real processes, real MPI, a stub in the controller's place."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import signal
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster.trainingjobs.faults.rules import Evidence, row_of
from tests.support.supervisor_stub import Node, StubController

pytestmark = pytest.mark.mpi

TRAIN = [sys.executable, str(Path(__file__).resolve().parents[2] / "examples" / "digits" / "train.py")]


@pytest.fixture
async def stub(tmp_path: Path) -> AsyncIterator[StubController]:
    """Issue 11: everything lies below a folder whose name has spaces and a letter that is not ASCII."""
    folder = tmp_path / "a höme with spaces"
    folder.mkdir()
    async with StubController(folder) as controller:
        yield controller


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def state(*nodes: Node) -> list[str]:
    return [node.latest.get("state", "") for node in nodes]


def alive(node: Node, *more: bytes, without_supervisor: bool = False) -> list[int]:
    """Live processes that carry this pod's environment, and these entries besides."""
    marks = {f"MUSTER_TOKEN_FILE={node.env['MUSTER_TOKEN_FILE']}".encode(), *more}
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            carries = marks <= set((entry / "environ").read_bytes().split(b"\0"))
            zombie = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
        except OSError:
            continue
        own = node.process is not None and int(entry.name) == node.process.pid
        if carries and not zombie and not (own and without_supervisor):
            found.append(int(entry.name))
    return found


def rank_pids(node: Node, rank: int) -> list[int]:
    """Processes of the rank itself: RANK is set only there."""
    return alive(node, f"RANK={rank}".encode())


def final(nodes: list[Node]) -> tuple[float, float]:
    match = re.search(r"final step \d+ loss (\S+) accuracy (\S+)", nodes[0].output)
    assert match, nodes[0].output
    return float(match[1]), float(match[2])


def consequence(report: dict[str, Any]) -> bool:
    """Whether the controller takes a rank's own end for a consequence: it ended as its peer was not there any more."""
    message = "\n".join(report["tail"])
    row = row_of(
        Evidence(kind="rank", slot=0, seen_at=0, code=report["code"], signal=report["signal"], message=message)
    )
    return row.id == "rank-lost-peer"


async def finished(stub: StubController, nodes: list[Node], attempt: int) -> None:
    await stub.until(
        lambda: all(n.latest["state"] == "finished" and n.latest["attempt"] == attempt for n in nodes),
        f"attempt {attempt} finished",
    )


async def test_a_rank_has_its_own_pods_environment_and_log(stub: StubController) -> None:
    nodes = await stub.start(4)
    program = """
import os, mpi4py.MPI as MPI
total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank)
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT MUSTER_ATTEMPT POD_IP EXTRA"
print(total, *(os.environ[name] for name in names.split()), flush=True)
assert os.getcwd() == os.environ["MUSTER_WORKDIR"]
import muster
assert (muster.rank(), muster.world_size()) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
"""
    await stub.run(nodes, 1, python(program), ranks_per_node=2, env={"EXTRA": "of the job"})
    await finished(stub, nodes, 1)
    for slot, node in enumerate(nodes):
        lines = [line for line in node.output.splitlines() if line.startswith("[rank")]
        assert sorted(lines) == [
            f"[rank {rank}] 28 {rank} 8 {local} 2 {slot} {nodes[0].address} 29517 1 {node.address} of the job"
            for local, rank in enumerate((2 * slot, 2 * slot + 1))
        ]
        assert node.latest["exit"]["code"] == 0
        assert not alive(node, without_supervisor=True)


@pytest.mark.timeout(180)
async def test_a_killed_rank_is_reported_exactly_and_the_resumed_run_ends_as_an_uninterrupted_one(
    stub: StubController, tmp_path: Path
) -> None:
    nodes = await stub.start(4, MUSTER_CHECKPOINT_DIR=str(tmp_path / "uninterrupted"))
    command = [*TRAIN, "--steps", "30", "--checkpoint-every", "5", "--step-time-s"]
    await stub.run(nodes, 1, [*command, "0"])
    await finished(stub, nodes, 1)
    expected = final(nodes)
    assert stub.checkpoint is not None
    assert stub.checkpoint["step"] == 30

    for node in nodes:  # again from the beginning: the controller holds no checkpoint
        node.log.write_text("")
    stub.forget()
    await stub.hold(nodes, 2)
    await stub.run(nodes, 3, [*command, "0.3"], env={"MUSTER_CHECKPOINT_DIR": str(tmp_path / "interrupted")})
    await stub.until(lambda: (stub.checkpoint or {"step": 0})["step"] >= 10, "a checkpoint at step 10")
    (victim,) = rank_pids(nodes[2], 2)
    os.kill(victim, signal.SIGKILL)
    await finished(stub, nodes, 3)
    failure = nodes[2].latest["exit"]
    assert (failure["attempt"], failure["rank"], failure["code"], failure["signal"]) == (3, 2, 137, 9)
    assert failure["reason"] == "rank exited"
    others = [nodes[k].latest["exit"] for k in (0, 1, 3)]
    assert all(each["rank"] == -1 or consequence(each) for each in others), [each["tail"] for each in others]
    # all that node rank 0 can say, unless its rank read the memory of the killed one just then
    assert others[0]["reason"] == "launcher exited" or others[0]["rank"] == 0
    assert not any(alive(node, without_supervisor=True) for node in nodes)

    resumed_at = stub.checkpoint["step"]
    assert resumed_at < 30
    pids = [node.process.pid for node in nodes if node.process]
    await stub.hold(nodes, 4)
    await stub.run(
        nodes,
        4,
        [*command, "0"],
        env={"MUSTER_CHECKPOINT_DIR": str(tmp_path / "interrupted")},
        checkpoint=stub.checkpoint,
    )
    await finished(stub, nodes, 4)
    assert f"4 ranks, attempt 4, from step {resumed_at}" in nodes[0].output
    assert final(nodes) == pytest.approx(expected, rel=1e-12)
    assert pids == [node.process.pid for node in nodes if node.process]
    assert all(node.process and node.process.exit_code is None for node in nodes)


async def test_the_tail_of_a_failed_rank_ends_with_its_traceback(stub: StubController) -> None:
    nodes = await stub.start(3)
    program = "import muster, time\nif muster.rank() == 1: raise ValueError('no such batch')\ntime.sleep(600)"
    await stub.run(nodes, 1, python(program))
    await finished(stub, nodes[1:2], 1)
    failure = nodes[1].latest["exit"]
    assert (failure["rank"], failure["code"], failure["signal"]) == (1, 1, 0)
    assert failure["tail"][-1] == "ValueError: no such batch"
    assert failure["tail"][0].startswith("Traceback")
    await stub.hold(nodes, 2)  # Hydra itself continues while a rank that never called MPI_Init is missing
    assert all(node.latest.get("exit", failure) == failure for node in nodes)
    assert not any(alive(node, without_supervisor=True) for node in nodes)


async def test_mpi_abort_is_the_aborting_ranks_failure(stub: StubController) -> None:
    nodes = await stub.start(3)
    program = """
from mpi4py import MPI
import sys
if MPI.COMM_WORLD.rank == 2:
    print("bad gradient", file=sys.stderr, flush=True)
    MPI.COMM_WORLD.Abort(7)
MPI.COMM_WORLD.Barrier()
"""
    await stub.run(nodes, 1, python(program))
    await finished(stub, nodes, 1)
    failure = nodes[2].latest["exit"]
    assert (failure["rank"], failure["code"]) == (2, 7)
    assert failure["tail"][0] == "bad gradient"
    assert nodes[1].latest["exit"]["rank"] == -1


async def test_ranks_go_on_while_the_controller_is_away(stub: StubController, tmp_path: Path) -> None:
    nodes = await stub.start(2)
    gate, done = tmp_path / "gate", tmp_path / "done"
    program = f"""
import os, time, mpi4py.MPI as MPI
while not os.path.exists({str(gate)!r}): time.sleep(0.02)
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0: open({str(done)!r}, "w").close()
"""
    await stub.run(nodes, 1, python(program))
    await stub.until(lambda: all(rank_pids(node, k) for k, node in enumerate(nodes)), "ranks started")
    await stub.away()
    before = [len(node.reports) for node in nodes]
    gate.touch()
    await stub.until(done.exists, "the ranks finish without a controller")
    await stub.until(lambda: not any(alive(n, without_supervisor=True) for n in nodes), "everything has ended")
    assert before == [len(node.reports) for node in nodes]
    await stub.serve()
    await finished(stub, nodes, 1)
    assert [node.latest["exit"]["code"] for node in nodes] == [0, 0]


async def test_a_replica_that_does_not_lead_is_asked_again_after_its_retry_after(stub: StubController) -> None:
    stub.unavailable = True
    node = stub.node(0)
    node.start(stub.run_command)
    await stub.until(lambda: stub.refused >= 2, "refused twice")
    stub.unavailable = False
    await stub.until(lambda: state(node) == ["idle"], "joined")


async def test_hold_gives_ranks_their_grace_and_then_ends_the_stubborn(stub: StubController) -> None:
    nodes = await stub.start(2)
    program = """
import os, signal, time
def stop(*_):
    if os.environ["RANK"] == "0":
        print("saved", flush=True)
        os._exit(0)
    print("refused", flush=True)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
while True: time.sleep(1)
"""
    await stub.run(nodes, 1, python(program), launcher="none")
    await stub.until(lambda: all("ready" in node.output for node in nodes), "ready")
    await stub.hold(nodes, 2, grace_s=4)
    assert "saved" in nodes[0].output
    assert "refused" in nodes[1].output
    assert not any(alive(node, without_supervisor=True) for node in nodes)
    assert all("exit" not in node.latest for node in nodes)  # stopped as directed: no failure


LOSES_THE_EXIT = """#!{python} -E
import os, socket, subprocess, sys
if "--version" in sys.argv:
    sys.exit("HYDRA build details")
from muster.trainingjobs.supervisor.basics import socket_name
from muster.trainingjobs.supervisor.ranks.messages import receive_message, send_message
door = socket.socket(socket.AF_UNIX)
with socket_name(os.environ["MUSTER_RANK_SOCKET"]) as name:
    door.connect(name)
send_message(door, {{"attempt": os.environ["MUSTER_ATTEMPT"], "rank": 0}})
receive_message(door)
rank = subprocess.Popen(["sleep", "600"], start_new_session=True)
send_message(door, {{"pid": rank.pid}})
print("ready", flush=True)
rank.wait()
os._exit(9)
"""


async def test_stopping_does_not_wait_for_a_rank_whose_exit_status_was_lost(
    stub: StubController, tmp_path: Path
) -> None:
    """Issue 11: mpiexec may kill a rank's parent between the rank's end and the report of it."""
    mpiexec = tmp_path / "mpiexec.hydra"  # the name that is looked for first
    mpiexec.write_text(LOSES_THE_EXIT.format(python=sys.executable))
    mpiexec.chmod(0o755)
    node = stub.node(0, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    node.start(stub.run_command)
    await stub.until(lambda: state(node) == ["idle"], "joined")
    await stub.run([node], 1, ["true"])
    await stub.until(lambda: "ready" in node.output, "ready")
    await stub.hold([node], 2, grace_s=3600)
    assert not alive(node, without_supervisor=True)


async def test_hold_of_the_running_attempt_and_older_directives_change_nothing(stub: StubController) -> None:
    (node,) = await stub.start(1)
    await stub.run([node], 3, python("import time; print('on', flush=True); time.sleep(600)"), launcher="none")
    await stub.until(lambda: state(node) == ["running"] and rank_pids(node, 0), "running")
    pids = rank_pids(node, 0)
    for attempt, desired in ((3, "hold"), (2, "hold"), (2, "exit"), (2, "run")):
        await stub.direct(node, attempt=attempt, desired=desired, run=node.directive.get("run"))
        revision = node.directive["revision"]
        await stub.until(lambda seen=revision: node.latest["revision"] == seen, "directive taken")  # type: ignore[misc]
        assert state(node) == ["running"]
    assert rank_pids(node, 0) == pids


async def test_exit_stops_the_ranks_and_ends_with_the_code(stub: StubController) -> None:
    (node,) = await stub.start(1)
    await stub.run([node], 1, ["sleep", "600"], launcher="none")
    await stub.until(lambda: rank_pids(node, 0), "running")
    await stub.direct(node, attempt=1, desired="exit", exitCode=17)
    assert node.process is not None
    await stub.until(lambda: node.process and node.process.exit_code is not None, "exit")
    assert node.process.exit_code == 17
    assert not alive(node)


async def test_sigterm_leaves_nothing_behind(stub: StubController) -> None:
    nodes = await stub.start(2)
    await stub.run(nodes, 1, python("import mpi4py.MPI, time; time.sleep(600)"))
    await stub.until(lambda: all(rank_pids(node, k) for k, node in enumerate(nodes)), "ranks started")
    for node in nodes:
        assert node.process is not None
        os.kill(node.process.pid, signal.SIGTERM)
    await stub.until(lambda: all(node.process and node.process.exit_code is not None for node in nodes), "exit")
    assert [node.process.exit_code for node in nodes if node.process] == [143, 143]
    assert not any(alive(node) for node in nodes)


async def test_a_pod_that_is_to_go_waits_until_its_good_end_was_heard(stub: StubController) -> None:
    """Issue 11.1: it ended with code 143 at once, and a controller that was away heard of no end."""
    (node,) = await stub.start(1)
    await stub.run([node], 1, python("pass"), launcher="none", grace_s=300)
    await finished(stub, [node], 1)
    assert node.process is not None
    os.kill(node.process.pid, signal.SIGTERM)
    await asyncio.sleep(0.4)  # nothing is to happen in it
    await stub.direct(node, attempt=1, desired="exit", exitCode=0)
    await stub.until(lambda: node.process and node.process.exit_code is not None, "exit")
    assert node.process.exit_code == 0


@pytest.mark.parametrize("directed", [True, False])
async def test_ranks_of_a_terminating_pod_run_until_directed_or_half_of_the_grace(
    stub: StubController, directed: bool
) -> None:
    (node,) = await stub.start(1)
    await stub.run([node], 1, python("import time; time.sleep(600)"), launcher="none", grace_s=300 if directed else 8)
    await stub.until(lambda: state(node) == ["running"] and rank_pids(node, 0), "running")
    assert node.process is not None
    pids = rank_pids(node, 0)
    os.kill(node.process.pid, signal.SIGTERM)
    await asyncio.sleep(0.4)  # nothing is to happen in it
    assert rank_pids(node, 0) == pids
    assert node.process.exit_code is None
    if directed:
        await stub.direct(node, attempt=2, desired="hold")
    await stub.until(lambda: node.process and node.process.exit_code is not None, "exit")
    assert node.process.exit_code == 143
    assert not alive(node)


def daemons(node: Node) -> list[str]:
    return re.findall(r"^daemon (\d+)$", node.output, re.MULTILINE)


async def test_a_daemon_that_a_rank_double_forked_does_not_outlive_the_attempt(stub: StubController) -> None:
    (node,) = await stub.start(1)
    program = """
import os, signal, time
readable, writable = os.pipe()
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        print("daemon", os.getpid(), flush=True)
        os.write(writable, b"up")
        time.sleep(600)
    os._exit(0)
os.read(readable, 2)
time.sleep(0 if os.environ["MUSTER_ATTEMPT"] == "1" else 600)
"""
    for attempt in (1, 3):
        await stub.run([node], attempt, python(program), launcher="none")
        started = (attempt + 1) // 2
        await stub.until(lambda n=started: len(daemons(node)) == n, "the daemon runs")  # type: ignore[misc]
        daemon = daemons(node)[-1]
        if attempt == 1:
            await finished(stub, [node], 1)
        await stub.hold([node], attempt + 1)
        assert daemon not in os.listdir("/proc")
    assert not alive(node, without_supervisor=True)


async def test_a_failed_rank_of_launcher_none_stops_its_nodes_other_ranks(stub: StubController) -> None:
    (node,) = await stub.start(1)
    program = "import muster, sys, time\nif muster.rank() == 1: sys.exit('out of memory')\ntime.sleep(600)"
    await stub.run([node], 1, python(program), launcher="none", ranks_per_node=3)
    await finished(stub, [node], 1)
    failure = node.latest["exit"]
    assert (failure["rank"], failure["code"], failure["tail"]) == (1, 1, ["out of memory"])
    assert "[rank 1] out of memory" in node.output
    assert not alive(node, without_supervisor=True)


async def test_the_nodes_that_are_left_stop_when_node_rank_0_vanishes(stub: StubController) -> None:
    nodes = await stub.start(3)
    await stub.run(nodes, 1, python("import mpi4py.MPI, time; time.sleep(600)"))
    await stub.until(lambda: all(rank_pids(node, k) for k, node in enumerate(nodes)), "ranks started")
    for pid in alive(nodes[0]):  # as a node dies: everything at once
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await finished(stub, nodes[1:], 1)
    reasons = {node.latest["exit"]["reason"] for node in nodes[1:]}
    assert reasons <= {"launcher connection lost", "ranks stopped by their launcher"}
    assert {node.latest["exit"]["rank"] for node in nodes[1:]} == {-1}
    assert not any(alive(node, without_supervisor=True) for node in nodes[1:])


@pytest.mark.parametrize(
    ("launcher", "what"),
    [("mpi", "the image needs MPICH, Intel MPI or Open MPI"), ("torchrun", "the image needs PyTorch")],
)
async def test_a_missing_launcher_is_named(stub: StubController, tmp_path: Path, launcher: str, what: str) -> None:
    (tmp_path / "empty").mkdir()
    node = stub.node(0, PATH=str(tmp_path / "empty"))
    node.start(stub.run_command)
    await stub.until(lambda: state(node) == ["idle"], "joined")
    await stub.run([node], 1, ["true"], launcher=launcher)
    await finished(stub, [node], 1)
    failure = node.latest["exit"]
    assert failure["code"] == 127
    assert what in failure["reason"]
    assert (failure["errno"], failure["program"]) == (errno.ENOENT, "mpiexec" if launcher == "mpi" else launcher)


async def test_a_command_that_does_not_exist_is_named(stub: StubController) -> None:
    (node,) = await stub.start(1)
    await stub.run([node], 1, ["trian.py"], launcher="none")
    await finished(stub, [node], 1)
    assert node.latest["exit"]["code"] == 127
    assert (node.latest["exit"]["errno"], node.latest["exit"]["program"]) == (errno.ENOENT, "trian.py")
    assert "trian.py: not found on PATH" in node.latest["exit"]["tail"][-1]


async def test_a_command_that_is_too_long_is_named_by_every_node(stub: StubController) -> None:
    """Issue 11.24: if only the node of mpiexec reported it, the job would be retried."""
    nodes = await stub.start(2)
    await stub.run(nodes, 1, ["true", "x" * (32 * os.sysconf("SC_PAGE_SIZE"))])
    await stub.until(lambda: all(node.latest["state"] == "finished" for node in nodes), "finished")
    assert [(node.latest["exit"]["errno"], node.latest["exit"]["program"]) for node in nodes] == [
        (errno.E2BIG, "true")
    ] * 2


async def test_a_stale_attempts_checkpoint_is_refused(stub: StubController, tmp_path: Path) -> None:
    (node,) = await stub.start(1, MUSTER_CHECKPOINT_DIR=str(tmp_path / "ckpt"))
    program = f"""
import os, time, muster
write = lambda path: open(path, "w").close()
muster.save_checkpoint(1, write)
while not os.path.exists({str(tmp_path / "gate")!r}): time.sleep(0.02)
try:
    muster.save_checkpoint(2, write)
except muster.StaleAttempt as error:
    print("refused:", error, flush=True)
"""
    await stub.run([node], 1, python(program), launcher="none")
    await stub.until(lambda: stub.checkpoint, "the first checkpoint")
    stub.attempt = 2  # the job has gone on elsewhere; this node does not know yet
    (tmp_path / "gate").touch()
    await finished(stub, [node], 1)
    assert "refused: attempt 1 is over, the job is at attempt 2" in node.output
    assert stub.checkpoint is not None
    assert stub.checkpoint["step"] == 1
    assert sorted(os.listdir(tmp_path / "ckpt")) == [".muster", os.path.basename(stub.checkpoint["path"])]


async def test_code_is_unpacked_into_the_working_directory_once(stub: StubController, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "hello.py").write_text("print('from the archive')\n")
    archive = tmp_path / "code.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(source / "hello.py", "hello.py")
    (node,) = await stub.start(1, MUSTER_CODE_ARCHIVE=str(archive))
    await stub.run([node], 1, [sys.executable, "hello.py"], launcher="none")
    await finished(stub, [node], 1)
    assert "from the archive" in node.output


async def test_supervise_keeps_quiet_while_nothing_changes(stub: StubController) -> None:
    (node,) = await stub.start(1)
    await stub.hold([node], 1)
    await stub.direct(node, attempt=1, desired="hold")
    await stub.until(lambda: node.latest["revision"] == node.directive["revision"], "directive taken")
    count = len(node.reports)
    await asyncio.sleep(1.0)  # pollS is 5
    assert len(node.reports) == count
