"""A pytest plugin: with `--late-seed N`, input, output and threads of asyncio come late, and in another order.

It does only what a busy machine may do as well. Callbacks keep the order of `call_soon`, timers that of their times.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
import shlex
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, TypeVar, TypeVarTuple

import pytest

SHARES = (0.0, 0.0, 0.05, 0.3, 0.6, 0.85)
"""Of events, and of what threads do: this share comes late."""
HOLD_S = (0.0, 0.003, 0.02)
"""How long an event is held at most: until a later look at the sockets, past a poll of `waiting.until`, past many."""
STALL_RATES = (0.0, 0.002, 0.01)
"""How often the whole loop stalls for up to STALL_S before it looks at its sockets."""
STALL_S = 0.03
CATCH_RATES = (0.05, 0.4, 0.9)
"""How often it stalls until its next timer is due, so that the timer runs between two steps of something else."""
PIECES = (1, 7, 100, 1448, 262_144, 262_144)
"""Bytes that one read of a stream takes at most. The large ones keep long transfers quick."""
LATE_S = 15.0
"""A loop is late for its first seconds only, so that long transfers end in time."""
_NAP_S = 0.0002  # so that a loop that has held everything back does not keep a core busy

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True)
class Lateness:
    """How late one loop is; the same numbers for the same seed and test."""

    rng: random.Random
    share: float
    hold_s: float
    in_bursts: bool
    """What is held comes together with what is held later."""
    stall_rate: float
    catch_rate: float
    in_pieces: bool
    """Reads of streams take few bytes at a time."""
    ends_at: float = field(default_factory=lambda: time.monotonic() + LATE_S)

    @classmethod
    def drawn(cls, seed: str) -> Lateness:
        """Return the lateness that a seed stands for."""
        rng = random.Random(seed)
        share, hold_s, in_bursts = rng.choice(SHARES), rng.choice(HOLD_S), rng.random() < 0.5
        return cls(rng, share, hold_s, in_bursts, rng.choice(STALL_RATES), rng.choice(CATCH_RATES), rng.random() < 0.4)

    @property
    def over(self) -> bool:
        """Return whether the loop is in time from now on."""
        return time.monotonic() > self.ends_at

    def release(self, now: float) -> float:
        """Return until when an event that is held now is held."""
        if self.in_bursts and self.hold_s:
            return now + self.hold_s - now % self.hold_s
        return now + self.rng.random() * self.hold_s

    def pause(self) -> None:
        """Make a thread that is not the loop's late."""
        if not self.over and self.rng.random() < self.share:
            time.sleep(self.rng.random() * self.hold_s)


class LateSelector(selectors.DefaultSelector):
    """Reports that a socket is ready later than it is, if chosen so; the kernel reports it until it is read."""

    def __init__(self, lateness: Lateness) -> None:
        super().__init__()
        self._lateness = lateness
        self._held_until: dict[tuple[int, int], float] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._lateness.over:
            return super().select(timeout)
        rng = self._lateness.rng
        if rng.random() < self._lateness.stall_rate:
            time.sleep(rng.random() * STALL_S)
        ready = super().select(timeout)
        due = [(key, mask) for key, found in ready if (mask := self._due(key.fd, found))]
        if ready and not due and timeout != 0:
            time.sleep(_NAP_S)
        rng.shuffle(due)
        return due

    def _due(self, fd: int, found: int) -> int:
        """Return which of the events of a socket are not held back any longer."""
        rng, now = self._lateness.rng, time.monotonic()
        mask = 0
        for event in (selectors.EVENT_READ, selectors.EVENT_WRITE):
            if not found & event:
                continue
            if (fd, event) not in self._held_until and rng.random() < self._lateness.share:
                self._held_until[fd, event] = self._lateness.release(now)
            elif self._held_until.get((fd, event), 0.0) <= now:
                self._held_until.pop((fd, event), None)
                mask |= event
        return mask


class LateLoop(asyncio.SelectorEventLoop):
    """An event loop of asyncio where input, output and the results of threads come late."""

    def __init__(self, lateness: Lateness) -> None:
        super().__init__(LateSelector(lateness))
        self._lateness = lateness
        self._owner = threading.get_ident()

    def run_forever(self) -> None:
        self._owner = threading.get_ident()
        super().run_forever()

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._owner:
            self._lateness.pause()
        return super().call_soon_threadsafe(callback, *args, context=context)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        if executor is None or isinstance(executor, ThreadPoolExecutor):

            def late(*args: *Ts) -> T:
                self._lateness.pause()
                return func(*args)

            return super().run_in_executor(executor, late, *args)
        return super().run_in_executor(executor, func, *args)

    def _process_events(self, event_list: list[tuple[selectors.SelectorKey, int]]) -> None:
        if not self._lateness.over and self._lateness.rng.random() < self._lateness.catch_rate:
            self._stall_until_a_timer_is_due()
        if self._lateness.in_pieces:
            for key, _ in event_list:
                self._cut(self._transports.get(key.fd))  # type: ignore[attr-defined]
        super()._process_events(event_list)  # type: ignore[misc]

    def _stall_until_a_timer_is_due(self) -> None:
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        left_s = timers[0].when() - self.time() if timers else 0.0
        if 0 < left_s <= STALL_S:
            time.sleep(left_s)

    def _cut(self, transport: Any) -> None:
        """Limit the next read of a stream. A datagram would lose its rest."""
        if transport is not None and not isinstance(transport, asyncio.DatagramTransport):
            transport.max_size = PIECES[-1] if self._lateness.over else self._lateness.rng.choice(PIECES)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--late-seed", type=int, metavar="N", help="input and output of asyncio comes late, drawn from N")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Give each test loops of its own seed, so that the test alone meets what it met among others."""
    seed = item.config.getoption("late_seed")
    if seed is None:
        return (yield)
    count = itertools.count()

    def new_loop() -> LateLoop:
        return LateLoop(Lateness.drawn(f"{seed} {item.nodeid} {next(count)}"))

    with pytest.MonkeyPatch.context() as patch:
        # asyncio.Runner, and so asyncio.run and pytest-asyncio, look this up.
        patch.setattr(asyncio.events, "new_event_loop", new_loop)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    seed = item.config.getoption("late_seed")
    if report.failed and seed is not None:
        command = shlex.join([".venv/bin/pytest", "--late-seed", str(seed), item.nodeid])
        report.sections.append(("A late event loop ran this test", f"Run it again, a few times: {command}"))
    return report
