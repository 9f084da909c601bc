"""Keeps the dearest queries of all callers, within a fixed number of entries."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest
from math import exp2, isfinite
from typing import Any, Final

import msgspec

from muster.telemetry.guard.callers.caller import Caller
from muster.telemetry.guard.dearest.asked import Asked, shown_text
from muster.telemetry.guard.dearest.config import DearestConfig
from muster.telemetry.guard.dearest.lines import DearLines
from muster.telemetry.guard.dearest.page import DearestPage, DearQuery, LastRequest

SENT: Final = "sent"
_COST_MAX: Final = 1e18
_TEXT_KEPT: Final = 1000
"""Characters of a text that stays in an entry. Texts may have megabytes."""


@dataclass(slots=True)
class _Entry:
    """Equal requests: of one caller, from one panel, with the same text, whatever their times are."""

    last: Asked
    text: str
    last_at: float = 0.0
    score: float = 0.0
    """Sum of the costs as of `last_at`. A cost counts half after each half-life."""
    requests: int = 0
    not_sent: int = 0
    cost_max: float = 0.0
    duration_s: float = 0.0
    duration_max_s: float = 0.0
    answer_bytes_max: int = 0


class Dearest:
    """The dearest queries. A query counts with the sum of its recent costs, also if it was refused.

    It keeps up to twice the configured number, and then drops the cheaper half. So it never holds more, and a query
    that is among the dearest stays.

    Args:
        config: number of entries, half-life and readers.
    """

    def __init__(self, config: DearestConfig) -> None:
        self._config = config
        self._entries: dict[bytes, _Entry] = {}
        self._lines = DearLines()

    def __len__(self) -> int:
        return len(self._entries)

    def replace(self, config: DearestConfig) -> None:
        """Use another configuration from the next request on."""
        self._config = config

    def record(self, asked: Asked, now: float) -> None:
        """Count a request.

        Args:
            asked: the request.
            now: seconds since the epoch.
        """
        key = _key(asked)
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= 2 * self._config.entries:
                self._drop_cheapest(now)
            entry = self._entries[key] = _Entry(asked, shown_text(asked.text), now)
        cost = min(max(asked.cost, 0.0), _COST_MAX) if isfinite(asked.cost) else _COST_MAX
        if asked.exceeds or (self._config.log_cost is not None and cost >= self._config.log_cost):
            self._lines.write(asked, now)
        entry.score = self._score(entry, now) + cost
        entry.last = asked if len(asked.text) <= _TEXT_KEPT else msgspec.structs.replace(asked, text="")
        entry.last_at = now
        entry.requests += 1
        entry.not_sent += asked.outcome != SENT
        entry.cost_max = max(entry.cost_max, cost)
        entry.duration_s += asked.duration_s
        entry.duration_max_s = max(entry.duration_max_s, asked.duration_s)
        entry.answer_bytes_max = max(entry.answer_bytes_max, asked.answer_bytes)

    def page(self, reader: Caller, now: float, queries_max: int = 100) -> Mapping[str, Any]:
        """Return the document of /guard/dearest: the reader's own queries, or those of all if it may read them.

        It has the form of Prometheus' API, so that clients of that API can read it.

        Args:
            reader: who asks.
            now: seconds since the epoch.
            queries_max: how many queries it lists, the dearest first.
        """
        everything = not {reader.name, reader.group}.isdisjoint(self._config.readers)
        visible = (each for each in self._entries.values() if everything or each.last.caller.name == reader.name)
        dearest = nlargest(queries_max, visible, key=lambda each: self._score(each, now))
        page = DearestPage(
            of="all" if everything else reader.name,
            half_life_s=self._config.half_life_s,
            queries=tuple(self._described(each, now) for each in dearest),
        )
        return {"status": "success", "data": msgspec.to_builtins(page)}

    def _described(self, entry: _Entry, now: float) -> DearQuery:
        last, source = entry.last, entry.last.source
        return DearQuery(
            caller=last.caller.name,
            group=last.caller.group,
            kind=last.kind,
            query=entry.text,
            dashboard_uid=source.dashboard_uid,
            dashboard_title=source.dashboard_title,
            panel_id=source.panel_id,
            panel_title=source.panel_title,
            rule_uid=source.rule_uid,
            org_id=source.org_id,
            recent_cost=self._score(entry, now),
            requests=entry.requests,
            not_sent=entry.not_sent,
            max_cost=entry.cost_max,
            mean_s=entry.duration_s / max(1, entry.requests - entry.not_sent),
            max_s=entry.duration_max_s,
            max_answer_bytes=entry.answer_bytes_max,
            last=LastRequest(
                time=entry.last_at,
                outcome=last.outcome,
                range_s=last.range_s,
                step_s=last.step_s,
                series=last.series,
                samples=last.samples,
            ),
        )

    def _score(self, entry: _Entry, now: float) -> float:
        age_s = max(0.0, now - entry.last_at)  # the wall clock may be set back
        return entry.score * exp2(-min(age_s / self._config.half_life_s, 1000.0))

    def _drop_cheapest(self, now: float) -> None:
        kept = nlargest(self._config.entries, self._entries.items(), key=lambda each: self._score(each[1], now))
        self._entries = dict(kept)


def _key(asked: Asked) -> bytes:
    caller, kind, source = asked.caller.name, asked.kind, asked.source
    uid, panel, rule = source.dashboard_uid, source.panel_id, source.rule_uid
    lengths = f"{len(caller)},{len(kind)},{len(uid)},{len(panel)},{len(rule)}"
    text = f"{lengths};{caller}{kind}{uid}{panel}{rule}{asked.text}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
