"""Sends the queries of the report: each with a deadline, all of them with a common one, errors as notes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from math import isfinite
from typing import Final, TypeVar

from muster.telemetry.prometheus.answers import Line, Sample
from muster.telemetry.prometheus.client import PrometheusClient
from muster.telemetry.prometheus.errors import PrometheusError

T = TypeVar("T")

QUERY_S: Final = 10.0
_FATAL: Final = ("unreachable", "untrusted", "not-prometheus")
_NOTES_MAX: Final = 20


class Asker:
    """Asks a server, one query at a time, so that a busy server has at most one query of ours.

    Args:
        client: of the server.
        limit_s: time for all queries together. Later ones are left out.
        progress: receives what is asked.

    Attributes:
        requests: that were sent.
        spent_s: time that they took.
        notes: errors of the server.
    """

    def __init__(self, client: PrometheusClient, limit_s: float, progress: Callable[[str], None]) -> None:
        """Start the common deadline."""
        self.client = client
        self.requests = 0
        self.spent_s = 0.0
        self.notes: list[str] = []
        self._end_s = time.monotonic() + limit_s
        self._progress = progress
        self._late = False

    async def query(self, expression: str) -> list[Sample]:
        """Return the samples of an expression; empty without an answer. Values that are not numbers are left out."""
        found = await self.optional(lambda: self.client.query(expression, timeout_s=QUERY_S), expression) or []
        return [each for each in found if isfinite(each.value)]

    async def number(self, expression: str) -> float:
        """Return the value of an expression; 0 without one."""
        found = await self.query(expression)
        return found[0].value if found else 0.0

    async def by_label(self, expression: str, label: str) -> dict[str, float]:
        """Return the values of an expression by a label."""
        return {each.labels.get(label, ""): each.value for each in await self.query(expression)}

    async def over_time(self, expression: str, start_s: float, end_s: float, step_s: float) -> list[Line]:
        """Return the lines of an expression; empty without an answer."""
        return (
            await self.optional(
                lambda: self.client.query_range(expression, start_s, end_s, step_s, QUERY_S), expression
            )
            or []
        )

    async def optional(self, ask: Callable[[], Awaitable[T]], what: str) -> T | None:
        """Return an answer; None and a note if the server refuses, or if the time is over.

        Raises:
            PrometheusError: the server cannot be reached, or is another program.
        """
        if time.monotonic() > self._end_s:
            if not self._late:
                self.notes.append("the time is over, so the rest of the queries was left out")
            self._late = True
            return None
        self._progress(what)
        self.requests += 1
        began_s = time.monotonic()
        try:
            return await ask()
        except PrometheusError as error:
            if error.reason in _FATAL and error.status != 404:
                raise
            if len(self.notes) < _NOTES_MAX:
                self.notes.append(f"{what}: {error.message}")
            return None
        finally:
            self.spent_s += time.monotonic() - began_s
