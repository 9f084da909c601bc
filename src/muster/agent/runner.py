"""Runs the checks concurrently: each has its own period and deadline, and does not affect the others.

begin ─► look ─► findings ─► pause until the period is over ─► ...
            ├─ raises ─► agent/NAME/failed
            └─ no answer at its deadline ─► agent/NAME/hung, and again each period, until it returns
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from muster.agent.aside import StillBusyError
from muster.agent.check import Check
from muster.agent.incidents import Incidents
from muster.agent.shares import share
from muster.fleet.health.finding import Finding
from muster.fleet.health.record import observed
from muster.kube.progress import Progress

log = logging.getLogger(__name__)

FIRST_S_MAX: Final = 10.0
"""First calls are spread over a period, but at most this long, so that existing faults are found early."""
_SLACK_S: Final = 60.0
_MESSAGE_MAX: Final = 200

Sink = Callable[[Sequence[Finding]], None]


class Runner:
    """Runs checks until cancelled.

    Args:
        node: name of the node.
        checks: have different names.
        sink: takes the findings.
        progress: marked when a check's loop moves.
        clock: Unix seconds.
    """

    def __init__(
        self,
        node: str,
        checks: Sequence[Check],
        sink: Sink,
        progress: Progress,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._checks = checks
        self._sink = sink
        self._progress = progress
        self._clock = clock
        self._own = Incidents("runner", max((check.period_s for check in checks), default=0.0))
        self._moderate = asyncio.Semaphore(1)
        self.looks: Counter[tuple[str, str]] = Counter()
        """Number of calls by (check, ok|failed|hung)."""

    async def run(self) -> None:
        """Run all checks. Returns at once without any."""
        waits_s = sum(check.timeout_s for check in self._checks if check.cost == "moderate")
        for check in self._checks:
            self._progress.expect(_loop(check), 2 * check.period_s + check.timeout_s + waits_s + _SLACK_S)
        await asyncio.gather(*(self._repeat(check) for check in self._checks))

    def say(self, component: str, code: str, message: str) -> None:
        """Report a problem of the agent itself as a finding."""
        now_s = self._clock()
        self._own.observe("agent", component, code, now_s, message=message[:_MESSAGE_MAX])
        self._sink(self._own.take(now_s))

    async def _repeat(self, check: Check) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(share(self._node, check.name) * min(check.period_s, FIRST_S_MAX))
        while True:
            began_s = clock()
            if check.cost == "moderate":
                async with self._moderate:
                    late = await self._look(check)
            else:
                late = await self._look(check)
            self._progress.mark(_loop(check))
            if late is not None:
                await self._left_behind(check, late)
            await asyncio.sleep(max(0.0, began_s + check.period_s - clock()))

    async def _look(self, check: Check) -> asyncio.Task[Sequence[Finding]] | None:
        """Run a check once. Returns its task if it has not ended in time."""
        task = asyncio.create_task(_called(check, self._clock()))
        try:
            await asyncio.wait({task}, timeout=check.timeout_s)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.done():
            task.cancel()
            self._hung(check)
            return task
        self._take(check, task)
        return None

    async def _left_behind(self, check: Check, task: asyncio.Task[Sequence[Finding]]) -> None:
        """Wait for a cancelled task. Most end at once; a task that does not is reported in each period."""
        await asyncio.wait({task}, timeout=check.period_s)
        while not task.done():
            self._hung(check)
            self._progress.mark(_loop(check))
            await asyncio.wait({task}, timeout=check.period_s)
        if not task.cancelled():
            self._take(check, task)

    def _take(self, check: Check, task: asyncio.Task[Sequence[Finding]]) -> None:
        try:
            findings = list(task.result())
            for finding in findings:
                if not isinstance(finding, Finding):
                    raise TypeError("it returned something else than findings")
                observed(finding)  # an unwritable finding would end the writer
        except (StillBusyError, TimeoutError):
            self._hung(check)
        except asyncio.CancelledError:
            self._failed(check, "it cancelled itself")
        except Exception as error:  # errors of one check must not stop the others
            log.debug("check %s failed", check.name, exc_info=error)
            self._failed(check, f"{type(error).__name__}: {error}")
        else:
            self.looks[check.name, "ok"] += 1
            if findings:
                self._sink(findings)

    def _hung(self, check: Check) -> None:
        self.looks[check.name, "hung"] += 1
        self.say(check.name, "hung", f"no answer within {check.timeout_s:g} s, so its faults are not detected")

    def _failed(self, check: Check, why: str) -> None:
        self.looks[check.name, "failed"] += 1
        self.say(check.name, "failed", f"its faults are not detected: {why}")


async def _called(check: Check, now_s: float) -> Sequence[Finding]:
    """Run the check, and convert exceptions that would end the loop."""
    try:
        return await check.look(now_s)
    except (SystemExit, KeyboardInterrupt) as error:  # these would end the loop and the agent
        raise RuntimeError(repr(error)) from error


def _loop(check: Check) -> str:
    return f"check/{check.name}"


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has ended, with any result."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
