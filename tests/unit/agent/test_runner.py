"""Checks that hang, raise or block: each is a finding, and the others go on."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from muster.agent.aside import Aside, StillBusyError
from muster.agent.check import Check, Cost, Host
from muster.agent.registry import make_checks
from muster.agent.runner import Runner
from muster.agent.settings import AgentSettings, CheckSettings
from muster.fleet.health.finding import Finding
from muster.kube.progress import Progress
from tests.support.waiting import until

SEEN = Finding(check="disk", component="sda", code="full", first_s=1.0, last_s=1.0)


class Looking:
    """A check that does what it is given."""

    def __init__(self, name: str, look: Callable[[], Any], *, timeout_s: float = 0.05, cost: Cost = "cheap") -> None:
        self.name, self.period_s, self.timeout_s = name, 0.02, timeout_s
        self.cost: Cost = cost
        self._look = look

    async def look(self, now_s: float) -> Sequence[Finding]:
        found: Sequence[Finding] = await self._look()
        return found


async def healthy() -> list[Finding]:
    return [SEEN]


async def for_ever() -> list[Finding]:
    await asyncio.Event().wait()
    raise AssertionError


@asynccontextmanager
async def running(*checks: Check) -> AsyncIterator[tuple[list[Finding], Progress, Runner]]:
    found: list[Finding] = []
    progress = Progress()
    runner = Runner("node-1", checks, found.extend, progress)
    task = asyncio.create_task(runner.run())
    try:
        yield found, progress, runner
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])


def of_agent(found: Sequence[Finding]) -> set[tuple[str, str]]:
    return {(each.component, each.code) for each in found if each.check == "agent"}


async def continues(found: list[Finding]) -> None:
    """A healthy check beside it is still heard, from now on."""
    before = found.count(SEEN)
    await until("other checks go on", lambda: found.count(SEEN) > before + 3)


@pytest.mark.parametrize("cost", ["cheap", "moderate"])
async def test_a_check_that_hangs_is_a_finding_and_stops_no_other(cost: Cost) -> None:
    async with running(Looking("ill", for_ever, cost=cost), Looking("well", healthy, cost=cost)) as (found, *_):
        await until("it is found to hang", lambda: ("ill", "hung") in of_agent(found))
        await continues(found)
        await until("it is found again and again", lambda: [f.count for f in found if f.code == "hung"][-1] > 2)
        assert len({each.first_s for each in found if each.code == "hung"}) == 1, "one incident"


async def test_a_check_that_cannot_be_cancelled_is_left_behind_and_heard_again_when_it_returns() -> None:
    let_go = asyncio.Event()

    async def stubborn() -> list[Finding]:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return [Finding(check="late", component="", code="late", first_s=1.0, last_s=1.0)]

    async with running(Looking("ill", stubborn), Looking("well", healthy)) as (found, *_):
        await until("it is found to hang", lambda: ("ill", "hung") in of_agent(found))
        await continues(found)
        let_go.set()
        await until("it is heard", lambda: any(each.check == "late" for each in found))


async def test_a_call_that_the_kernel_does_not_let_go_hangs_alone() -> None:
    let_go = threading.Event()
    aside = Aside("ill")
    calls = []

    def blocks() -> list[Finding]:
        calls.append(1)
        let_go.wait(60)
        return []

    async with running(Looking("ill", lambda: aside.run(blocks)), Looking("well", healthy)) as (found, _, runner):
        try:
            await until("it is found to hang", lambda: runner.looks["ill", "hung"] > 2)
            await continues(found)
            assert len(calls) == 1, "no second thread beside one that is stuck"
        finally:
            let_go.set()
        await until("it is asked again", lambda: len(calls) > 1)


def leaves() -> None:
    sys.exit(3)


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (OSError(5, "Input/output error"), "OSError: [Errno 5] Input/output error"),
        (SystemExit(3), "RuntimeError: SystemExit(3)"),
        (asyncio.CancelledError(), "it cancelled itself"),
        (RecursionError("deep"), "RecursionError: deep"),
    ],
)
async def test_a_check_that_raises_is_a_finding_and_stops_no_other(raised: BaseException, said: str) -> None:
    async def raises() -> list[Finding]:
        raise raised

    async with running(Looking("ill", raises), Looking("well", healthy)) as (found, progress, _):
        await until("it is found to fail", lambda: ("ill", "failed") in of_agent(found))
        await continues(found)
        assert said in next(each.message for each in found if each.check == "agent")
        assert progress.overdue() == {}


async def test_a_check_that_returns_something_else_is_a_finding() -> None:
    async def garbage() -> Any:
        return [{"check": "disk"}]

    async def nothing() -> Any:
        return None

    async with running(Looking("ill", garbage), Looking("none", nothing), Looking("well", healthy)) as (found, *_):
        await until("both are found", lambda: {("ill", "failed"), ("none", "failed")} <= of_agent(found))
        await continues(found)


@pytest.mark.parametrize("time_s", [float("nan"), float("inf"), 1e17, -1e17])
async def test_a_finding_of_no_time_that_there_is_ends_nothing(time_s: float) -> None:
    async def lies() -> list[Finding]:
        return [Finding(check="x", component="", code="y", first_s=time_s, last_s=time_s)]

    async with running(Looking("ill", lies), Looking("well", healthy)) as (found, *_):
        await until("it is found to fail", lambda: ("ill", "failed") in of_agent(found))
        await continues(found)
        assert not [each for each in found if each.check == "x"]


async def test_exception_of_a_blocking_call_reaches_only_its_caller() -> None:
    def stops() -> None:
        raise StopIteration

    for call in (leaves, stops):
        with pytest.raises(RuntimeError):
            await Aside("x").run(call)
    assert await Aside("x").run(int, "7") == 7


async def test_a_second_call_beside_one_that_is_stuck_is_refused() -> None:
    let_go = threading.Event()
    aside = Aside("x")
    first = asyncio.create_task(aside.run(let_go.wait, 60))
    await asyncio.sleep(0)
    with pytest.raises(StillBusyError):
        await aside.run(int)
    let_go.set()
    assert await first is True


async def test_moderate_checks_never_look_at_once() -> None:
    looking: set[str] = set()
    together = []

    def one(name: str) -> Looking:
        async def look() -> list[Finding]:
            looking.add(name)
            together.append(len(looking))
            await asyncio.sleep(0.002)
            looking.remove(name)
            return []

        return Looking(name, look, timeout_s=60, cost="moderate")

    async with running(one("a"), one("b"), one("c")) as (_, _, runner):
        await until("all have looked", lambda: all(runner.looks[name, "ok"] > 3 for name in "abc"))
    assert set(together) == {1}


def make_well(setup: Any) -> Looking:
    return Looking("well", healthy)


def make_none(setup: Any) -> None:
    return None


def make_wrong(setup: Any) -> None:
    raise ValueError("options.file: expected `str`")


def test_checks_that_cannot_be_made_are_findings_and_the_others_are_made() -> None:
    known = {name: f"{__name__}:make_{name}" for name in ("well", "none", "wrong")} | {"gone": "muster.agent.gone:make"}
    settings = AgentSettings(
        checks={"later": CheckSettings(), "off": CheckSettings(enabled=False), "wrong": CheckSettings()}
    )
    checks, troubles = make_checks("node-1", settings, Host(), known)
    assert [check.name for check in checks] == ["well"]
    assert {(each.check, each.code) for each in troubles} == {
        ("later", "unknown"), ("wrong", "failed"), ("gone", "failed"),
    }  # fmt: skip
    assert "options.file" in next(each.message for each in troubles if each.check == "wrong")


def test_a_check_that_is_off_is_not_even_imported() -> None:
    settings = AgentSettings(checks={"gone": CheckSettings(enabled=False)})
    assert make_checks("node-1", settings, Host(), {"gone": "muster.agent.gone:make"}) == ([], [])
