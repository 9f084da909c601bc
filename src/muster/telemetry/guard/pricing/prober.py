"""Asks the server for little: within a time, a number of bytes, and a number of questions at once.

The server checks its timeout for every series that a query opens, so the time bounds what a probe can cost. Prometheus
2.42 opens about 200,000 series a second, with 1.5 kB for each.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from muster.telemetry.guard.query.times import format_time
from muster.telemetry.prometheus.probe import PROBE_LABEL
from muster.telemetry.promql.matcher import Matcher
from muster.telemetry.promql.selector import Selector

PROBE_RANGE_S: Final = 300.0
SAFE_SERIES: Final = 50_000
"""A selector that matches at most so many series is probed with the full timeout."""
TIMEOUT_S: Final = 2.0
SHORT_TIMEOUT_S: Final = 0.3
AT_ONCE: Final = 4
UNBOUNDED_AT_ONCE: Final = 2
"""Probes at once of selectors that may match more than SAFE_SERIES."""
_SLACK_S: Final = 0.7
"""How long a server may take beyond its own timeout."""
_BLOCK_S: Final = 7200.0
_MARK: Final = Matcher(PROBE_LABEL, "=", "")


class Probes(Protocol):
    """Asks the server for little, within a time and a number of bytes."""

    async def get(
        self, path: str, parameters: Sequence[tuple[str, str]], tenant: str, timeout_s: float, max_bytes: int
    ) -> bytes:
        """Return the body of a GET with status 200. Raises ProbeFailed."""
        ...


class ProbeFailed(Exception):
    """The server did not answer a probe in time, in its bytes, or with status 200."""


@dataclass(frozen=True, slots=True)
class Target:
    """A selector to probe.

    Attributes:
        selector: without its range and times.
        text: of its probes, with the mark that they are not use.
        key: short, equal for equal selectors.
        name: of the only metric that it can match, None if there can be several.
    """

    selector: Selector
    text: str
    key: bytes
    name: str | None

    @property
    def recent(self) -> str:
        """The query for its series of the last minutes. last_over_time keeps names, so series of metrics stay apart."""
        return f"last_over_time({self.text}[{int(PROBE_RANGE_S)}s])"

    @staticmethod
    def of(selector: Selector) -> Target:
        """Return the target of a selector."""
        size = sum(len(each.value) for group in selector.matchers for each in group)
        return _short_target(selector) if size <= _SHORT else _target(selector)


_SHORT: Final = 4096
"""Characters of a selector whose target is remembered."""


def _target(selector: Selector) -> Target:
    text = str(Selector(tuple((*group, _MARK) for group in selector.matchers)))
    key = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
    names = selector.names()
    return Target(selector, text, key, min(names) if names is not None and len(names) == 1 else None)


_short_target = functools.lru_cache(maxsize=1024)(_target)


def bucket(at_s: float, now_s: float) -> int:
    """Return the part of the past in which a time lies: counts of one part are alike."""
    return -1 if now_s - at_s < PROBE_RANGE_S else int(at_s // _BLOCK_S)


class Prober:
    """Sends probes.

    Args:
        probes: asks the server.
    """

    def __init__(self, probes: Probes) -> None:
        self._probes = probes
        self._places = asyncio.Semaphore(AT_ONCE)
        self._unbounded_places = asyncio.Semaphore(UNBOUNDED_AT_ONCE)

    async def query(
        self,
        text: str,
        at_s: float,
        timeout_s: float,
        tenant: str,
        max_bytes: int,
        *,
        safe: bool,
        more: Sequence[tuple[str, str]] = (),
    ) -> bytes | None:
        """Return the answer to an instant query, or None if the probe failed.

        Args:
            text: of the query.
            at_s: Unix time.
            timeout_s: for the server.
            tenant: whose series are read.
            max_bytes: of the answer.
            safe: whether it reads at most SAFE_SERIES.
            more: parameters.
        """
        parameters = (("query", text), ("time", format_time(at_s)), ("timeout", f"{timeout_s:g}"), *more)
        async with self._places if safe else self._unbounded_places:
            return await self.get("/api/v1/query", parameters, tenant, timeout_s + _SLACK_S, max_bytes)

    async def get(
        self, path: str, parameters: Sequence[tuple[str, str]], tenant: str, timeout_s: float, max_bytes: int
    ) -> bytes | None:
        """Return the answer to another request, or None if it failed."""
        try:
            return await self._probes.get(path, parameters, tenant, timeout_s, max_bytes)
        except ProbeFailed:
            return None
