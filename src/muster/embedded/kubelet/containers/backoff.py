"""Delays between restarts of a container that fails repeatedly.

Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-restarts
"""

from __future__ import annotations

FIRST_S = 10.0
LONGEST_S = 300.0
RESET_AFTER_S = 600.0


class RestartBackoff:
    """Ten seconds, doubling up to five minutes, reset after a run of ten minutes. The first restart has no delay."""

    def __init__(self, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = 0.0

    def after_run(self, ran_s: float) -> float:
        """Return the seconds to wait after a run that lasted `ran_s` seconds."""
        if ran_s >= RESET_AFTER_S:
            self._next_s = 0.0
        delay_s = self._next_s
        self._next_s = min(self._longest_s, delay_s * 2) if delay_s else self._first_s
        return delay_s
