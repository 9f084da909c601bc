"""Histograms over the window between two readings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from muster.doctor.samples import Labels, Server


class Histogram(msgspec.Struct):
    """Observations in the window.

    Attributes:
        buckets: number of observations by upper limit, cumulative.
        count: number of observations.
        sum: their sum.
    """

    buckets: dict[float, float] = msgspec.field(default_factory=dict)
    count: float = 0.0
    sum: float = 0.0

    @property
    def mean(self) -> float:
        """The mean; 0 without observations."""
        return self.sum / self.count if self.count else 0.0

    def above(self, limit: float) -> float:
        """Return how many observations were certainly greater than `limit`."""
        bounds = [bound for bound in self.buckets if bound >= limit]
        return max(self.count - self.buckets[min(bounds)], 0.0) if bounds else 0.0

    def quantile(self, share: float) -> float:
        """Return the upper limit of the bucket with this quantile; the largest finite limit if that is infinite."""
        finite = sorted(bound for bound in self.buckets if bound != float("inf"))
        for bound in finite:
            if self.count and self.buckets[bound] >= share * self.count:
                return bound
        return finite[-1] if finite and self.count else 0.0


def histograms(
    servers: Collection[Server], family: str, by: tuple[str, ...], keep: Callable[[Labels], bool] = lambda labels: True
) -> Mapping[tuple[str, ...], Histogram]:
    """Sum the increases of a histogram family over servers, grouped by the labels `by`.

    Args:
        servers: API servers.
        family: name without suffix.
        by: labels that form the key; "" where a series lacks one.
        keep: chooses series by their labels.
    """
    found: dict[tuple[str, ...], Histogram] = {}

    def of(labels: Labels) -> Histogram:
        return found.setdefault(tuple(labels.get(label, "") for label in by), Histogram())

    for server in servers:
        for labels, rate in server.rates(f"{family}_count"):
            if keep(labels):
                of(labels).count += rate * server.seconds
        for labels, rate in server.rates(f"{family}_sum"):
            if keep(labels):
                of(labels).sum += rate * server.seconds
    for server in servers if found else ():
        # A bucket without an observation counts too: it shows that all of them took longer.
        for labels, rate in server.rates(f"{family}_bucket", unchanged=True):
            if keep(labels):
                buckets, bound = of(labels).buckets, _bound(labels)
                buckets[bound] = buckets.get(bound, 0.0) + rate * server.seconds
    return found


def _bound(labels: Labels) -> float:
    try:
        return float(labels.get("le", "inf"))
    except ValueError:
        return float("inf")
