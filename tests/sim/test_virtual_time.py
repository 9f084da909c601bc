"""The event loop of simulations, and that nothing in one leaves it."""

from __future__ import annotations

import ast
import asyncio
import os
import random
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.sim.virtual.loop import START_S, Stuck, TooManySteps, VirtualLoop
from muster.sim.virtual.process import Process
from muster.sim.virtual.sealed import LeftTheSimulation, sealed

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/muster"
SIMULATED = ("sim/virtual", "scheduler", "trainingjobs", "embedded/apiserver", "embedded/controllers", "readcache/hub")
FILES = ("sim/nodes.py", "sim/nodeobjects.py", "sim/poller.py", "sim/supervisor.py", "embedded/store.py",
         "embedded/item.py", "embedded/watching.py")  # fmt: skip
KUBE = (
    "cache", "client", "configmapsource", "connection/restclient", "controller", "events", "executor", "informer",
    "leader", "planloop", "workqueue",
)  # fmt: skip
OUTSIDE = {"embedded/apiserver/program.py", "embedded/apiserver/server.py", "embedded/apiserver/proxy.py",
           "embedded/apiserver/access/state_dir.py", "embedded/apiserver/request_log.py",
           "embedded/apiserver/metrics.py", "sim/virtual/sealed.py", "fuzz/many.py",
           "trainingjobs/rendezvous/secrets.py", "trainingjobs/rendezvous/server.py",
           "trainingjobs/rendezvous/overload.py"}  # fmt: skip


def test_an_hour_passes_at_once() -> None:
    async def wait() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    before = time.monotonic()
    assert VirtualLoop.new().run(wait()) == START_S + 3600
    assert time.monotonic() - before < 60


def test_timers_fire_in_the_order_of_their_time_then_of_their_making() -> None:
    seen: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for when, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
            loop.call_later(when, seen.append, name)
        cancelled = loop.call_later(1.5, seen.append, "never")
        cancelled.cancel()
        await asyncio.sleep(3)

    VirtualLoop.new().run(main())
    assert seen == ["a", "b", "c"]


def test_waiting_for_what_cannot_come_is_said() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    loop = VirtualLoop.new()
    with pytest.raises(Stuck):
        loop.run(main())
    loop.wind_up()


def test_a_circle_is_given_up() -> None:
    def again() -> None:
        asyncio.get_running_loop().call_soon(again)

    async def main() -> None:
        again()
        await asyncio.sleep(1)

    loop = VirtualLoop.new(steps_max=1000)
    with pytest.raises(TooManySteps):
        loop.run(main())
    loop.wind_up()


def test_a_killed_process_does_nothing_more_not_even_finally() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                seen.append("works")
        finally:
            seen.append("says goodbye")

    async def main() -> None:
        process = Process("p")
        process.spawn(work())
        await asyncio.sleep(2.5)
        process.kill()
        await asyncio.sleep(10)
        assert seen == ["works", "works"]

    loop = VirtualLoop.new()
    loop.run(main())
    loop.wind_up()


def test_halted_process_continues_where_it_stopped() -> None:
    times: list[float] = []

    async def work() -> None:
        while True:
            await asyncio.sleep(1)
            times.append(asyncio.get_running_loop().time() - START_S)

    async def main() -> None:
        process = Process("p")
        process.spawn(work())
        await asyncio.sleep(1.5)
        process.halt()
        await asyncio.sleep(10)
        process.resume()
        await asyncio.sleep(1.2)

    loop = VirtualLoop.new()
    loop.run(main())
    loop.wind_up()
    assert times == [1.0, 11.5, 12.5]


@pytest.mark.parametrize(
    "leave",
    [
        lambda: time.sleep(1),
        lambda: socket.socket(),
        lambda: threading.Thread(target=print).start(),
        lambda: subprocess.run(["true"], check=False),
        lambda: random.Random(),
        lambda: uuid.uuid4(),
        lambda: os.urandom(8),
    ],
)
def test_nothing_leaves_a_simulation(leave: Callable[[], object]) -> None:
    with sealed(VirtualLoop.new()), pytest.raises(LeftTheSimulation):
        leave()


def test_clocks_tell_virtual_time_and_only_inside() -> None:
    with sealed(VirtualLoop.new()):
        assert time.time() == time.monotonic() == time.perf_counter() == START_S
    assert time.time() != START_S


def test_other_threads_of_the_process_keep_their_world() -> None:
    sealed_now, seen = threading.Event(), list[float]()

    def beside() -> None:
        assert sealed_now.wait(10)
        with socket.socket() as connection:
            connection.bind(("127.0.0.1", 0))
        seen.append(time.time())

    thread = threading.Thread(target=beside)
    thread.start()
    with sealed(VirtualLoop.new()):
        sealed_now.set()
        thread.join()
    assert len(seen) == 1
    assert seen[0] != START_S


def test_threads_are_refused() -> None:
    async def main() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(RuntimeError, match="no threads"):
        VirtualLoop.new().run(main())


def test_simulated_code_uses_no_wall_clock_thread_or_unseeded_randomness() -> None:
    """What `sealed` cannot take away (`datetime.now` is built in) and what a run may not happen to reach."""
    found = []
    paths = [path for folder in SIMULATED for path in sorted((SOURCE / folder).rglob("*.py"))]
    paths += sorted((ROOT / "fuzz").rglob("*.py"))
    for path in [*paths, *(SOURCE / name for name in FILES), *(SOURCE / f"kube/{name}.py" for name in KUBE)]:
        name = path.relative_to(ROOT).as_posix().removeprefix("src/muster/")
        if name not in OUTSIDE and not name.startswith("trainingjobs/supervisor/"):
            found += [f"{name}:{line}: {what}" for line, what in _banned(ast.parse(path.read_text()))]
    assert found == []


BANNED_CALLS = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "time.time", "time.sleep",
                "asyncio.to_thread", "uuid.uuid4", "uuid.uuid1", "os.urandom", "threading.Thread", "socket.socket",
                "datetime.datetime.now"}  # fmt: skip
BANNED_METHODS = {"run_in_executor", "call_soon_threadsafe"}
BANNED_IMPORTS = {"threading", "socket", "subprocess", "multiprocessing", "concurrent", "secrets"}


def _banned(tree: ast.Module) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in BANNED_CALLS or called.rpartition(".")[2] in BANNED_METHODS:
                found.append((node.lineno, called))
        elif isinstance(node, ast.Import):
            found += [(node.lineno, one.name) for one in node.names if one.name.split(".")[0] in BANNED_IMPORTS]
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in BANNED_IMPORTS:
            found.append((node.lineno, node.module))
    return found


def test_the_same_seed_leaves_the_same_trace_whatever_the_hash_seed() -> None:
    program = (
        "from fuzz.run import run\nfrom fuzz.scenario import scenario\n"
        "print([run(scenario(seed)).digest for seed in (1, 6, 8)])"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1, digests
