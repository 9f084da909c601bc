"""The executor in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from muster.kube.connection.transport import NotLeading, NotSent
from muster.kube.errors import (
    AlreadyExists,
    ApiError,
    ConfigError,
    Conflict,
    Forbidden,
    NotFound,
    ServerTimeout,
    TooManyRequests,
    Unavailable,
)
from muster.kube.executor import Executor, Result, WriteOutcome, outcome_of
from muster.sim.virtual.loop import VirtualLoop

TIMEOUT_S = 10.0


def in_virtual_time(story: Callable[[VirtualLoop], Awaitable[None]]) -> None:
    loop = VirtualLoop.new()

    async def main() -> None:
        await story(loop)

    try:
        loop.run(main())
    finally:
        loop.wind_up()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Conflict(409), WriteOutcome.OVERTAKEN),
        (AlreadyExists(409), WriteOutcome.OVERTAKEN),
        (NotFound(404), WriteOutcome.OVERTAKEN),
        (Forbidden(403), WriteOutcome.REFUSED),
        (TooManyRequests(429), WriteOutcome.REFUSED),
        (ApiError(500), WriteOutcome.UNKNOWN),
        (ConfigError("no credentials"), WriteOutcome.REFUSED),
        (NotSent(0), WriteOutcome.REFUSED),
        (NotLeading("PUT /"), WriteOutcome.REFUSED),
        (Unavailable(0), WriteOutcome.UNKNOWN),
        (ServerTimeout(504), WriteOutcome.UNKNOWN),
        (TimeoutError(), WriteOutcome.UNKNOWN),
    ],
)
def test_meaning_of_errors(error: Exception, outcome: WriteOutcome) -> None:
    async def story(loop: VirtualLoop) -> None:
        async def write() -> str:
            raise error

        result = await Executor("test", at_once=1, timeout_s=TIMEOUT_S).run("write", write)
        assert (result.outcome, result.value, result.error) == (outcome, None, error)

    in_virtual_time(story)
    assert outcome_of(error) is outcome


def test_value_of_a_write_that_is_done() -> None:
    async def story(loop: VirtualLoop) -> None:
        async def write() -> str:
            return "written"

        assert await Executor("test", at_once=1, timeout_s=TIMEOUT_S).run("write", write) == Result(
            WriteOutcome.DONE, "written"
        )

    in_virtual_time(story)


def test_deadline_counts_from_the_start_of_the_write_and_frees_its_place() -> None:
    async def story(loop: VirtualLoop) -> None:
        executor, began = Executor("test", at_once=2, timeout_s=TIMEOUT_S), loop.time()
        in_flight, most = 0, 0

        async def write(seconds: float) -> None:
            nonlocal in_flight, most
            in_flight += 1
            most = max(most, in_flight)
            try:
                await asyncio.sleep(seconds)
            finally:
                in_flight -= 1

        waits = (1000.0, 1000.0, 4.0, 9.0)
        results = await asyncio.gather(*(executor.run("write", lambda s=s: write(s)) for s in waits))
        assert [each.outcome for each in results] == ["unknown", "unknown", "done", "done"]
        assert (most, loop.time() - began) == (2, TIMEOUT_S + 9.0)

    in_virtual_time(story)


def test_other_errors_are_raised() -> None:
    async def story(loop: VirtualLoop) -> None:
        async def write() -> None:
            raise KeyError("a fault of the program")

        with pytest.raises(KeyError):
            await Executor("test", at_once=1, timeout_s=TIMEOUT_S).run("write", write)

    in_virtual_time(story)
