"""The check for the kernel's log: Xids, links, disks, memory and other problems that drivers or the kernel report.

The log is read from before the agent's start. What could not be read is a finding too: overwritten records, a truncated
file, a missing permission.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from muster.agent.aside import Aside
from muster.agent.check import Cost, Setup
from muster.agent.incidents import Incidents
from muster.fleet.health.finding import Finding
from muster.fleet.health.headers import LogClock
from muster.fleet.health.kernellog import Scanner
from muster.fleet.health.kmsg import Kmsg
from muster.fleet.health.logfile import LogFile

NAME: Final = "kernel-log"
PERIOD_S: Final = 1.0
TIMEOUT_S: Final = 30.0
"""Long, because a flood of a million lines is read in one call."""
SAY_AGAIN_S: Final = 30.0
"""A problem with reading the log is reported again at this interval while it lasts."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the check.

    Attributes:
        file: below the node's root, such as `var/log/kern.log`, if the agent may not read /dev/kmsg.
    """

    file: str = ""


class KernelLog:
    """Reads what was written since the last call.

    Args:
        reader: the source of lines.
        period_s, timeout_s: as of every check.
        booted: when the machine booted by the clock of the kernel's time stamps, Unix seconds.
    """

    name = NAME
    cost: Cost = "cheap"

    def __init__(
        self,
        reader: Kmsg | LogFile,
        *,
        period_s: float = PERIOD_S,
        timeout_s: float = TIMEOUT_S,
        booted: Callable[[], float] = lambda: time.time() - time.monotonic(),
    ) -> None:
        self.period_s = period_s
        self.timeout_s = timeout_s
        self._reader = reader
        self._booted = booted
        self._clock = LogClock()
        self._scanner = Scanner(self._clock)
        self._incidents = Incidents(NAME, period_s)
        self._aside = Aside(NAME)
        self._pieces: Iterator[bytes | Finding] | None = None
        self._found: list[Finding] = []
        self._said_s = float("-inf")

    async def look(self, now_s: float) -> Sequence[Finding]:
        """Read to the end of the log, but at most for half of the timeout; the next call continues."""
        await self._aside.run(self._read, now_s)
        found, self._found = self._found, []
        return found

    def close(self) -> None:
        """Close the log."""
        self._reader.close()

    def _read(self, now_s: float) -> None:
        """Read the log in the thread; blocking. Findings are kept here, so a late call loses nothing."""
        self._clock.now_s = now_s
        self._clock.boot_s = self._booted()
        until_s = time.monotonic() + self.timeout_s / 2
        self._pieces = self._pieces or self._reader.read(now_s)
        for piece in self._pieces:
            if isinstance(piece, Finding):
                self._say(piece.component, piece.code, now_s, piece.count, piece.message)
            else:
                self._scanner.feed(piece)
            if time.monotonic() > until_s:
                break
        else:
            self._pieces = None
        trouble = self._reader.trouble
        if trouble and abs(now_s - self._said_s) >= SAY_AGAIN_S:  # also if the clock was set back
            self._say(str(self._reader.path), trouble, now_s, 1, "")
        self._found += [finding for _, finding in self._scanner.take()] + self._incidents.take(now_s)

    def _say(self, component: str, code: str, now_s: float, count: int, message: str) -> None:
        self._said_s = now_s
        self._incidents.observe(NAME, component, code, now_s, count=count, message=message)


def make(setup: Setup) -> KernelLog:
    """Create the check for this node."""
    options = setup.options_as(Options)
    path = setup.host.root / options.file.lstrip("/") if options.file else setup.host.dev / "kmsg"
    return KernelLog(
        LogFile(path) if options.file else Kmsg(path),
        period_s=setup.period_s or PERIOD_S,
        timeout_s=setup.timeout_s or TIMEOUT_S,
    )
