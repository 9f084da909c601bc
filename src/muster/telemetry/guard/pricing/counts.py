"""Counts the series of selectors with bounded probes.

A probe is `count(last_over_time(SELECTOR[5m]))` at one instant: last_over_time keeps names, so series of several
metrics stay apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from muster.telemetry.guard.pricing.cache import Cache
from muster.telemetry.guard.pricing.capabilities import Capabilities
from muster.telemetry.guard.pricing.count import Count
from muster.telemetry.guard.pricing.head import Head, has_wide_reach
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

OLD_TIMEOUT_S: Final = 0.6
"""Blocks come from the disk."""
DISTRIBUTED_TIMEOUT_S: Final = 3.0
"""Mimir, Thanos and VictoriaMetrics spread the work of a query, and have limits of their own for it."""
SORTED_SERIES: Final = 200_000
"""Old servers sort the series before they look at the timeout: 400,000 took 2 CPU seconds on 2.42. A selector that may
match more than this is not probed there."""
DISTRIBUTED: Final = frozenset({"mimir", "thanos", "victoriametrics"})
_PROBE_BYTES: Final = 64 * 1024
_FRESH_S: Final = 60.0
_STALE_S: Final = 600.0
_FAILED_S: Final = 15.0
"""How long a failed probe is not repeated."""
_ENTRIES: Final = 20_000
_PENDING: Final = 200
_BOUNDS: Final = 1024
"""Selectors whose bounds in a head block are remembered."""
_GROWTH: Final = 1.25
"""If the head has grown by so much since a probe, its count is out of date."""


class Counts:
    """Counts series, and remembers the counts for each tenant.

    Args:
        prober: asks the server.
        clock: monotonic seconds.
    """

    def __init__(self, prober: Prober, clock: Callable[[], float]) -> None:
        self._prober = prober
        self._cache: Cache[tuple[str, bytes, int], Count | None] = Cache(clock, _FRESH_S, _STALE_S, _ENTRIES, _PENDING)
        self._bounded: Head | None = None
        self._bounds: dict[bytes, int] = {}

    async def count(
        self,
        target: Target,
        at_s: float,
        now_s: float,
        head: Head | None,
        tenant: str,
        capabilities: Capabilities,
    ) -> Count | None:
        """Count the series at a time. None: neither the number nor an upper bound is known.

        Args:
            target: whose series are counted.
            at_s: Unix time; a time of the future counts as now.
            now_s: Unix time.
            head: the head block, for bounds; None if the server does not show it.
            tenant: whose series are counted.
            capabilities: of the server.
        """
        selector, at_s = target.selector, min(at_s, now_s)
        recent = now_s - at_s < PROBE_RANGE_S
        in_head = self._bound(head, target) if head is not None else None
        bound = in_head if head is not None and (recent or at_s > head.min_time_s) else None
        if (head is None or bound is None or head.series > SAFE_SERIES) and has_wide_reach(selector):
            return None if head is None else Count(head.series if bound is None else bound, exact=False)
        if not capabilities.limits_metadata and in_head is not None and in_head > SORTED_SERIES:
            return Count(in_head, exact=False)
        distributed = capabilities.flavour in DISTRIBUTED
        timeout_s = _timeout(bound, recent, distributed)
        key = (tenant, target.key, bucket(at_s, now_s))
        series = head.series if head is not None else 0
        covered_s = PROBE_RANGE_S
        if head is not None and head.min_time_s < at_s:
            covered_s = min(at_s - head.min_time_s, PROBE_RANGE_S)  # a young server has fewer samples

        safe = distributed or (in_head is not None and in_head <= SAFE_SERIES)
        text = f"count({target.recent})"

        async def ask() -> Count | None:
            body = await self._prober.query(
                text, at_s, timeout_s, tenant, _PROBE_BYTES, safe=safe, more=(("stats", "all"),)
            )
            return _read_count(body, series, covered_s) if body is not None else None

        found = await self._cache.get(key, ask, lambda kept, age_s: _still_counts(kept, age_s, series))
        if found is None and bound is not None:
            return Count(bound, exact=False)
        return found

    async def close(self) -> None:
        """Cancel the probes in flight."""
        await self._cache.close()

    def _bound(self, head: Head, target: Target) -> int:
        """Return `head.bound` of the target. Bounds are remembered until another head is asked about."""
        if head is not self._bounded or len(self._bounds) >= _BOUNDS:
            self._bounded = head
            self._bounds.clear()
        found = self._bounds.get(target.key)
        if found is None:
            found = self._bounds[target.key] = head.bound(target.selector)
        return found


def _timeout(bound: int | None, recent: bool, distributed: bool) -> float:
    if distributed:
        return DISTRIBUTED_TIMEOUT_S
    if bound is not None and bound <= SAFE_SERIES:
        return TIMEOUT_S
    return SHORT_TIMEOUT_S if recent else OLD_TIMEOUT_S


def _still_counts(kept: Count | None, age_s: float, head_series: int) -> bool:
    if kept is None:
        return age_s < _FAILED_S
    return not kept.head_series or head_series <= kept.head_series * _GROWTH


def _read_count(body: bytes, head_series: int, covered_s: float) -> Count | None:
    found = read_number(body)
    if found is None:
        return None
    series, samples = found.value, found.samples
    if series <= 0 or samples < series:
        return Count(max(series, 0), head_series=head_series)
    interval_s = covered_s * series / samples
    return Count(series, interval_s, head_series=head_series, counted_interval=True)
