"""The late event loop reorders what has no order, keeps what has one, and a failure prints how to see it again."""

from __future__ import annotations

import asyncio
import os
import random
import re
import selectors
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from tests.support.handingout import TESTS
from tests.support.lateloop import LateLoop, Lateness, LateSelector

RACING = """
import asyncio
import socket


def test_sockets_are_read_in_the_order_of_writes() -> None:
    assert asyncio.run(read()) == list(range(12))


async def read() -> list[int]:
    loop, got = asyncio.get_running_loop(), []
    pairs = [socket.socketpair() for _ in range(12)]
    for number, (reader, writer) in enumerate(pairs):
        loop.add_reader(reader, lambda number=number: (got.append(number), loop.remove_reader(pairs[number][0])))
        writer.send(b"x")
    while len(got) < len(pairs):
        await asyncio.sleep(0)
    for reader, writer in pairs:
        reader.close()
        writer.close()
    return got
"""


@pytest.fixture
def late_loop() -> Iterator[LateLoop]:
    loop = LateLoop(Lateness(random.Random(1), 0.6, 0.003, False, 0.01, 0.4, True))
    try:
        yield loop
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on RACING, with the plugin alone."""
    (folder / "test_racing.py").write_text(RACING)
    plain = ["-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider", "-p", "tests.support.lateloop"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plain, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(TESTS.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@asynccontextmanager
async def connection() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server that sends back what it reads."""
    ended = asyncio.Event()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(10_000):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    yield reader, writer
    writer.close()
    await writer.wait_closed()
    await ended.wait()
    server.close()
    await server.wait_closed()


def test_callbacks_and_timers_keep_their_order(late_loop: LateLoop) -> None:
    ran: list[str] = []

    async def many() -> None:
        async with connection() as (reader, writer):
            for number in range(50):
                late_loop.call_soon(ran.append, f"soon {number:02}")
                late_loop.call_later(0.001 * number, ran.append, f"timer {number:02}")
            writer.write(b"x" * 1000)
            await reader.readexactly(1000)
            await asyncio.sleep(0.06)

    late_loop.run_until_complete(many())
    for kind in ("soon", "timer"):
        assert [text for text in ran if text.startswith(kind)] == [f"{kind} {number:02}" for number in range(50)]


def test_streams_lose_nothing_and_come_in_pieces(late_loop: LateLoop) -> None:
    sent = random.Random(2).randbytes(3_000_000)
    pieces: list[bytes] = []

    async def there_and_back() -> None:
        async with connection() as (reader, writer):
            writer.write(sent)
            writer.write_eof()
            while data := await reader.read(len(sent)):
                pieces.append(data)

    late_loop.run_until_complete(there_and_back())
    assert b"".join(pieces) == sent
    assert min(map(len, pieces)) < 100


def test_results_of_threads_come_in_another_order() -> None:
    """The second thread works when the first one has ended, and yet its result may come first."""
    order: list[str] = []
    held: set[int] = set()
    both_run, first_ended, overtaken = threading.Event(), threading.Event(), threading.Event()

    class Overtaken(Lateness):
        def pause(self) -> None:
            if threading.get_ident() in held:
                assert overtaken.wait(30)

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(one())
            group.create_task(two())

    async def one() -> None:
        await asyncio.to_thread(first)
        order.append("first")

    async def two() -> None:
        await asyncio.to_thread(second)
        order.append("second")
        overtaken.set()

    def first() -> None:
        assert both_run.wait(30)
        held.add(threading.get_ident())
        first_ended.set()

    def second() -> None:
        both_run.set()
        assert first_ended.wait(30)

    loop = LateLoop(Overtaken(random.Random(1), 0.6, 0.003, False, 0.01, 0.4, True))
    with closing(loop):
        loop.run_until_complete(both())
        loop.run_until_complete(loop.shutdown_default_executor())
    assert order == ["second", "first"]


@pytest.mark.parametrize(("left_s", "count"), [(60.0, 0), (0.0, 1)])
def test_lateness_ends(left_s: float, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lateness = Lateness(random.Random(1), 1.0, 60.0, False, 0.0, 0.0, False, ends_at=time.monotonic() + left_s)
    reader, writer = socket.socketpair()
    with LateSelector(lateness) as selector, reader, writer:
        selector.register(reader, selectors.EVENT_READ)
        writer.send(b"x")
        assert len(selector.select(0)) == count
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    lateness.pause()
    assert len(pauses) == 1 - count


def test_same_seed_draws_the_same_lateness() -> None:
    first, second, other = (Lateness.drawn(seed) for seed in ("1 a", "1 a", "1 b"))
    assert [first.rng.random() for _ in range(9)] == [second.rng.random() for _ in range(9)]
    assert first.rng.random() != other.rng.random()


@pytest.mark.slow
def test_failure_prints_the_command_that_shows_it_again(tmp_path: Path) -> None:
    late = run(tmp_path, "--late-seed", "7")
    assert late.returncode == 1, late.stdout + late.stderr
    printed = re.search(r"Run it again, a few times: \.venv/bin/pytest (.*)", late.stdout)
    assert printed, late.stdout
    assert run(tmp_path, *shlex.split(printed[1])).returncode == 1


@pytest.mark.slow
def test_loop_is_not_late_unless_asked(tmp_path: Path) -> None:
    assert run(tmp_path).returncode == 0
