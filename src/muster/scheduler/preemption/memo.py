"""Gangs for which a recent search found no victims."""

from __future__ import annotations

from collections.abc import Mapping

from muster.scheduler.pods.pod_class import PodClass

GANGS_A_SECOND = 5000
"""Budget: candidates examined per second for each waiting gang. Examining one takes about 3 microseconds."""
AGAIN_MAX_S = 5.0


class Vain:
    """Cache of failed searches for victims. An entry lasts longer the more candidates the search had.

    If a gang needs less than before, its entry does not apply.
    """

    def __init__(self) -> None:
        self._asked: dict[str, tuple[float, float, dict[PodClass, int]]] = {}

    def until(self, key: str, missing: Mapping[PodClass, int], now: float) -> float | None:
        """Return until when the last failed search is valid; None if a new search is needed."""
        asked = self._asked.get(key)
        if asked is None:
            return None
        since, until, needed = asked
        same = needed.keys() == missing.keys() and all(count >= needed[cls] for cls, count in missing.items())
        if same and since <= now < until:
            return until
        del self._asked[key]
        return None

    def note(self, key: str, missing: Mapping[PodClass, int], now: float, looked_at: int) -> float:
        """Record a search of `looked_at` candidates that found no victims. Return until when it is valid."""
        until = now + min(AGAIN_MAX_S, looked_at / GANGS_A_SECOND)
        self._asked[key] = (now, until, dict(missing))
        return until

    def forget(self, key: str) -> None:
        """Drop a gang that is gone or was placed."""
        self._asked.pop(key, None)
