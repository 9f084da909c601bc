"""Queries of Muster's own dashboards and alerts: what they read is never dropped."""

from __future__ import annotations

from collections.abc import Iterator

from muster.telemetry.alerts.alerts import FILES
from muster.telemetry.alerts.thresholds import DEFAULTS
from muster.telemetry.dashboards.boards.all import DASHBOARDS
from muster.telemetry.usage.inputs.dashboards import dashboard_questions
from muster.telemetry.usage.inputs.question import Question
from muster.telemetry.usage.query import read_query


def own_questions() -> Iterator[Question]:
    """Yield the queries of the dashboards and alerts in Muster's chart."""
    for dashboard in DASHBOARDS:
        yield from dashboard_questions(dashboard.to_json(), "Muster's dashboards")
    for file in FILES:
        for alert in file.alerts:
            expr = alert.rendered(DEFAULTS)
            yield Question(expr, f"Muster's alerts: {alert.name}", read_query(expr))
