"""The pieces of the embedded cluster's daemon, with real processes and sockets."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from muster.embedded import control
from muster.embedded.cluster import ClusterConflictError, free_port, port_in_use, start
from muster.embedded.layout import ClusterSpec, Layout, ProcessId, valid_name
from muster.embedded.programs import Program
from muster.embedded.ranks import kill_rank
from muster.embedded.supervision import FIRST_PAUSE_S, Supervised
from tests.support.waiting import eventually


async def test_the_control_socket_answers_its_owner_only_however_deep_it_lies(tmp_path: Path) -> None:
    folder = tmp_path / ("deep-" * 30)
    folder.mkdir()
    path = folder / "control.sock"

    async def handler(request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] == "fail":
            raise control.ControlError("refused")
        return {"seen": request}

    async with control.serve(path, handler):
        assert path.stat().st_mode & 0o777 == 0o600
        assert await asyncio.to_thread(control.ask, path, op="x", n=1) == {"seen": {"op": "x", "n": 1}}
        with pytest.raises(control.ControlError, match="refused"):
            await asyncio.to_thread(control.ask, path, op="fail")
    assert not path.exists()
    with pytest.raises(control.ControlError, match="does not answer"):
        control.ask(path, op="x")


def test_a_process_is_not_mistaken_for_a_later_one_of_its_number() -> None:
    child = subprocess.Popen(["sleep", "60"])
    process = ProcessId.of(child.pid)
    assert process is not None
    assert process.alive
    older = ProcessId(process.pid, process.start_ticks - 1, process.boot_id)
    assert not older.alive
    assert not older.signal(signal.SIGKILL)
    assert child.poll() is None
    assert process.signal(signal.SIGKILL)
    eventually("it is dead", lambda: not process.alive)  # a zombie does not count
    child.wait()


def test_a_crashed_program_comes_back_after_growing_pauses(tmp_path: Path) -> None:
    now = [0.0]
    program = Supervised(Program("p", ["/bin/false"]), tmp_path / "log", dict(os.environ), lambda: now[0])
    pauses = []
    for _ in range(4):
        assert program.tick()
        eventually("it ended", lambda: program.child is None or program.child.exit_code is not None)
        assert program.tick()  # notices the end
        began = now[0]
        while not program.child:
            now[0] += 0.1
            program.tick()
        pauses.append(now[0] - began)
        program.child.stop(0)
        program.child = None
        program._start_at = 0.0
    assert pauses[0] == pytest.approx(FIRST_PAUSE_S, abs=0.15)
    assert pauses == sorted(pauses)
    assert pauses[3] > 4 * pauses[0]
    assert program.restarts == 4


def test_a_stopped_program_stays_stopped_until_it_is_started(tmp_path: Path) -> None:
    program = Supervised(Program("p", ["/bin/sleep", "60"]), tmp_path / "log", dict(os.environ), time.monotonic)
    program.tick()
    assert program.process is not None
    program.stop(grace_s=0)
    assert not program.tick()
    assert program.describe() == {"state": "stopped", "pid": 0, "restarts": 0}
    program.start()
    assert program.tick()
    program.stop(grace_s=0)


def test_the_lowest_rank_of_a_pod_is_the_one_killed() -> None:
    uid = f"pod-{os.getpid()}"
    script = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    ranks = {
        rank: subprocess.Popen(
            [sys.executable, "-c", script], env=os.environ | {"MUSTER_POD_UID": uid, "PMI_RANK": str(rank)}
        )
        for rank in (3, 2)
    }
    other = subprocess.Popen(["sleep", "60"], env=os.environ | {"MUSTER_POD_UID": uid})
    between = {"MUSTER_POD_UID": uid, "PMI_RANK": "1", "MUSTER_RANK_SOCKET": "/tmp/ranks"}
    supervisors = subprocess.Popen(["sleep", "60"], env=os.environ | between)
    try:
        eventually("rank 9 is not there", lambda: kill_rank(uid, 9) is None)
        assert kill_rank(uid) == 2
        assert ranks[2].wait(10) == -signal.SIGKILL
        assert kill_rank(uid, 3) == 3
        assert ranks[3].wait(10) == -signal.SIGKILL
        assert kill_rank("no-such-pod") is None
        assert other.poll() is None
        assert supervisors.poll() is None
    finally:
        for process in (other, supervisors):
            process.kill()
            process.wait()
        while kill_rank(uid) is not None:  # the children the ranks left
            time.sleep(0.01)


def test_a_port_is_free_or_in_use(tmp_path: Path) -> None:
    import socket

    port = free_port(set())
    assert not port_in_use(port)
    with socket.create_server(("127.0.0.1", port)):
        assert port_in_use(port)
        with pytest.raises(ClusterConflictError, match=str(port)):
            start(Layout(tmp_path / "c"), ClusterSpec(port=port))
    assert not (tmp_path / "c").exists()


def test_names_of_clusters() -> None:
    assert [valid_name(name) for name in ("a", "demo-1", "", "-a", "A", "a/b", "x" * 41)] == [
        True, True, False, False, False, False, False,
    ]  # fmt: skip


def test_the_shape_is_stored_for_its_owner_only(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "cluster")
    assert layout.read_spec() is None
    spec = ClusterSpec(name="x", nodes=3, port=7)
    layout.write_spec(spec)
    assert layout.read_spec() == spec
    assert layout.spec_file.stat().st_mode & 0o077 == 0
    layout.spec_file.write_text("broken")
    assert layout.read_spec() is None
