"""Servers besides Prometheus, whose answers are those of their documentation."""

from __future__ import annotations

from typing import Any

import pytest

from muster.telemetry.cardinality.collect import Settings, collect
from muster.telemetry.cardinality.evidence import Evidence
from muster.telemetry.cardinality.report import report
from muster.telemetry.prometheus.client import PrometheusClient
from muster.telemetry.prometheus.errors import PrometheusError
from tests.support.fakeprometheus import Handler, answering, serving, vector

MESH = '{__name__="mesh",__muster_probe__=""}'
QUERIES: dict[str, Any] = {
    "count(kube_node_info)": vector(({}, 100)),
    "count(kube_pod_info)": vector(({}, 900)),
    "count by (job) (up)": vector(({"job": "probe"}, 100)),
    "sum by (job) (scrape_samples_post_metric_relabeling)": vector(({"job": "probe"}, 10_000)),
    f"topk by (job) (1, {MESH})": vector(({"job": "probe", "source": "a", "target": "b"}, 1)),
    f"count(count by (source) ({MESH}))": vector(({}, 100)),
    f"count(count by (target) ({MESH}))": vector(({}, 100)),
    f"count(count by (source, target) ({MESH}))": vector(({}, 10_000)),
}
MIMIR = {
    "/api/v1/cardinality/label_values": {
        "series_count_total": 10_000,
        "labels": [
            {
                "label_name": "__name__",
                "label_values_count": 1,
                "series_count": 10_000,
                "cardinality": [{"label_value": "mesh", "series_count": 10_000}],
            }
        ],
    },
    "/api/v1/status/buildinfo": {"status": "success", "data": {"application": "Grafana Mimir", "version": "2.60.0"}},
}
VICTORIAMETRICS = {
    "/api/v1/status/tsdb": {
        "status": "success",
        "isPartial": False,
        "data": {
            "totalSeries": 10_000,
            "totalLabelValuePairs": 50_000,
            "seriesCountByMetricName": [
                {"name": "mesh", "value": 10_000, "requestsCount": 1, "lastRequestTimestamp": 2}
            ],
            "seriesCountByLabelName": [{"name": "source", "value": 10_000}],
            "seriesCountByFocusLabelValue": [],
            "seriesCountByLabelValuePair": [{"name": "job=probe", "value": 10_000}],
            "labelValueCountByLabelName": [{"name": "source", "value": 100}],
        },
    }
}


async def evidence(handler: Handler, settings: Settings = Settings()) -> Evidence:  # noqa: B008
    async with serving(handler) as url, PrometheusClient(url) as client:
        return await collect(client, settings)


@pytest.mark.parametrize("pages", [MIMIR, VICTORIAMETRICS], ids=["mimir", "victoriametrics"])
async def test_pairs_of_nodes_are_found_in(pages: dict[str, Any]) -> None:
    asked: list[str] = []
    found = await evidence(answering(pages, QUERIES, asked))
    assert found.series == 10_000
    [row] = report(found, 10).metrics
    assert (row.name, row.growth.power, row.then.series) == ("mesh", 2, 1_000_000)
    assert not [each for each in asked if each.startswith("/api/v1/series")]


async def test_limit_of_series_is_trusted_only_if_it_is_prometheus() -> None:
    """Another program with a version like that of Prometheus may ignore the limit."""
    for build, sent in (
        ({"version": "3.1.0"}, 1),
        ({"version": "2.54.1"}, 1),
        ({"version": "2.53.2"}, 0),
        ({"version": ""}, 0),
        ({"version": "2.60.0", "application": "Grafana Mimir"}, 0),
    ):
        asked: list[str] = []
        pages = {
            **VICTORIAMETRICS,
            "/api/v1/status/buildinfo": {"status": "success", "data": build},
            "/api/v1/series": {"status": "success", "data": [{"__name__": "mesh", "job": "probe", "pod": "a"}]},
        }
        found = await evidence(answering(pages, QUERIES, asked), Settings(most_series=100))
        series = [each for each in asked if each.startswith("/api/v1/series")]
        assert (build, len(series)) == (build, sent)
        assert all("limit=1" in each and "start=" in each and "end=" in each for each in series)
        assert found.metrics[0].labels == (("job", "pod") if sent else ())


async def test_page_that_is_not_of_this_api_is_an_error() -> None:
    with pytest.raises(PrometheusError) as caught:
        await evidence(answering({"/api/v1/query": {"message": "welcome"}}, {}))
    assert caught.value.reason == "not-prometheus"


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
async def test_values_that_are_not_numbers_are_left_out(value: str) -> None:
    sample = {"resultType": "vector", "result": [{"metric": {"job": "a"}, "value": [1, value]}]}
    queries = {**QUERIES, "sum(kubelet_running_pods)": sample, "count by (job) (up)": sample}
    found = await evidence(answering(VICTORIAMETRICS, {**queries, "count(kube_pod_info)": vector()}))
    assert (found.population.pods, found.jobs) == (0, ())


async def test_error_of_one_query_is_a_note_and_the_rest_is_shown() -> None:
    queries = {**QUERIES, "count(kube_pod_info)": {"resultType": "matrix", "result": []}}
    found = await evidence(answering(VICTORIAMETRICS, queries))
    assert (found.population.nodes, found.population.pods) == (100, 0)
    assert any("kube_pod_info" in each for each in found.notes)
    assert found.metrics[0].pairs == {"source,target": 10_000}
