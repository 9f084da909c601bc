"""Scrape pools: from targets or from the configuration, and labels that tell pools of one job apart."""

from __future__ import annotations

from muster.telemetry.prometheus.answers import Target
from muster.telemetry.usage.inventory import PROBE_SERIES, batches
from muster.telemetry.usage.pools import marks_of, pools_of_configs, pools_of_targets


def target(pool: str, interval: str = "30s", **labels: str) -> Target:
    return Target(labels={"instance": f"{pool}:1", **labels}, scrape_pool=pool, scrape_interval=interval)


def test_pools_have_the_jobs_and_the_longest_interval_of_their_targets() -> None:
    pools = pools_of_targets([target("a", job="x"), target("a", "1m", job="y"), target("b", "", job="x")])
    assert {name: (pool.jobs, pool.interval_s) for name, pool in pools.items()} == {
        "a": ({"x", "y"}, 60.0),
        "b": ({"x"}, 0.0),
    }


def test_pools_of_one_job_are_distinguished_by_a_label_without_common_values() -> None:
    targets = [
        target("k/0", job="kubelet", node="n1", metrics_path="/metrics"),
        target("k/0", job="kubelet", node="n2", metrics_path="/metrics"),
        target("k/1", job="kubelet", node="n1", metrics_path="/metrics/cadvisor"),
        target("n", job="node"),
    ]
    marks = marks_of(pools_of_targets(targets).values())
    assert {job: (mark.label, mark.pools) for job, mark in marks.items()} == {
        "kubelet": ("metrics_path", {"/metrics": "k/0", "/metrics/cadvisor": "k/1"})
    }


def test_label_that_some_targets_lack_does_not_distinguish_pools() -> None:
    targets = [target("a", job="x", path="1"), target("a", job="x"), target("b", job="x", path="2")]
    assert marks_of(pools_of_targets(targets).values()) == {}


def test_configuration_replaces_targets_that_are_not_listed() -> None:
    config = {"scrape_configs": [{"job_name": "a", "scrape_interval": "1m30s"}, {"job_name": "b"}, None, {}]}
    pools = pools_of_configs([config, {"scrape_configs": None}])
    assert {name: (pool.jobs, pool.interval_s) for name, pool in pools.items()} == {
        "a": ({"a"}, 90.0),
        "b": ({"b"}, 0.0),
    }


def test_portions_of_names_have_a_bounded_number_of_series() -> None:
    names = [f"n{n}" for n in range(2000)]
    sizes = {"n0": 3 * PROBE_SERIES, "n1": PROBE_SERIES // 2}
    found = list(batches(names, sizes, 1000))
    assert [name for batch in found for name in batch] == names
    assert found[0] == ["n0"]
    assert all(sum(sizes.get(name, 1000) for name in batch) <= PROBE_SERIES for batch in found[1:])
    assert max(len(batch) for batch in batches(names, {}, 1)) == 500
