"""Failed searches for victims, which are not repeated at once."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from muster.scheduler.pods.pod_class import PodClass

GANGS_A_SECOND = 5000
"""Budget: candidates examined per second for each waiting gang. Examining one takes about 3 microseconds."""
AGAIN_MAX_S = 5.0


class FailedSearch(msgspec.Struct, frozen=True):
    """A search at `since` that found no victims for the `missing` pods; it is not repeated before `until`."""

    since: float
    until: float
    missing: Mapping[PodClass, int]

    def covers(self, missing: Mapping[PodClass, int], now: float) -> bool:
        """Return whether a search for these pods is not due yet; a gang that needs less is searched for at once."""
        if missing.keys() != self.missing.keys() or not self.since <= now < self.until:
            return False
        return all(count >= self.missing[cls] for cls, count in missing.items())


def failed_search(missing: Mapping[PodClass, int], now: float, looked_at: int) -> FailedSearch:
    """Return the record of a search of `looked_at` candidates; it is valid longer the more there were."""
    return FailedSearch(now, now + min(AGAIN_MAX_S, looked_at / GANGS_A_SECOND), dict(missing))
