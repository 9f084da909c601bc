"""Evidence about a control plane: typed, complete when the rules see it, and read without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar, cast

import msgspec

from muster.api.finding import Scale, Unseen
from muster.doctor.histogram import Histogram, histograms
from muster.doctor.samples import Labels, Series, Server

P = TypeVar("P")

NUMBER_OF_NODES: Final = "the number of nodes, and so floods of Events and of Leases"
"""What is not examined if nodes cannot be listed."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the doctor saw.

    Attributes:
        scale: nodes today and planned.
        version: version of the API server, such as `v1.36.3`; "" if not known.
        servers: metrics of each API server that was read.
        window_s: time between the two readings, in seconds.
        parts: what collectors besides the metrics found, by type; see `part`.
        unseen: what could not be examined.
    """

    scale: Scale
    version: str = ""
    servers: tuple[Server, ...] = ()
    window_s: float = 0.0
    parts: Mapping[type, Any] = msgspec.field(default_factory=dict)
    unseen: tuple[Unseen, ...] = ()

    def part(self, kind: type[P]) -> P | None:
        """Return the part of this type; None if its collector could not see it."""
        return cast("P | None", self.parts.get(kind))

    def has(self, name: str) -> bool:
        """Returns whether an API server has this metric (with the suffix, for a histogram)."""
        return any(name in server.after.series for server in self.servers)

    def series(self, name: str) -> Iterator[Series]:
        """Yield the newest values of a metric of all servers."""
        for server in self.servers:
            yield from server.series(name)

    def rates(self, name: str) -> Iterator[Series]:
        """Yield increases per second of a counter of all servers; the same labels may occur once a server."""
        for server in self.servers:
            yield from server.rates(name)

    def histograms(
        self, family: str, by: tuple[str, ...], keep: Callable[[Labels], bool] = lambda labels: True
    ) -> Mapping[tuple[str, ...], Histogram]:
        """Return the observations in the window, summed over servers, by the labels `by`."""
        return histograms(self.servers, family, by, keep)
