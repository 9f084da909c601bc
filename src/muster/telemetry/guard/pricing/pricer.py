"""Prices operations with what the server shows about itself, and with bounded probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import msgspec

from muster.telemetry.guard.deadline import within
from muster.telemetry.guard.pricing.cache import Cache
from muster.telemetry.guard.pricing.capabilities import (
    TSDB_STATUS_LIMIT,
    Capabilities,
    is_limited,
    read_capabilities,
)
from muster.telemetry.guard.pricing.count import Count
from muster.telemetry.guard.pricing.counts import Counts
from muster.telemetry.guard.pricing.details import Details, Listed
from muster.telemetry.guard.pricing.head import Head, parse_head
from muster.telemetry.guard.pricing.model import Matched, price_of
from muster.telemetry.guard.pricing.price import Price
from muster.telemetry.guard.pricing.prober import PROBE_RANGE_S, ProbeFailed, Prober, Probes, Target
from muster.telemetry.guard.pricing.windows import EARLIEST_RANGE_S, Window, windows
from muster.telemetry.guard.query.operation import Operation
from muster.telemetry.promql.kept import NOTHING, Kept, kept_only
from muster.telemetry.promql.matcher import NAME_LABEL, Matcher
from muster.telemetry.promql.selector import Selector

T = TypeVar("T")

__all__ = ["Pricer", "ProbeFailed", "Probes"]

DEADLINE_S: Final = 8.0
"""How long pricing may take. After that the price is unknown."""
LONG_S: Final = 12 * 3600.0
"""A window that is longer is counted at three instants."""
LIMITED_SERIES: Final = 10_000
"""What a request with a limit counts as, if its series are unknown."""
_STATUS_TIMEOUT_S: Final = 5.0
_STATUS_BYTES: Final = 4 << 20
_SMALL_BYTES: Final = 256 * 1024
DEFAULT_RANGE_S: Final = 6 * 3600.0
_CHURNING_S: Final = 1800.0
"""In a shorter window, series that end do not count."""
_CHURN_MAX: Final = 100.0
_SEVERAL: Final = 10
"""Selectors of an operation that are counted at several instants; of more, each is counted at one."""
_DETAILED_SERIES: Final = 100_000
"""A selector with more series is only counted. That is the default of `maxSeries`."""
_LISTED_SERIES: Final = 10_000
"""The label names of a selector that matches at most so many series are asked for."""
_LISTED_VALUES: Final = 10_000
"""A server without `limit` is asked for the values of a label that has at most so many."""
_TENANTS: Final = 1000
_PENDING: Final = 100


class _Site(msgspec.Struct, frozen=True):
    """The server as one operation finds it."""

    capabilities: Capabilities
    head: Head | None
    tenant: str
    now_s: float

    @property
    def oldest_s(self) -> float:
        """Unix time before which the server has no samples."""
        return max(self.now_s - (self.capabilities.retention_s or EARLIEST_RANGE_S), 0.0)


class _Wanted(msgspec.Struct, frozen=True):
    """Which details of a selector a price needs.

    Attributes:
        kept: labels whose distinct sets are counted.
        sizes: how long label sets are.
        having: count the sets of series that have this label, "" for all series.
        beyond: only if the selector has more series than this.
    """

    kept: frozenset[Kept] = frozenset()
    sizes: bool = False
    having: str = ""
    beyond: int = 0


class Pricer:
    """Prices operations.

    Args:
        probes: asks the server.
        clock: monotonic seconds.
    """

    def __init__(self, probes: Probes, clock: Callable[[], float]) -> None:
        self._prober = Prober(probes)
        self._counts = Counts(self._prober, clock)
        self._details = Details(self._prober, clock)
        self._heads: Cache[str, Head | None] = Cache(clock, 30.0, 120.0, _TENANTS, _PENDING)
        self._capabilities: Cache[str, Capabilities] = Cache(clock, 300.0, 3600.0, _TENANTS, _PENDING)

    async def capabilities(self, tenant: str) -> Capabilities:
        """Return what the server can do. Cached; the least if it does not answer."""
        found = await self._capabilities.get(
            tenant, lambda: self._read_capabilities(tenant), lambda kept, age_s: kept.version != "" or age_s < 60
        )
        return found or Capabilities()

    async def price(self, operation: Operation, tenant: str, default_range_s: float = DEFAULT_RANGE_S) -> Price | None:
        """Return the price, or None if it is unknown.

        Args:
            operation: to price.
            tenant: whose series it reads.
            default_range_s: range of series and labels requests that have no start.
        """
        try:
            return await within(DEADLINE_S, self._price(operation, tenant, default_range_s))
        except TimeoutError:
            return None

    async def close(self) -> None:
        """Cancel the probes in flight."""
        for each in (self._heads, self._capabilities, self._counts, self._details):
            await each.close()

    async def _price(self, operation: Operation, tenant: str, default_range_s: float) -> Price | None:
        capabilities, head = await self._server(tenant)
        seen = windows(operation, default_range_s)
        site = _Site(capabilities, head, tenant, operation.now_s)
        several = len(seen) <= _SEVERAL and operation.kind not in ("labels", "label_values")
        wanted = _wanted(operation)
        matched = await _together(
            [
                self._match(selector, window, details, site, several)
                for selector, window, details in zip(operation.selectors, seen, wanted, strict=True)
            ]
        )
        known = [each for each in matched if each is not None]
        if len(known) < len(matched):
            if not is_limited(operation, capabilities):
                return None
            known = [Matched(each, (Count(LIMITED_SERIES, exact=False),)) for each in seen]
        return price_of(operation, known, head, capabilities, await self._listed(operation, known, site))

    async def _server(self, tenant: str) -> tuple[Capabilities, Head | None]:
        """Return what the server can do, and its head block."""
        kept = self._heads.kept(tenant, lambda: self._read_head(tenant))
        if kept is not None:
            return await self.capabilities(tenant), kept.value
        return await asyncio.gather(self.capabilities(tenant), self._heads.get(tenant, lambda: self._read_head(tenant)))

    async def _match(
        self, selector: Selector, window: Window, wanted: _Wanted, site: _Site, several: bool
    ) -> Matched | None:
        target = Target.of(selector)
        instants = _instants(window, site) if several else [min(window.newest_s, site.now_s)]
        counts: list[Count] = []
        for found in await _together(
            [
                self._counts.count(target, each, site.now_s, site.head, site.tenant, site.capabilities)
                for each in instants
            ]
        ):
            if found is None:
                return None
            counts.append(found)
        matched = Matched(window, tuple(counts), await self._churn(target, window, site), _covered(window, site))
        return await self._detailed(matched, target, wanted, site)

    async def _detailed(self, matched: Matched, target: Target, wanted: _Wanted, site: _Site) -> Matched:
        """Add the details that a price needs. Series that a probe could not count are not looked at further."""
        count, at_s = matched.counts[-1], min(matched.window.newest_s, site.now_s)
        fits = wanted.beyond < count.series <= _DETAILED_SERIES
        if not count.exact or not fits or not (wanted.kept or wanted.sizes):
            return matched
        where = (count, at_s, site.now_s, site.tenant)
        distinct: dict[Kept, int] = {}
        grouped = Target.of(_having(target.selector, wanted.having)) if wanted.having else target
        for kept in wanted.kept:
            found = await self._distinct(grouped, kept, count, at_s, site)
            if found is not None:
                distinct[kept] = min(found, count.series)
        sizes = await self._details.label_sets(target, *where, site.capabilities) if wanted.sizes else None
        return Matched(
            matched.window, matched.counts, matched.churn, matched.covered, distinct, sizes, target.name is not None
        )

    async def _distinct(self, target: Target, kept: Kept, count: Count, at_s: float, site: _Site) -> int | None:
        """Return the number of distinct label sets, without a probe where it follows from the matchers."""
        if not kept.only:
            unique = not kept.labels or kept.labels == (NAME_LABEL,)
            return count.series if unique else await self._asked(target, kept, count, at_s, site)
        fixed = _fixed(target.selector)
        free = [each for each in kept.labels if each not in fixed]
        return 1 if not free else await self._asked(target, kept_only(free), count, at_s, site)

    async def _asked(self, target: Target, kept: Kept, count: Count, at_s: float, site: _Site) -> int | None:
        return await self._details.distinct(target, kept, count, at_s, site.now_s, site.tenant)

    async def _listed(self, operation: Operation, matched: list[Matched], site: _Site) -> Listed | None:
        """Return the values or names that the operation asks for, if asking for them is cheap."""
        at_s = min(operation.end_s or site.now_s, site.now_s)
        where = (at_s, site.now_s, site.tenant, site.capabilities)
        path = operation.path
        match operation.kind, operation.selectors:
            case "label_values", ():
                bound = site.head.values.bound(operation.label) if site.head is not None else None
                cheap = site.capabilities.limits_metadata or (bound is not None and bound <= _LISTED_VALUES)
                return await self._details.listed(path, (), *where) if cheap else None
            case "labels", selectors:
                counts = [each.counts[-1] for each in matched]
                cheap = all(each.exact for each in counts) and sum(each.series for each in counts) <= _LISTED_SERIES
                targets = [Target.of(each) for each in selectors[:_SEVERAL]]
                # The names of everything bound those of a selector.
                return await self._details.listed(path, targets if cheap else (), *where)
        return None

    async def _churn(self, target: Target, window: Window, site: _Site) -> float:
        """Return how many series of the selector's metric ended in the last hour, for each that is active."""
        head = site.head
        if head is None or target.name is None or window.span_s < _CHURNING_S:
            return 0.0
        named = Target.of(Selector(((Matcher(NAME_LABEL, "=", target.name),),)))
        in_head, hours = head.exact(named.selector), (head.max_time_s - head.min_time_s) / 3600
        if in_head is None or hours <= 0:
            return 0.0
        active = await self._counts.count(named, site.now_s, site.now_s, head, site.tenant, site.capabilities)
        if active is None or not active.exact or not active.series:
            return 0.0
        return min(max(in_head / active.series - 1, 0.0) / hours, _CHURN_MAX)

    async def _read_head(self, tenant: str) -> Head | None:
        parameters = (("limit", str(TSDB_STATUS_LIMIT)),)
        body = await self._ask("/api/v1/status/tsdb", tenant, _STATUS_BYTES, parameters)
        return parse_head(body, TSDB_STATUS_LIMIT) if body is not None else None

    async def _read_capabilities(self, tenant: str) -> Capabilities:
        buildinfo, labels, runtimeinfo = await asyncio.gather(
            self._ask("/api/v1/status/buildinfo", tenant, _SMALL_BYTES),
            self._ask("/api/v1/labels", tenant, _SMALL_BYTES, (("limit", "1"),)),
            self._ask("/api/v1/status/runtimeinfo", tenant, _SMALL_BYTES),
        )
        return read_capabilities(buildinfo, labels, runtimeinfo)

    async def _ask(
        self, path: str, tenant: str, max_bytes: int, parameters: tuple[tuple[str, str], ...] = ()
    ) -> bytes | None:
        return await self._prober.get(path, parameters, tenant, _STATUS_TIMEOUT_S, max_bytes)


async def _together(many: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all at once; one alone needs no task."""
    return [await many[0]] if len(many) == 1 else await asyncio.gather(*many)


def _wanted(operation: Operation) -> list[_Wanted]:
    """Return which details of each selector the price needs. Of many selectors, only the first ones."""
    number = len(operation.selectors)
    match operation.kind:
        case "query" | "query_range" if operation.expression is not None:
            found = [_Wanted() for _ in range(number)]
            for part in operation.expression.parts:
                if part.selector < _SEVERAL and part.kept != NOTHING:
                    was = found[part.selector]
                    found[part.selector] = _Wanted(was.kept | {part.kept}, sizes=True)
            return found
        case "series" | "federate" | "remote_read":
            return [_Wanted(sizes=each < _SEVERAL) for each in range(number)]
        case "labels":
            return [_Wanted(sizes=each < _SEVERAL, beyond=_LISTED_SERIES) for each in range(number)]
        case "label_values":
            kept = frozenset({kept_only((operation.label,))})
            return [
                _Wanted(kept, sizes=True, having=operation.label) if each < _SEVERAL else _Wanted()
                for each in range(number)
            ]
    return [_Wanted()] * number


def _having(selector: Selector, label: str) -> Selector:
    filled = Matcher(label, "!=", "")
    return Selector(tuple((*group, filled) for group in selector.matchers))


def _fixed(selector: Selector) -> frozenset[str]:
    """Return labels that have one value in all series of the selector."""
    if len(selector.matchers) != 1:
        return frozenset()
    return frozenset(each.name for each in selector.matchers[0] if each.op == "=")


def _instants(window: Window, site: _Site) -> list[float]:
    """Return when to count: at the newest sample, and in a long window also in the middle and at its start."""
    newest_s = min(window.newest_s, site.now_s)
    start_s = max(window.oldest_s, site.oldest_s)
    if newest_s - start_s <= LONG_S:
        return [newest_s]
    return [start_s + PROBE_RANGE_S, (start_s + newest_s) / 2, newest_s]


def _covered(window: Window, site: _Site) -> float:
    """Return the part of the window in which the server can have samples."""
    if window.span_s <= 0:
        return 1.0
    covered_s = min(window.newest_s, site.now_s) - max(window.oldest_s, site.oldest_s)
    return min(max(covered_s / window.span_s, 0.0), 1.0)
