"""What metrics and the log of queries keep of a request that ended."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from muster.telemetry.guard.callers.caller import Caller
from muster.telemetry.guard.metrics import GuardMetrics
from muster.telemetry.guard.pricing.price import Price
from muster.telemetry.guard.query.parsing import parse
from muster.telemetry.guard.serving.assessment import Assessment
from muster.telemetry.guard.serving.failure import Outcome
from muster.telemetry.guard.serving.records import Record

ALICE = Caller("grafana/alice", "header", "people", "grafana/*")


def ended(outcome: Outcome, reason: str = "", status: int = 200, shared: bool = False) -> Record:
    pairs = (("query", "sum(up)"), ("start", "0"), ("end", "600"), ("step", "60"))
    operation = parse("GET", "/api/v1/query_range", pairs, "", b"", 1000.0)
    assessed = Assessment(
        endpoint="query_range", parameters=pairs, operation=operation, price=Price(series=3, samples=40), cost=340.0,
        timeout_s=5.0, max_bytes=None,
    )  # fmt: skip
    return Record(
        0.0, {"X-Dashboard-Uid": "abc"}, ALICE, assessed, outcome=outcome, reason=reason, status=status, shared=shared
    )


def test_labels_have_names_of_the_configuration_and_not_of_users() -> None:
    registry = CollectorRegistry()
    metrics = GuardMetrics(registry)
    metrics.count(ended("answered"), 0.1)
    metrics.count(ended("refused", "too_many_series", 422), 0.1)
    metrics.count(ended("answered", "too_many_series"), 0.1)  # a dry run
    metrics.count(Record(0.0, {}, outcome="denied_path", status=403), 0.1)

    def requests(**labels: str) -> float | None:
        return registry.get_sample_value("muster_guard_requests_total", labels)

    def refusals(allowed: str) -> float | None:
        labels = {"endpoint": "query_range", "caller": "grafana/*", "reason": "too_many_series", "allowed": allowed}
        return registry.get_sample_value("muster_guard_refusals_total", labels)

    assert requests(endpoint="query_range", caller="grafana/*", outcome="answered") == 2
    assert requests(endpoint="unknown", caller="unknown", outcome="denied_path") == 1
    assert (refusals("false"), refusals("true")) == (1, 1)


@pytest.mark.parametrize(
    ("record", "outcome", "cost"),
    [
        (ended("answered"), "sent", 340.0),
        (ended("answered", shared=True), "sent", 0.0),
        (ended("too_large"), "sent", 340.0),
        (ended("refused", "too_many_series", 422), "too_many_series", 340.0),
        (ended("over_budget", "", 429), "over_budget", 340.0),
        (ended("client_gone", status=0), "gone", 340.0),
    ],
)
def test_log_of_queries_gets_the_outcome_and_the_cost(record: Record, outcome: str, cost: float) -> None:
    asked = record.asked(2.0)
    assert asked is not None
    assert (asked.outcome, asked.cost, asked.text, asked.range_s, asked.step_s) == (outcome, cost, "sum(up)", 600, 60)
    assert (asked.series, asked.samples, asked.source.dashboard_uid) == (3, 40, "abc")


def test_log_of_queries_skips_requests_without_an_operation() -> None:
    assert Record(0.0, {}, ALICE).asked(1.0) is None
