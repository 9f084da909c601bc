"""Jobs whose remote shell is the image's own sshd and ssh, on loopback addresses. Nothing below /etc/ssh is read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from muster.trainingjobs.supervisor.remoteshell.sshkeys import SshKey, client_key
from tests.support.openssh import require_openssh
from tests.support.supervisor_stub import KEY, Node, StubController

TOTAL = "import mpi4py.MPI as MPI; print('total', MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank), flush=True)"
SLEEP = "import mpi4py.MPI, time; print('ready', flush=True); time.sleep(300)"

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def openssh() -> None:
    require_openssh()


@pytest.fixture
async def stub(tmp_path: Path) -> AsyncIterator[StubController]:
    async with StubController(tmp_path) as controller:
        yield controller
        pids = [pid for node in controller.nodes.values() if node.process for pid in below(node.process.pid)]
    assert not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text()


def below(pid: int) -> list[int]:
    """Live processes below a supervisor, sshd's among them."""
    found = []
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    for child in children:
        found += [int(child), *below(int(child))]
    return found


def folder(node: Node) -> Path:
    """The supervisor's own folder, below its TMPDIR."""
    (found,) = (path for path in Path(node.env["TMPDIR"]).glob("muster-*") if path.is_dir())
    return found


async def finished(stub: StubController, nodes: list[Node], timeout_s: float = 40) -> None:
    await stub.until(lambda: all(node.latest["state"] == "finished" for node in nodes), "finished", timeout_s)


async def running(stub: StubController, tmp_path: Path, attempt: int = 1) -> list[Node]:
    nodes = await stub.start(3)
    await stub.run(nodes, attempt, [sys.executable, "-c", SLEEP], remoteShell="sshd")
    await stub.until(lambda: all("ready" in node.output for node in nodes), "ranks run")
    return nodes


async def test_ranks_start_through_sshd_with_their_own_pods_environment(stub: StubController) -> None:
    nodes = await stub.start(3)
    program = TOTAL + "; import os; print(*(os.environ[n] for n in 'RANK POD_NAME EXTRA'.split()), flush=True)"
    for attempt in (1, 2):
        await stub.run(
            nodes, attempt, [sys.executable, "-c", program], ranks_per_node=2, remoteShell="sshd", env={"EXTRA": "x y"}
        )
        await stub.until(lambda n=attempt: all(k.latest["attempt"] == n for k in nodes), "begun")  # type: ignore[misc]
        await finished(stub, nodes)
        assert [node.latest["exit"]["code"] for node in nodes] == [0, 0, 0]
        assert [node.latest["exit"]["reason"] for node in nodes] == ["all ranks exited"] * 3
        if attempt == 1:
            await stub.hold(nodes, 2)
    for slot, node in enumerate(nodes):
        assert node.output.count("total 15") == 4
        assert f"[rank {2 * slot}] {2 * slot} {node.name} x y" in node.output
    for node in nodes[1:]:
        assert len(re.findall(r"^\[sshd\] Accepted publickey", node.output, re.MULTILINE)) == 2


async def test_a_killed_rank_is_reported_exactly(stub: StubController, tmp_path: Path) -> None:
    nodes = await running(stub, tmp_path)
    assert nodes[2].process is not None
    victims = [pid for pid in below(nodes[2].process.pid) if b"RANK=2" in environ(pid)]
    os.kill(victims[-1], signal.SIGKILL)
    await finished(stub, nodes)
    failure = nodes[2].latest["exit"]
    assert (failure["rank"], failure["code"], failure["signal"], failure["reason"]) == (2, 137, 9, "rank exited")
    assert nodes[1].latest["exit"]["rank"] == -1
    assert nodes[0].latest["exit"]["reason"] == "launcher exited"


def environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


async def test_sessions_end_with_the_attempt_and_its_keys_go(stub: StubController, tmp_path: Path) -> None:
    nodes = await running(stub, tmp_path)
    folders = [folder(node) for node in nodes]
    files = [path for one in folders for path in (one / "ssh").iterdir()]
    assert {path.name for path in files} >= {"host_key", "authorized_key", "client_key", "known_hosts"}
    assert {path.stat().st_mode & 0o077 for path in [*files, *folders]} == {0}
    assert nodes[1].process is not None
    assert any(name(pid).startswith("sshd") for pid in below(nodes[1].process.pid))
    await stub.hold(nodes, 2)
    for node, one in zip(nodes, folders, strict=True):
        assert node.process is not None
        assert below(node.process.pid) == []
        assert not (one / "ssh").exists()


async def test_a_lost_client_ends_what_ran_for_it(stub: StubController, tmp_path: Path) -> None:
    nodes = await running(stub, tmp_path)
    assert nodes[0].process is not None
    for pid in (nodes[0].process.pid, *below(nodes[0].process.pid)):
        with contextlib.suppress(ProcessLookupError):  # it may end with its parent
            os.kill(pid, signal.SIGKILL)
    await finished(stub, nodes[1:])
    reasons = {node.latest["exit"]["reason"] for node in nodes[1:]}
    assert reasons <= {"launcher connection lost", "ranks stopped by their launcher"}
    for node in nodes[1:]:
        assert node.process is not None
        assert below(node.process.pid) == []


def ssh(node: Node, config: Path, *options: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [] if any(option.startswith("-W") for option in options) else ["echo in $POD_NAME; exit 3"]
    return subprocess.run(
        ["ssh", "-F", str(config), *options, node.address, *command],
        env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip


async def test_only_the_attempts_key_is_let_in_and_only_the_attempts_host_is_believed(
    stub: StubController, tmp_path: Path
) -> None:
    nodes = await running(stub, tmp_path, attempt=7)
    private = folder(nodes[0])
    written = private / "ssh" / "ssh_config"
    env = {"MUSTER_SHELL_CONFIG": str(private / "shell.json")}
    good = await asyncio.to_thread(ssh, nodes[1], written, env=env)
    assert (good.stdout, good.returncode) == (f"in {nodes[1].name}\n", 3)
    plain = ("-o", "ProxyCommand=none")  # ssh as anybody has it, straight to the shell port
    good = await asyncio.to_thread(ssh, nodes[1], written, *plain)
    assert (good.stdout, good.returncode) == (f"in {nodes[1].name}\n", 3)

    for number, key in enumerate((client_key(bytes.fromhex(KEY), "uid-job", 6), SshKey(b"another", "client"))):
        path = tmp_path / f"key-{number}"
        path.touch(0o600)
        path.write_text(key.private)
        config = tmp_path / f"config-{number}"
        config.write_text(written.read_text().replace(str(private / "ssh" / "client_key"), str(path)))
        refused = await asyncio.to_thread(ssh, nodes[1], config, *plain)
        assert (refused.stdout, refused.returncode) == ("", 255)
        assert "Permission denied (publickey)" in refused.stderr

    known = (private / "ssh" / "known_hosts").read_text().splitlines()
    swapped = tmp_path / "known_hosts"  # the right key of a wrong node
    swapped.write_text(known[1].split()[0] + " " + known[2].split(" ", 1)[1] + "\n")
    refused = await asyncio.to_thread(ssh, nodes[1], written, *plain, "-o", f"UserKnownHostsFile={swapped}")
    assert (refused.stdout, refused.returncode) == ("", 255)
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.stderr or "Host key verification" in refused.stderr

    forward = ("-o", "ClearAllForwardings=no", "-o", "ExitOnForwardFailure=yes")
    for option in ("-R127.77.0.9:45998:127.0.0.1:22", f"-W{stub.address}:{stub.port}"):
        refused = await asyncio.to_thread(ssh, nodes[1], written, *plain, *forward, option)
        assert (refused.stdout, refused.returncode) == ("", 255)


async def test_ssh_waits_for_a_node_that_starts_later(stub: StubController) -> None:
    nodes = await stub.start(2)
    command = [sys.executable, "-c", TOTAL]
    await stub.run(nodes, 1, command, ranks_on=(0,), remoteShell="sshd")
    await stub.until(lambda: nodes[0].latest["state"] == "running", "node rank 0 runs")
    await asyncio.sleep(0.5)  # so that ssh has been turned away at least once
    assert [node.latest["state"] for node in nodes] == ["running", "idle"]
    await stub.run(nodes, 1, command, ranks_on=(1,), remoteShell="sshd")
    await finished(stub, nodes)
    assert [node.latest["exit"]["code"] for node in nodes] == [0, 0]
