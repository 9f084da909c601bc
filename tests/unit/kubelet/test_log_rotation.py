"""Issue 11.4: container logs are rotated, stay within their bound, and are read across rotation."""

from __future__ import annotations

import asyncio
import gzip
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.embedded.kubelet.containers.shim import LineLog, LogFile, rotated_logs
from muster.embedded.kubelet.logs.compression import compress_rotated
from muster.embedded.kubelet.logs.reading import LogOptions, read_log, read_tail

SIZE = 64 << 10
NEVER = 1 << 40


def write_lines(log: LineLog, first: int, last: int) -> None:
    for number in range(first, last):
        log.feed(f"{number:07d} {'x' * 90}\n".encode())


def numbers(text: bytes) -> list[int]:
    return [int(line.split()[0]) for line in text.splitlines()]


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


async def read(file: Path, options: LogOptions) -> bytes:
    return b"".join([chunk async for chunk in read_log(file, options, lambda: True)])


@given(st.binary(max_size=300), st.lists(st.integers(min_value=1, max_value=50), max_size=8))
def test_written_lines_are_read_back(data: bytes, cuts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "0.log"
        log = LineLog(LogFile(str(file), NEVER, 2), "stdout")
        rest = data
        for cut in cuts:
            log.feed(rest[:cut])
            rest = rest[cut:]
        log.feed(rest)
        log.close()
        assert asyncio.run(read(file, LogOptions())) == data


async def test_tail_and_limits(tmp_path: Path) -> None:
    file = tmp_path / "0.log"
    log = LineLog(LogFile(str(file), NEVER, 2), "stdout")
    for number in range(5000):
        log.feed(f"{number}\n".encode())
    assert await read(file, LogOptions(tail_lines=2)) == b"4998\n4999\n"
    assert await read(file, LogOptions(tail_lines=0)) == b""
    assert len(await read(file, LogOptions(tail_lines=9999))) == sum(len(f"{number}\n") for number in range(5000))
    for count in range(1995, 2005):
        assert numbers(await read(file, LogOptions(tail_lines=count))) == list(range(5000 - count, 5000))
    assert await read(file, LogOptions(limit_bytes=3)) == b"0\n1"
    assert read_tail(file, 2, 6) == "\n4999\n"
    assert await read(tmp_path / "none.log", LogOptions(tail_lines=3)) == b""


async def test_flood_stays_within_its_files_and_reader_gets_newest_file(tmp_path: Path) -> None:
    file = tmp_path / "0.log"
    log = LineLog(LogFile(str(file), SIZE, 3), "stdout")
    write_lines(log, 0, 5000)
    rotated = rotated_logs(str(file))
    assert len(rotated) == 2
    assert set(sizes(tmp_path)) == {"0.log", *(Path(path).name for path in rotated)}
    assert max(sizes(tmp_path).values()) <= SIZE
    kept = [number for path in (*rotated, file) for number in numbers(await read(Path(path), LogOptions()))]
    assert kept == list(range(kept[0], 5000)), "rotation keeps the order and loses only the oldest lines"
    newest = numbers(await read(file, LogOptions()))
    assert newest == list(range(newest[0], 5000))
    assert newest[0] > kept[0]


async def test_line_without_end_is_bounded_in_memory_and_on_disk(tmp_path: Path) -> None:
    file = tmp_path / "0.log"
    log = LineLog(LogFile(str(file), SIZE, 2), "stdout")
    for _ in range(64):
        log.feed(b"z" * SIZE)
        assert len(log._rest) <= SIZE
    total = sum(sizes(tmp_path).values())
    assert total <= 2 * (2 * SIZE), "a single part may exceed the bound by its own size"
    assert set(await read(file, LogOptions())) == {ord("z")}


async def test_records_of_one_chunk_are_spread_over_files(tmp_path: Path) -> None:
    file = tmp_path / "0.log"
    log = LineLog(LogFile(str(file), SIZE, 2), "stdout")
    log.feed(b"\n" * SIZE)  # each empty line takes some forty bytes in the file
    assert max(sizes(tmp_path).values()) <= SIZE


async def follow(file: Path, ended: asyncio.Event) -> AsyncIterator[bytes]:
    async for chunk in read_log(file, LogOptions(follow=True), ended.is_set):
        yield chunk


async def test_follow_reads_every_line_across_several_rotations(tmp_path: Path) -> None:
    file = tmp_path / "0.log"
    log = LineLog(LogFile(str(file), SIZE, 50), "stdout")
    ended = asyncio.Event()
    write_lines(log, 0, 100)
    text = b""
    async with asyncio.timeout(30):
        async for chunk in follow(file, ended):
            text += chunk
            if text.count(b"\n") == 100:
                write_lines(log, 100, 3000)  # several rotations while the reader looks away
                write_lines(log, 3000, 3100)
            if text.count(b"\n") == 3100:
                log.close()
                ended.set()
    assert numbers(text) == list(range(3100))


async def read_while(file: Path, write: Callable[[], None]) -> bytes:
    """What a reader that follows gets of a log to which more is written once the first chunk was read."""
    ended, text = asyncio.Event(), b""
    async with asyncio.timeout(30):
        async for chunk in follow(file, ended):
            text += chunk
            if not ended.is_set():
                write()
                ended.set()
    return text


async def test_follow_continues_after_its_file_was_compressed(tmp_path: Path) -> None:
    folder = tmp_path / "pods" / "uid" / "logs" / "main"
    folder.mkdir(parents=True)
    file = folder / "0.log"
    log = LineLog(LogFile(str(file), SIZE, 50), "stdout")
    write_lines(log, 0, 10)

    def write() -> None:
        write_lines(log, 10, 3000)
        compress_rotated(tmp_path / "pods")
        assert [path.endswith(".gz") for path in rotated_logs(str(file))][-2:] == [True, False]

    assert numbers(await read_while(file, write)) == list(range(3000))


async def test_slow_reader_whose_file_was_removed_gets_the_oldest_that_is_left(tmp_path: Path) -> None:
    file = tmp_path / "0.log"
    log = LineLog(LogFile(str(file), SIZE, 2), "stdout")
    write_lines(log, 0, 10)
    found = numbers(await read_while(file, lambda: write_lines(log, 10, 5000)))
    assert found == sorted(set(found)), "no line is read twice or out of order"
    assert found[-1] == 4999


async def test_reading_ends_at_the_size_that_the_log_had(tmp_path: Path) -> None:
    file = tmp_path / "0.log"
    log = LineLog(LogFile(str(file), NEVER, 2), "stdout")
    write_lines(log, 0, 2000)
    text, written = b"", 2000
    async with asyncio.timeout(30):
        async for chunk in read_log(file, LogOptions(), lambda: False):
            text += chunk
            write_lines(log, written, written + 2000)
            written += 2000
    assert numbers(text) == list(range(2000))


def test_names_are_the_kubelets_and_sort_by_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_700_000_000_400_000_000]
    monkeypatch.setattr("muster.embedded.kubelet.containers.shim.time.time_ns", lambda: now[0])
    file = tmp_path / "0.log"
    log = LineLog(LogFile(str(file), SIZE, 50), "stdout")
    names: list[str] = []
    for second in (0, 0, 1, -5, 2):  # the clock may be set back
        now[0] = 1_700_000_000_400_000_000 + second * 1_000_000_000
        while len(rotated_logs(str(file))) == len(names):
            log.feed(b"y" * 1000 + b"\n")
        (name,) = {Path(path).name for path in rotated_logs(str(file))} - set(names)
        names.append(name)
    assert names[0] == "0.log.20231114-221320"
    assert names[1] == "0.log.20231114-221320.400000"
    assert [Path(path).name for path in rotated_logs(str(file))] == names


def test_compression_keeps_the_text_and_the_newest_rotated_file(tmp_path: Path) -> None:
    folder = tmp_path / "uid" / "logs" / "main"
    folder.mkdir(parents=True)
    file = folder / "0.log"
    write_lines(LineLog(LogFile(str(file), SIZE, 4), "stdout"), 0, 5000)
    before = {path: Path(path).read_bytes() for path in rotated_logs(str(file))}
    (folder / "0.log.20200101-000000.tmp").write_bytes(b"left by a kubelet that was killed")
    compress_rotated(tmp_path)
    compress_rotated(tmp_path)
    after = rotated_logs(str(file))
    assert [path.removesuffix(".gz") for path in after] == list(before)
    assert [gzip.decompress(Path(path).read_bytes()) for path in after[:-1]] == list(before.values())[:-1]
    assert Path(after[-1]).read_bytes() == before[after[-1]]
    assert not list(folder.glob("*.tmp"))


FULL_DISK = """
import resource, signal, sys
sys.path.insert(0, sys.argv[2])
from muster.embedded.kubelet.containers.shim import LineLog, LogFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = LineLog(LogFile(sys.argv[1], 1 << 40, 2), "stdout")
log.feed(b"before\\n")
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
for _ in range(5):
    log.feed(b"d" * 200 + b"\\n")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.feed(b"after\\n")
log.feed(b"later\\n")
"""


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_FSIZE)[1] != resource.RLIM_INFINITY, reason="a limit is set")
def test_disk_that_takes_no_more_ends_no_rank_and_is_named(tmp_path: Path) -> None:
    file = tmp_path / "0.log"
    source = str(Path(__file__).parents[3] / "src")
    subprocess.run([sys.executable, "-c", FULL_DISK, str(file), source], check=True, timeout=60)
    lines = asyncio.run(read(file, LogOptions())).decode().splitlines()
    assert lines[0] == "before"
    assert lines[1].startswith("--- muster: ")
    assert lines[1].endswith(" bytes of output were lost: File too large")
    assert lines[2:] == ["after", "later"]


def test_log_that_cannot_be_renamed_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(old: str, new: str) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "rename", refuse)
    file = tmp_path / "0.log"
    write_lines(LineLog(LogFile(str(file), SIZE, 3), "stdout"), 0, 5000)
    assert file.stat().st_size <= SIZE
    assert list(tmp_path.iterdir()) == [file]
