"""Writes dear requests to the log of the process, one JSON object a line, so that they outlive it."""

from __future__ import annotations

import json
import logging
from typing import Final

from muster.telemetry.guard.dearest.asked import Asked, shown_text

LINES_MAX: Final = 10
"""Lines in one second. Further requests of that second are only counted."""

log = logging.getLogger(__name__)


class DearLines:
    """Writes a line for each request of at least a given cost, and for each sent one that exceeds a limit."""

    def __init__(self) -> None:
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def write(self, asked: Asked, now: float) -> None:
        """Write a request.

        Args:
            asked: the request.
            now: seconds since the epoch.
        """
        if int(now) != self._second:
            self._second, self._lines = int(now), 0
        if self._lines >= LINES_MAX:
            self._left_out += 1
            return
        self._lines += 1
        source = asked.source
        fields = {
            "caller": asked.caller.name,
            "group": asked.caller.group,
            "kind": asked.kind,
            "query": shown_text(asked.text),
            "rangeSeconds": asked.range_s,
            "stepSeconds": asked.step_s,
            "cost": asked.cost,
            "series": asked.series,
            "samples": asked.samples,
            "outcome": asked.outcome,
            "exceeds": asked.exceeds,
            "seconds": round(asked.duration_s, 3),
            "answerBytes": asked.answer_bytes,
            "dashboardUid": source.dashboard_uid,
            "panelId": source.panel_id,
            "ruleUid": source.rule_uid,
            "leftOut": self._left_out,
        }
        self._left_out = 0
        log.info("dear request: %s", json.dumps({key: value for key, value in fields.items() if value}))
