"""Which metrics, labels and jobs grow, and their cost."""

from __future__ import annotations

import pytest

from muster.telemetry.cardinality.evidence import Evidence, Job, Label, Metric, Population
from muster.telemetry.cardinality.growth import job_growth, label_growth, metric_growth
from muster.telemetry.cardinality.report import Report, report

CLUSTER = Population(7500, 30_000, "count(kube_node_info)")
NODE_EXPORTER = Job("node-exporter", 7500, 7500 * 600.0, 600, 0.1, 30, 7500 * 90_000.0)
STATE_METRICS = Job("kube-state-metrics", 1, 900_000.0, 900_000, 6.0, 30, 135e6)
JOBS = {each.name: each for each in (NODE_EXPORTER, STATE_METRICS)}


def growth(metric: Metric, population: Population = CLUSTER) -> tuple[int, str, str]:
    found = metric_growth(metric, JOBS, population)
    return found.power, found.grows_with, found.basis


def test_label_with_the_name_of_pods_grows_with_pods() -> None:
    metric = Metric("kube_pod_info", 30_000, ("kube-state-metrics",), ("pod", "uid"), {"pod": 30_000, "uid": 30_000})
    assert growth(metric) == (1, "pods", "name of a label")


def test_label_with_one_value_does_not_grow() -> None:
    metric = Metric("config_info", 4, ("kube-state-metrics",), ("pod", "version"), {"pod": 1, "version": 4})
    assert growth(metric) == (0, "", "")


def test_targets_that_are_as_many_as_nodes_grow_with_nodes() -> None:
    metric = Metric("node_load1", 7500, ("node-exporter",), ("instance", "job"), {"instance": 7500})
    assert growth(metric) == (1, "nodes", "targets")


def test_one_target_does_not_grow_without_a_label_that_does() -> None:
    assert growth(Metric("steps_total", 40, ("kube-state-metrics",), ("step",), {"step": 40})) == (0, "", "")


def test_label_without_a_known_name_grows_if_it_has_as_many_values_as_nodes() -> None:
    metric = Metric("switch_port_up", 7490, ("kube-state-metrics",), ("gpu_box",), {"gpu_box": 7490})
    assert growth(metric) == (1, "nodes", "number of values")
    assert growth(metric, Population(60, 0))[0] == 0


def test_pairs_of_nodes_grow_squared() -> None:
    distinct = {"source": 300, "destination": 300}
    metric = Metric(
        "mesh_ping_seconds", 90_000, ("mesh",), ("destination", "source"), distinct, {"destination,source": 90_000}
    )
    found = metric_growth(metric, JOBS, Population(300, 0))
    assert (found.power, found.labels, found.times(10)) == (2, ("destination", "source"), 100)


def test_labels_that_repeat_each_other_do_not_grow_squared() -> None:
    metric = Metric(
        "node_cpu",
        40_000,
        ("node-exporter",),
        ("instance", "node"),
        {"instance": 400, "node": 400},
        {"instance,node": 400},
    )
    assert growth(metric, Population(400, 0)) == (1, "nodes", "name of a label")


def test_pairs_of_nodes_and_a_few_devices_do_not_grow_squared() -> None:
    distinct = {"node": 400, "device": 8}
    metric = Metric("disk_io", 3200, (), ("device", "node"), distinct, {"device,node": 3200})
    assert growth(metric, Population(400, 0))[0] == 1


@pytest.mark.parametrize(
    ("power", "expected"),
    [(0, (0, "", "earlier times")), (1, (1, "pods", "earlier times")), (2, (2, "pods", "earlier times"))],
)
def test_growth_at_earlier_times_counts_more_than_names(power: int, expected: tuple[int, str, str]) -> None:
    history = tuple((nodes, 3.0 * nodes**power) for nodes in (100.0, 200.0, 400.0, 800.0))
    assert growth(Metric("x", 800, (), ("pod",), {"pod": 800}, {}, history)) == expected


def test_history_without_spread_or_law_says_nothing() -> None:
    flat = tuple((100.0 + each, 1000.0) for each in range(8))
    wild = ((100.0, 1000.0), (200.0, 2900.0), (400.0, 8000.0))
    for history in (flat, wild, ((100.0, 1.0), (900.0, 9.0))):
        assert growth(Metric("x", 800, (), ("node",), {"node": 800}, {}, history)) == (1, "nodes", "name of a label")


def test_large_metric_that_was_not_looked_at_is_known_by_its_name() -> None:
    assert growth(Metric("kube_pod_status_phase", 5_000_000)) == (1, "pods", "name of the metric")
    assert growth(Metric("custom_thing", 5_000_000)) == (0, "", "")


def test_jobs_and_labels_follow_the_population() -> None:
    assert job_growth(NODE_EXPORTER, CLUSTER).grows_with == "nodes"
    assert job_growth(Job("sidecars", 29_000, 1.0), CLUSTER).grows_with == "pods"
    assert job_growth(Job("etcd", 5, 1.0), CLUSTER).power == 0
    assert job_growth(Job("apps", 40, 1.0), Population()).grows_with == "targets"
    assert label_growth(Label("le", 12), CLUSTER).power == 0
    assert label_growth(Label("instance", 7600), CLUSTER).grows_with == "nodes"
    assert label_growth(Label("container_id", 90_000), CLUSTER).grows_with == "pods"


def make_report(
    *metrics: Metric, jobs: tuple[Job, ...] = (NODE_EXPORTER, STATE_METRICS), series: int = 6_000_000
) -> Report:
    return report(Evidence(series, 2000.0, CLUSTER, jobs, metrics, ()), 10)


def test_worst_metric_at_ten_times_comes_first() -> None:
    pairs = Metric("mesh", 50_000, (), ("source", "target"), {"source": 220, "target": 220}, {"source,target": 48_000})
    constant = Metric("rules", 900_000, ("kube-state-metrics",), ("rule",), {"rule": 90})
    linear = Metric("node_x", 300_000, ("node-exporter",), ("instance",), {"instance": 7500})
    found = make_report(linear, constant, pairs)
    assert [(row.name, row.then.series) for row in found.metrics] == [
        ("mesh", 5_000_000),
        ("node_x", 3_000_000),
        ("rules", 900_000),
    ]
    assert found.metrics[0].then.memory_bytes == 5_000_000 * 2000.0
    assert found.grows_faster


def test_single_target_whose_scrape_becomes_too_slow_is_to_be_sharded() -> None:
    metric = Metric("kube_pod_info", 30_000, ("kube-state-metrics",), ("pod",), {"pod": 30_000})
    found = make_report(metric)
    [row] = [each for each in found.jobs if each.job.name == "kube-state-metrics"]
    assert (row.factor, row.scrape_s_then, row.fixes) == (10, 60.0, ("shard-target",))
    [nodes] = [each for each in found.jobs if each.job.name == "node-exporter"]
    assert (nodes.factor, nodes.scrape_s_then, nodes.fixes) == (10, 0.1, ())
    assert found.grows_faster


def test_total_covers_series_that_were_not_looked_at() -> None:
    found = make_report(jobs=(NODE_EXPORTER,), series=4_500_000)
    assert (found.now.series, found.then.series) == (4_500_000, 45_000_000)
    assert found.now.samples_per_s == pytest.approx(150_000)
    assert not found.grows_faster


def test_churn_and_needless_labels_and_buckets_have_fixes() -> None:
    churning = Job("jobs", 3, 1000.0, 400, 0.1, 30, 1.0, added_per_h=700.0)
    metric = Metric("latency_bucket", 500, ("jobs",), ("le", "pod", "uid"), {"pod": 50})
    found = make_report(metric, jobs=(churning,))
    assert found.jobs[0].fixes == ("limit-churn",)
    assert found.metrics[0].fixes == ("drop-labels", "fewer-buckets", "drop-unused")


def test_report_of_a_server_without_anything_is_empty() -> None:
    found = report(Evidence(0, 3072.0, Population(), (), (), ()), 10)
    assert (found.then.series, found.metrics, found.jobs) == (0, (), ())
