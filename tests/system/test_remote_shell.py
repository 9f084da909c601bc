"""The remote shell between supervisors: who is let in, and what happens to what runs there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster.trainingjobs.supervisor.basics import SELF
from muster.trainingjobs.supervisor.remoteshell import rsh as client
from muster.trainingjobs.supervisor.remoteshell import wire
from tests.support.supervisor_stub import KEY, Node, StubController
from tests.support.waiting import TIMEOUT_S


@pytest.fixture
async def stub(tmp_path: Path) -> AsyncIterator[StubController]:
    async with StubController(tmp_path) as controller:
        yield controller


@pytest.fixture
async def node(stub: StubController) -> AsyncIterator[Node]:
    """A node that takes commands of attempt 5, kept open by one that runs all the while."""
    node = await serving(stub)
    channel = await asyncio.to_thread(client.shell_connect, config(node), node.address)
    with channel.sock:
        channel.send(wire.COMMAND, b"echo begun; sleep 300")
        assert await asyncio.to_thread(channel.receive) == [(wire.STDOUT, b"begun\n")]
        yield node


async def serving(stub: StubController) -> Node:
    """Node rank 1 of attempt 5."""
    nodes = await stub.start(2)
    await stub.run(nodes, 4, ["true"])
    hosts = [{"address": nodes[1].address, "shellPort": nodes[1].latest["shellPort"], "ranks": 1}]
    run = dict(nodes[1].directive["run"], hosts=hosts, nodeRank=1)
    await stub.direct(nodes[1], attempt=5, desired="run", run=run)
    await stub.until(lambda: nodes[1].latest["attempt"] == 5 and nodes[1].latest["state"] == "running", "attempt 5")
    return nodes[1]


def config(node: Node, **changes: Any) -> dict[str, Any]:
    return {
        "attempt": 5,
        "jobUID": "uid-job",
        "key": KEY,
        "hosts": [{"address": node.address, "shellPort": node.latest["shellPort"], "ranks": 1}],
        **changes,
    }


def rsh(tmp_path: Path, node: Node, *arguments: str, **changes: Any) -> subprocess.Popen[bytes]:
    path = tmp_path / "shell.json"
    path.write_text(json.dumps(config(node, **changes)))
    return subprocess.Popen(
        [*SELF, "rsh", *arguments],
        env={**os.environ, "MUSTER_SHELL_CONFIG": str(path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


async def communicate(process: subprocess.Popen[bytes], data: bytes = b"") -> tuple[bytes, bytes, int]:
    out, err = await asyncio.to_thread(process.communicate, data, TIMEOUT_S)
    return out, err, process.returncode


async def test_a_command_has_the_nodes_environment_stdin_and_its_exit_code(tmp_path: Path, node: Node) -> None:
    data = os.urandom(3_000_000)
    count = rsh(tmp_path, node, "-x", "-o", "Port=1", node.address, "cat; echo $POD_NAME $EXTRA >&2; exit 3")
    out, err, code = await communicate(count, data)
    assert out == data
    assert err == b"job-1-1\n"
    assert code == 3
    killed = rsh(tmp_path, node, f"user@{node.address}", "kill", "-KILL", "$$")
    assert (await communicate(killed))[2] == 137


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"key": "60" * 32}, b"wrong key, attempt or address"),
        ({"jobUID": "another"}, b"wrong key, attempt or address"),
        ({"attempt": 4}, b"not running that attempt"),
    ],
)
async def test_client_without_the_attempts_key_is_refused(
    tmp_path: Path, node: Node, changes: dict[str, Any], why: bytes
) -> None:
    mark = tmp_path / "mark"
    _, err, code = await communicate(rsh(tmp_path, node, node.address, f"touch {mark}", **changes))
    assert code == 255
    assert why in err
    assert not mark.exists()


async def test_a_node_outside_the_attempt_is_not_called(tmp_path: Path, node: Node) -> None:
    _, err, code = await communicate(rsh(tmp_path, node, "127.77.0.99", "true"))
    assert (code, b"is not a node of this attempt" in err) == (255, True)


async def test_a_server_without_the_key_gets_no_command(tmp_path: Path, node: Node) -> None:
    with socket.create_server(("127.77.0.50", 0)) as server:
        hosts = [{"address": "127.77.0.50", "shellPort": server.getsockname()[1], "ranks": 1}]
        process = rsh(tmp_path, node, "127.77.0.50", "echo secret", hosts=hosts)
        sock, _ = await asyncio.to_thread(server.accept)
        with sock:
            wire.send_line(sock, {"nonce": "00" * 32})
            hello = await asyncio.to_thread(wire.read_line, sock, time.monotonic() + TIMEOUT_S)
            assert set(hello) == {"attempt", "nonce", "mac"}
            wire.send_line(sock, {"mac": hello["mac"]})  # its own proof thrown back proves nothing
            _, err, code = await communicate(process)
            assert code == 255
            assert b"does not hold this attempt's key" in err
            assert sock.recv(100) == b""


async def test_a_proof_cannot_be_replayed(node: Node) -> None:
    def connect() -> tuple[socket.socket, dict[str, Any]]:
        sock = socket.create_connection((node.address, node.latest["shellPort"]), TIMEOUT_S)
        return sock, wire.read_line(sock, time.monotonic() + TIMEOUT_S)

    first, hello = connect()
    second, _ = connect()
    with first, second:
        about = ("uid-job", 5, node.address, hello["nonce"], "11")
        proof = {"attempt": 5, "nonce": "11", "mac": wire.shell_mac(bytes.fromhex(KEY), "client", *about)}
        wire.send_line(first, proof)
        assert "mac" in wire.read_line(first, time.monotonic() + TIMEOUT_S)
        wire.send_line(second, proof)
        assert "error" in wire.read_line(second, time.monotonic() + TIMEOUT_S)


async def test_a_forged_frame_ends_the_connection(tmp_path: Path, node: Node) -> None:
    mark = tmp_path / "mark"
    channel = await asyncio.to_thread(client.shell_connect, config(node), node.address)
    with channel.sock:
        channel._out = bytes(32)
        channel.send(wire.COMMAND, f"touch {mark}".encode())
        channel.sock.settimeout(TIMEOUT_S)
        with contextlib.suppress(ConnectionResetError):
            assert channel.sock.recv(100) == b""
    assert not mark.exists()


async def test_a_lost_connection_ends_the_remote_process_group(
    stub: StubController, tmp_path: Path, node: Node
) -> None:
    mark = tmp_path / "pids"
    process = rsh(tmp_path, node, node.address, f"sleep 300 & echo $$ $! > {mark}; sleep 300")
    await stub.until(lambda: mark.exists() and len(mark.read_text().split()) == 2, "the command runs")
    pids = mark.read_text().split()
    process.send_signal(signal.SIGKILL)
    await communicate(process)
    await stub.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the remote processes end")


@pytest.mark.parametrize(
    ("work", "code"),
    [("{rank} true; touch {mark}; sleep 300", 0), ("{rank} sh -c 'touch {mark}; sleep 300'", 255)],
    ids=["done", "running"],
)
async def test_connection_lost_after_the_last_rank_does_not_fail_the_job(
    stub: StubController, tmp_path: Path, work: str, code: int
) -> None:
    node, mark = await serving(stub), tmp_path / "mark"
    rank = f"PMI_RANK=1 PMI_SIZE=2 {sys.executable} -I -S {stub.supervisor} rank --"
    process = rsh(tmp_path, node, node.address, work.format(rank=rank, mark=mark))
    await stub.until(mark.exists, "the rank has begun, or ended")
    process.send_signal(signal.SIGKILL)
    await communicate(process)
    await stub.until(lambda: node.latest["state"] == "finished", "finished")
    assert node.latest["exit"]["code"] == code


async def test_silent_connections_do_not_keep_others_out(stub: StubController, tmp_path: Path, node: Node) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection((node.address, node.latest["shellPort"])))
        out, _, code = await communicate(rsh(tmp_path, node, node.address, "echo in"))
        assert (out, code) == (b"in\n", 0)


async def test_mpiexec_waits_for_a_node_that_starts_later(stub: StubController, tmp_path: Path) -> None:
    nodes = await stub.start(1)
    process = rsh(tmp_path, nodes[0], nodes[0].address, "echo there")
    await asyncio.sleep(0.3)  # so that it has been turned away at least once
    assert process.poll() is None
    run = {
        "launcher": "mpi", "command": ["true"], "ranksPerNode": 1, "nodeRank": 1, "nodes": 2, "key": KEY,
        "masterAddress": "127.77.0.1", "masterPort": 1, "hosts": [],
    }  # fmt: skip
    await stub.direct(nodes[0], attempt=5, desired="run", run=run)
    out, _, code = await communicate(process)
    assert (out, code) == (b"there\n", 0)
