"""What killed ranks leave in shared memory goes when their attempt is over, and nothing that is still in use."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.trainingjobs.supervisor.attempts import leftovers
from muster.trainingjobs.supervisor.attempts.leftovers import remove_leftovers
from tests.support.waiting import until

HOLD = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
sys.stdin.read()
"""


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def popen(*command: object) -> subprocess.Popen[str]:
        process = subprocess.Popen([str(part) for part in command], stdin=-1, stdout=-1, text=True)
        started.append(process)
        return process

    yield popen
    for process in started:
        process.kill()
        process.communicate()


def segment(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(b"\0" * 4096)
    return path


async def removed(folder: Path, since: float, path: Path) -> list[str]:
    """What goes once the files are no longer young."""
    return list(await until("it is removed", lambda: remove_leftovers(since, str(folder), str(folder))))


@pytest.mark.slow
async def test_a_segment_goes_when_the_last_process_that_mapped_it_is_gone(tmp_path: Path, start: Start) -> None:
    since = time.time()
    used, unused = segment(tmp_path, "mpich_shm_1_0"), segment(tmp_path, "nccl-abCD12")
    foreign = segment(tmp_path, "another-users")
    holder = start(sys.executable, "-c", HOLD, used)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "mapped\n"
    assert await removed(tmp_path, since, unused) == [str(unused)]
    assert used.exists()
    holder.kill()
    holder.wait()
    assert await removed(tmp_path, since, used) == [str(used)]
    assert foreign.exists()


LIBRARIES = ("mpich_shm_a", "nccl-abCD12", "nccl-shm-recv-1f-0-1", "vader_segment.host.0.1.2", "sm_segment.host.0.1.2",
             "psm_2e0d7af1", "torch_123_456", "torch_123_456_7")  # fmt: skip
PROGRAMS = ("torch_model.pt", "torch_ckpt_100", "torch_123", "psm_ckpt_100", "psm_2e0d7af1.bak", "nccl-tuning.json")


async def test_only_names_that_libraries_give_are_removed(tmp_path: Path) -> None:
    """Issue 11.2: a job that kept confirmed checkpoints in /dev/shm lost them at its restart."""
    since = time.time()
    segments = [segment(tmp_path, name) for name in LIBRARIES]
    kept = [segment(tmp_path, name) for name in PROGRAMS]
    gone: set[str] = set()

    def all_gone() -> bool:  # those made a moment later are young a moment longer
        gone.update(remove_leftovers(since, str(tmp_path), str(tmp_path)))
        return not any(path.exists() for path in segments)

    await until("the segments are removed", all_gone)
    assert gone == {*map(str, segments)}
    assert all(path.exists() for path in kept)


def test_existing_files_stay(tmp_path: Path) -> None:
    old = segment(tmp_path, "mpich_shm_1_0")
    assert remove_leftovers(time.time() + 5.0, str(tmp_path), str(tmp_path)) == []
    assert old.exists()


@pytest.mark.slow
async def test_a_description_stays_while_a_proxy_that_may_have_written_it_lives(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = time.time()
    program = tmp_path / "hydra_pmi_proxy"
    program.symlink_to("/bin/sleep")
    proxy = start(program, 600)
    # tests beside this one have proxies too, which may run for longer than this one waits
    monkeypatch.setattr(leftovers, "_pids", lambda: [proxy.pid])
    description = segment(tmp_path, "hydra_hwloc_xmlfile_abc")
    await asyncio.sleep(2.5)  # the start of a process is known to the second
    assert remove_leftovers(since, str(tmp_path), str(tmp_path)) == []
    proxy.kill()
    proxy.wait()
    assert await removed(tmp_path, since, description) == [str(description)]
