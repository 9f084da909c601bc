"""Asks for details of counted selectors: how many distinct label sets they have, and how long these are.

- Distinct label sets: `count(count by (LABELS) (last_over_time(SELECTOR[5m])))`. It reads what the count read.
- Sizes: some series as the server sends them: the first ones where `limit` bounds an answer, else those of `topk`.
- Values of a label, and label names: the request itself, of the last five minutes, where it is small or limited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from muster.telemetry.guard.pricing.cache import Cache
from muster.telemetry.guard.pricing.capabilities import Capabilities
from muster.telemetry.guard.pricing.count import Count
from muster.telemetry.guard.pricing.labelsets import LabelSets, read_label_sets
from muster.telemetry.guard.pricing.number import read_number
from muster.telemetry.guard.pricing.prober import (
    PROBE_RANGE_S,
    SAFE_SERIES,
    SHORT_TIMEOUT_S,
    TIMEOUT_S,
    Prober,
    Target,
    bucket,
)
from muster.telemetry.guard.query.times import format_time
from muster.telemetry.promql.kept import Kept
from muster.telemetry.promql.matcher import is_plain

LISTED: Final = 1000
"""Values or names that a server with `limit` is asked for."""
SEEN_SERIES: Final = 40
WAIT_S: Final = 1.0
"""How long a price waits for a detail. So a slow server makes prices less exact, and not unknown."""
_LISTED_BYTES: Final = 512 * 1024
_SEEN_BYTES: Final = 256 * 1024
_COUNT_BYTES: Final = 4096
_LISTING_TIMEOUT_S: Final = 2.0
_FRESH_S: Final = 60.0
_STALE_S: Final = 600.0
_SIZES_FRESH_S: Final = 600.0
_SIZES_STALE_S: Final = 3600.0
_FAILED_S: Final = 60.0
"""How long a failed probe is not repeated. A detail only makes a price better."""
_ENTRIES: Final = 10_000
_PENDING: Final = 200
_CHANGE: Final = 1.25
"""If the series have changed by so much since a probe, its number of label sets is out of date."""


class Listed(msgspec.Struct, frozen=True):
    """Values of a label, or names of labels.

    Attributes:
        items: how many the server sent.
        item_bytes: of each in the answer, on average.
        complete: whether these are all.
    """

    items: int
    item_bytes: float
    complete: bool


class _Distinct(msgspec.Struct, frozen=True):
    """Distinct label sets, and of how many series."""

    sets: int | None
    series: int


class Details:
    """Asks for details, and remembers them for each tenant.

    Args:
        prober: asks the server.
        clock: monotonic seconds.
    """

    def __init__(self, prober: Prober, clock: Callable[[], float]) -> None:
        self._prober = prober
        self._distinct: Cache[tuple[str, bytes, int, Kept], _Distinct] = Cache(
            clock, _FRESH_S, _STALE_S, _ENTRIES, _PENDING
        )
        self._sizes: Cache[tuple[str, str | bytes, int], LabelSets | None] = Cache(
            clock, _SIZES_FRESH_S, _SIZES_STALE_S, _ENTRIES, _PENDING
        )
        self._listed: Cache[tuple[str, str, bytes, int], Listed | None] = Cache(
            clock, _FRESH_S, _STALE_S, _ENTRIES, _PENDING
        )

    async def distinct(
        self, target: Target, kept: Kept, count: Count, at_s: float, now_s: float, tenant: str
    ) -> int | None:
        """Return how many distinct sets of these labels the series have, None if that is unknown.

        Args:
            target: whose series; they were counted.
            kept: labels that remain.
            count: of the series.
            at_s: Unix time of the count.
            now_s: Unix time.
            tenant: whose series are counted.
        """
        if not all(map(is_plain, kept.labels)):
            return None
        labels = ",".join(kept.labels)
        grouped = f"count {'by' if kept.only else 'without'} ({labels}) ({target.recent})"

        async def ask() -> _Distinct:
            body = await self._query(f"count({grouped})", count, at_s, tenant, _COUNT_BYTES)
            found = read_number(body) if body is not None else None
            return _Distinct(found.value if found is not None else None, count.series)

        key = (tenant, target.key, bucket(at_s, now_s), kept)
        found = await self._distinct.get(key, ask, lambda was, age_s: _still_holds(was, age_s, count.series), WAIT_S)
        return found.sets if found is not None else None

    async def label_sets(
        self, target: Target, count: Count, at_s: float, now_s: float, tenant: str, capabilities: Capabilities
    ) -> LabelSets | None:
        """Return how long the label sets are, None if that is unknown. Series of one metric are taken as alike.

        Args:
            target: whose series; they were counted.
            count: of the series.
            at_s: Unix time of the count.
            now_s: Unix time.
            tenant: whose series are read.
            capabilities: of the server.
        """
        limited = capabilities.limits_queries
        text = target.text if limited else f"topk({SEEN_SERIES}, {target.text})"
        more = (("stats", "all"), *((("limit", str(SEEN_SERIES)),) if limited else ()))

        async def ask() -> LabelSets | None:
            body = await self._query(text, count, at_s, tenant, _SEEN_BYTES, more)
            return read_label_sets(body, count.series) if body is not None else None

        key = (tenant, target.name or target.key, bucket(at_s, now_s))
        return await self._sizes.get(key, ask, lambda was, age_s: was is not None or age_s < _FAILED_S, WAIT_S)

    async def listed(
        self,
        path: str,
        targets: Sequence[Target],
        at_s: float,
        now_s: float,
        tenant: str,
        capabilities: Capabilities,
    ) -> Listed | None:
        """Return the values of a label or the names of labels, None if they are unknown.

        Args:
            path: of the request.
            targets: of `match[]`, empty for everything.
            at_s: Unix time: those of the five minutes before it.
            now_s: Unix time.
            tenant: whose series are read.
            capabilities: of the server.
        """
        limited = capabilities.limits_metadata
        parameters = [("start", format_time(at_s - PROBE_RANGE_S)), ("end", format_time(at_s))]
        parameters += [("match[]", each.text) for each in targets]
        parameters += [("limit", str(LISTED))] if limited else []

        async def ask() -> Listed | None:
            body = await self._prober.get(path, parameters, tenant, _LISTING_TIMEOUT_S, _LISTED_BYTES)
            return _read_listed(body, LISTED if limited else None) if body is not None else None

        key = (tenant, path, b"".join(each.key for each in targets), bucket(at_s, now_s))
        return await self._listed.get(key, ask, lambda was, age_s: was is not None or age_s < _FAILED_S, WAIT_S)

    async def close(self) -> None:
        """Cancel the probes in flight."""
        for each in (self._distinct, self._sizes, self._listed):
            await each.close()

    async def _query(
        self,
        text: str,
        count: Count,
        at_s: float,
        tenant: str,
        max_bytes: int,
        more: Sequence[tuple[str, str]] = (),
    ) -> bytes | None:
        safe = count.series <= SAFE_SERIES
        timeout_s = TIMEOUT_S if safe else SHORT_TIMEOUT_S
        return await self._prober.query(text, at_s, timeout_s, tenant, max_bytes, safe=safe, more=more)


def _still_holds(was: _Distinct, age_s: float, series: int) -> bool:
    if was.sets is None and age_s >= _FAILED_S:
        return False
    return was.series <= series * _CHANGE and series <= was.series * _CHANGE


class _List(msgspec.Struct, frozen=True):
    data: list[str]


def _read_listed(body: bytes, limit: int | None) -> Listed | None:
    try:
        found = msgspec.json.decode(body, type=_List).data
    except msgspec.DecodeError:
        return None
    size = sum(len(msgspec.json.encode(each)) + 1 for each in found)
    return Listed(len(found), size / max(len(found), 1), limit is None or len(found) < limit)
