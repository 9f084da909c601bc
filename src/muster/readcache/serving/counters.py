"""What the server counts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Totals since the start.

    Attributes:
        connections: accepted.
        refused_connections: closed at once, because there were too many.
        requests: answered in any way.
        forwarded: requests that were passed on to the API server.
        rejected: requests that were not valid HTTP.
        errors: requests that failed by a fault of the cache.
        dropped: clients that were cut off, by reason.
    """

    connections: int = 0
    refused_connections: int = 0
    requests: int = 0
    forwarded: int = 0
    rejected: int = 0
    errors: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    def count_dropped(self, reason: str) -> None:
        """Count a client that was cut off."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
