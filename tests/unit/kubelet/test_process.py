"""Real processes under a shim, and the sweep that finds what is left."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from muster.embedded.kubelet.containers.process import Process, ProcessSpec, StartError
from muster.embedded.kubelet.containers.shim import process_table
from muster.embedded.kubelet.sweep import CLUSTER_MARKER, NODE_MARKER, POD_MARKER, sweep
from tests.support.waiting import TIMEOUT_S, until


def spec(log: Path, *argv: str, **variables: str) -> ProcessSpec:
    return ProcessSpec(argv=argv, env={"PATH": os.environ["PATH"], **variables}, cwd="/", log=str(log))


def text(log: Path) -> str:
    return "".join(line.split(" ", 3)[3] for line in log.read_text().splitlines(keepends=True))


async def test_output_is_complete_when_the_end_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    process = await Process.start(spec(log, "seq", "20000"))
    exited = await process.exited
    assert (exited.code, exited.signal, exited.swept) == (0, 0, True)
    assert text(log) == "".join(f"{number}\n" for number in range(1, 20001))


async def test_kill_ends_everything(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    process = await Process.start(spec(log, "sh", "-c", "trap '' TERM; setsid sleep 1000 & echo $!; wait"))
    await until("it is logged", lambda: log.exists() and log.read_text().endswith("\n"))
    child = int(text(log))
    process.signal(15)
    process.kill()
    async with asyncio.timeout(TIMEOUT_S):
        exited = await process.exited
    assert (exited.code, exited.signal) == (137, 9)
    assert child not in process_table()


async def test_failed_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no program")
    for program, why in (("no-such-program", "executable file not found"), (f"{tmp_path}/file", "permission denied")):
        with pytest.raises(StartError, match=why):
            await Process.start(spec(tmp_path / "0.log", program))


async def test_missing_working_directory_is_named(tmp_path: Path) -> None:
    missing = ProcessSpec(argv=["true"], env={}, cwd="/no/such/folder", log=str(tmp_path / "0.log"))
    with pytest.raises(StartError, match="/no/such/folder"):
        await Process.start(missing)


def test_sweep_ends_what_is_marked_and_what_that_started_and_nothing_else() -> None:
    cluster, other = uuid.uuid4().hex, uuid.uuid4().hex
    script = "env -i sleep 1000 & echo started; wait"

    def start(cluster_id: str, node: str) -> subprocess.Popen[bytes]:
        marks = {CLUSTER_MARKER: cluster_id, NODE_MARKER: node, POD_MARKER: "uid"}
        process = subprocess.Popen(["sh", "-c", script], env={**os.environ, **marks}, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        return process

    processes = [start(cluster, "a"), start(cluster, "b"), start(other, "a")]
    try:
        assert sweep(cluster, "a") == 2
        assert [process.poll() is None for process in processes[1:]] == [True, True]
        processes[0].wait(TIMEOUT_S)  # killed, or ended by itself because its child was killed first
        assert sweep(cluster) == 2
        assert processes[2].poll() is None
        assert sweep(cluster) == 0
    finally:
        assert sweep(other) == 2
        for process in processes:
            process.wait(TIMEOUT_S)
            assert process.stdout is not None
            process.stdout.close()


def test_sweep_frees_shared_memory_that_only_the_swept_had_mapped() -> None:
    cluster, other = uuid.uuid4().hex, uuid.uuid4().hex
    own, common = [Path("/dev/shm") / f"muster-test-{uuid.uuid4().hex}" for _ in range(2)]
    script = (
        "import mmap, sys, time\n"
        "files = [open(name, 'r+b') for name in sys.argv[1:]]\n"
        "held = [mmap.mmap(file.fileno(), 0) for file in files]\n"
        "print('mapped', flush=True)\n"
        "time.sleep(1000)"
    )

    def start(cluster_id: str, *paths: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", script, *map(str, paths)]
        process = subprocess.Popen(command, env={**os.environ, CLUSTER_MARKER: cluster_id}, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"mapped\n"
        return process

    try:
        for path in (own, common):
            path.write_bytes(b"\0" * 4096)
        processes = [start(cluster, own, common), start(other, common)]
        assert sweep(cluster) == 1
        assert (own.exists(), common.exists()) == (False, True)
        assert sweep(other) == 1
        assert not common.exists()
        for process in processes:
            process.communicate()
    finally:
        for path in (own, common):
            path.unlink(missing_ok=True)
