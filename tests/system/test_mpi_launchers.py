"""MPI libraries on nodes with networks of their own, where nothing is reached over loopback.

MPICH comes with the development environment, Open MPI and Intel MPI from tools/mpi-peers. To use another one, name a
Python environment that holds the library and mpi4py: MUSTER_INTELMPI_PREFIX, MUSTER_OPENMPI_PREFIX.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.openssh import require_openssh
from tests.support.supervisor_stub import Node, StubController

NODES = 3
PEERS = Path(__file__).resolve().parents[2] / "tools" / "mpi-peers"
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "mount"))),
        reason="needs root, ip, unshare and mount: each node gets a network namespace",
    ),
]


@pytest.fixture
def network() -> Iterator[str]:
    """A bridge with the controller's address, and a namespace with an address for each node; yields their prefix."""
    name = f"ms{uuid.uuid4().hex[:6]}"  # the kernel removes links of a deleted namespace later
    commands = [
        f"ip link add {name} type bridge",
        f"ip addr add 10.77.0.254/24 dev {name}",
        f"ip link set {name} up",
    ]
    for k in range(NODES):
        space, link = f"{name}-{k}", f"{name}v{k}"
        commands += [
            f"ip netns add {space}",
            f"ip link add {link} type veth peer name eth0 netns {space}",
            f"ip link set {link} master {name} up",
            f"ip -n {space} addr add 10.77.0.{k + 1}/24 dev eth0",
            f"ip -n {space} link set eth0 up",
            f"ip -n {space} link set lo up",
        ]
    try:
        for command in commands:
            subprocess.run(command.split(), check=True)
        yield name
    finally:
        for k in range(NODES):
            subprocess.run(["ip", "netns", "del", f"{name}-{k}"], check=False)
        subprocess.run(["ip", "link", "del", name], check=False)


@pytest.fixture(params=["mpich", "openmpi", "intelmpi"])
def prefix(request: pytest.FixtureRequest) -> str:
    library = request.param
    named = os.environ.get(f"MUSTER_{library.upper()}_PREFIX", "")
    if named or library == "mpich":
        return named or str(Path(sys.executable).parents[1])
    made = subprocess.run([str(PEERS), library, "--where"], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        if os.environ.get("MUSTER_REQUIRE_REAL") == "1":
            pytest.fail(f"MUSTER_REQUIRE_REAL=1 and no {library}: run tools/mpi-peers {library}", pytrace=False)
        pytest.skip(f"no {library}: run tools/mpi-peers {library}")
    return made.stdout.strip()


async def start(stub: StubController, network: str, prefix: str) -> list[Node]:
    ip = shutil.which("ip")
    assert ip is not None
    nodes = [stub.node(slot) for slot in range(NODES)]
    for slot, node in enumerate(nodes):
        node.address = f"10.77.0.{slot + 1}"
        node.env.update(
            POD_IP=node.address, MUSTER_URL=f"https://10.77.0.254:{stub.port}", PATH=f"{prefix}/bin:/usr/bin:/bin"
        )
        own = f"hostname node{slot}; mount -t tmpfs none /dev/shm; exec {sys.executable} {stub.supervisor} run"
        node.start([ip, "netns", "exec", f"{network}-{slot}", "unshare", "-u", "-m", "sh", "-c", own])
    await stub.until(lambda: all(node.latest.get("state") == "idle" for node in nodes), "all joined")
    return nodes


KILL = "os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(
    ("deed", "code", "shell"),
    [
        ("pass", 0, "supervisor"),
        (KILL, 137, "supervisor"),
        ("comm.Abort(7)", 7, "supervisor"),
        ("pass", 0, "sshd"),
        (KILL, 137, "sshd"),
    ],
)
async def test_ranks_find_each_other_and_the_first_failure_is_reported(
    tmp_path: Path, network: str, prefix: str, deed: str, code: int, shell: str
) -> None:
    if shell == "sshd":
        require_openssh()
    program = f"""
import os
from mpi4py import MPI
comm = MPI.COMM_WORLD
print(comm.allreduce(comm.rank), *(os.environ[n] for n in "RANK WORLD_SIZE LOCAL_RANK POD_NAME".split()), flush=True)
comm.Barrier()
if comm.rank == 3:
    {deed}
comm.Barrier()
"""
    async with StubController(tmp_path, address="10.77.0.254") as stub:
        nodes = await start(stub, network, prefix)
        await stub.run(nodes, 1, [f"{prefix}/bin/python", "-c", program], ranks_per_node=2, remoteShell=shell)
        await stub.until(lambda: all(node.latest["state"] == "finished" for node in nodes), "finished", 60)
        for slot, node in enumerate(nodes):
            lines = [line for line in node.output.splitlines() if line.startswith("[rank") and "job-" in line]
            assert sorted(lines) == [f"[rank {2 * slot + k}] 15 {2 * slot + k} 6 {k} job-{slot}-1" for k in range(2)]
        failed = [node.latest["exit"]["rank"] for node in nodes]
        assert failed == [-1, 3 if code else -1, -1]
        assert nodes[1].latest["exit"]["code"] == code
        assert (nodes[0].latest["exit"]["code"] == 0) == (code == 0)


async def test_every_node_reports_a_command_that_its_shell_does_not_find(
    tmp_path: Path, network: str, prefix: str
) -> None:
    """Issue 11.24: a launcher that ends all ranks after the first failure leaves the others no time for theirs."""
    async with StubController(tmp_path, address="10.77.0.254") as stub:
        nodes = await start(stub, network, prefix)
        await stub.run(nodes, 1, ["sh", "-c", "sleep 0.$((RANK * 4)); pythn train.py"])
        await stub.until(lambda: all(node.latest["state"] == "finished" for node in nodes), "finished", 60)
        exits = [node.latest["exit"] for node in nodes]
        assert [(each["rank"], each["code"]) for each in exits] == [(0, 127), (1, 127), (2, 127)]
        assert "pythn: not found" in exits[2]["tail"][-1]


@pytest.mark.parametrize(
    ("deed", "code", "last"),
    [
        ("raise ValueError('no such batch')", 1, "ValueError: no such batch"),
        ("print('cannot go on', file=sys.stderr); raise SystemExit(3)", 3, "cannot go on"),
    ],
)
async def test_an_uncaught_exception_in_one_rank_ends_the_attempt(
    tmp_path: Path, network: str, prefix: str, deed: str, code: int, last: str
) -> None:
    """Issue 11.3: without the hook `MPI_Finalize` of the failed rank and the barrier of the others never return."""
    program = f"""
import sys
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 3:
    {deed}
MPI.COMM_WORLD.Barrier()
"""
    async with StubController(tmp_path, address="10.77.0.254") as stub:
        nodes = await start(stub, network, prefix)
        await stub.run(nodes, 1, [f"{prefix}/bin/python", "-c", program], ranks_per_node=2)
        await stub.until(lambda: all(node.latest["state"] == "finished" for node in nodes), "finished", 60)
        failure = nodes[1].latest["exit"]
        assert (failure["rank"], failure["code"], failure["signal"], failure["reason"]) == (3, code, 0, "rank exited")
        assert failure["tail"][-1] == last
        assert [node.latest["exit"]["rank"] for node in nodes] == [-1, 3, -1]
        assert nodes[0].latest["exit"]["code"] != 0
