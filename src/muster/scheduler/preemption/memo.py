"""For which gangs it was asked in vain lately who would leave for them."""

from __future__ import annotations

from collections.abc import Mapping

from muster.scheduler.pods.pod_class import PodClass

GANGS_A_SECOND = 5000
"""So many who might leave are looked at a second, for each gang that waits: looking takes about 3 microseconds each."""
AGAIN_MAX_S = 5.0


class Vain:
    """Answers that hold a while, the longer the more there are who might have left: most plans change none of them.

    A gang that needs less than it did is looked at anew.
    """

    def __init__(self) -> None:
        self._asked: dict[str, tuple[float, float, dict[PodClass, int]]] = {}

    def until(self, key: str, missing: Mapping[PodClass, int], now: float) -> float | None:
        """Return until when the last answer, that nobody leaves, holds; None where the question has to be asked."""
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
        """Nobody leaves for the gang, of so many who might. Returns until when that holds."""
        until = now + min(AGAIN_MAX_S, looked_at / GANGS_A_SECOND)
        self._asked[key] = (now, until, dict(missing))
        return until

    def forget(self, key: str) -> None:
        """The gang is gone, or was placed."""
        self._asked.pop(key, None)
