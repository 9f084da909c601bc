"""Metrics of traffic: labels are bounded, values never decrease, and the names of iptables-exporter come on request."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from muster.network.traffic.exporter import METRICS, Exporter, PodRow, View
from muster.network.traffic.report import HOST_JOB, Row

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def page(exporter: Exporter) -> str:
    registry = CollectorRegistry()
    registry.register(exporter)
    return generate_latest(registry).decode()


def samples(exporter: Exporter) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page(exporter))
        for sample in family.samples
    }


def row(job: str, size: int, *, namespace: str = "ns", team: str = "", cls: str = "internet", way: str = "in") -> Row:
    return Row(namespace, job, team, cls, way, size, size // 100)


def value(found: Samples, name: str, **labels: str) -> float:
    (one,) = [each for (key, held), each in found.items() if key == name and labels.items() <= dict(held).items()]
    return one


def shown(rows: Sequence[Row], *, series_max: int = 1000, names: bool = False) -> Samples:
    exporter = Exporter(series_max, exporter_names=names)
    exporter.update(View(rows=tuple(rows)))
    return samples(exporter)


def test_row_of_a_job_has_its_labels_and_empty_ones_are_named() -> None:
    found = shown([row("train", 700, team="vision"), row("", 50, namespace="web"), row(HOST_JOB, 9, namespace="")])
    assert value(found, "muster_network_bytes_total", job="train", namespace="ns", team="vision") == 700
    assert value(found, "muster_network_packets_total", job="train") == 7
    assert value(found, "muster_network_bytes_total", job="(none)", namespace="web", team="(none)") == 50
    assert value(found, "muster_network_bytes_total", job="(host)", namespace="(none)") == 9


def test_flood_of_jobs_is_limited_and_reported_and_no_byte_is_missing() -> None:
    rows = [row(f"job-{number}", 1000 + number) for number in range(5000)]
    found = shown(rows, series_max=100)
    per_job = {key: each for key, each in found.items() if key[0] == "muster_network_bytes_total"}
    assert len(per_job) == 51
    assert sum(per_job.values()) == sum(each.bytes for each in rows)
    assert value(found, "muster_network_accounts_over_limit") == 4950
    assert value(found, "muster_network_bytes_total", job="job-4999") == 5999, "the largest have series of their own"


def test_series_of_a_job_stays_when_others_grow_larger() -> None:
    exporter = Exporter(4, exporter_names=False)
    exporter.update(View(rows=(row("first", 10), row("second", 5))))
    exporter.update(View(rows=(row("first", 11), row("second", 6), row("giant", 10**9))))
    found = samples(exporter)
    assert value(found, "muster_network_bytes_total", job="first") == 11
    assert value(found, "muster_network_bytes_total", job="(others)") == 10**9
    exporter.update(View(rows=(row("second", 7), row("giant", 10**9 + 1))))
    found = samples(exporter)
    assert value(found, "muster_network_bytes_total", job="giant") == 10**9 + 1, "there is room now"
    assert value(found, "muster_network_bytes_total", job="(others)") == 10**9, "it does not decrease"


@pytest.mark.parametrize("seed", range(10))
def test_no_series_decreases_while_jobs_come_and_go(seed: int) -> None:
    rng = random.Random(seed)
    exporter = Exporter(12, exporter_names=True)
    totals: dict[str, int] = {}
    before: Samples = {}
    for _ in range(60):
        if rng.random() < 0.4:
            totals.setdefault(f"job-{rng.randrange(30)}", 0)
        if totals and rng.random() < 0.2:
            del totals[rng.choice(sorted(totals))]
        for job in totals:
            totals[job] += rng.randrange(500)
        exporter.update(View(rows=tuple(row(job, size) for job, size in totals.items())))
        now = {key: each for key, each in samples(exporter).items() if "_bytes" in key[0]}
        gone = {f"job-{number}" for number in range(30)} - totals.keys()
        for key, each in before.items():
            if dict(key[1]).get("job") not in gone and key in now:
                assert now[key] >= each, key
        before = {key: each for key, each in now.items() if dict(key[1]).get("job") not in gone}
        assert len(now) <= 12 + 6


def test_pods_share_the_limit_with_jobs() -> None:
    pods = tuple(PodRow("ns", f"p{number}", "train", "internet", "in", number) for number in range(50))
    exporter = Exporter(12, exporter_names=False)
    exporter.update(View(rows=(row("train", 100),), pods=pods))
    found = samples(exporter)
    assert len([key for key in found if key[0] == "muster_network_pod_bytes_total"]) == 10
    assert value(found, "muster_network_accounts_over_limit") == 40


def test_names_of_iptables_exporter_have_its_labels_and_no_suffix() -> None:
    rows = [row("train", 700), row("train", 300, way="out"), row(HOST_JOB, 40, namespace="", way="out")]
    found = shown(rows, names=True)
    assert (
        value(
            found, "iptables_bytes", table="mangle", chain="forward", rule="namespace=ns job=train traffic=internet-in"
        )
        == 700
    )
    assert value(found, "iptables_packets", chain="forward", rule="namespace=ns job=train traffic=internet-out") == 3
    assert value(found, "iptables_bytes", chain="output", rule="namespace= job=(host) traffic=internet-out") == 40
    assert not any(key[0].startswith("iptables") for key in shown(rows))


def test_every_metric_of_the_reference_is_exported() -> None:
    exporter = Exporter(100, exporter_names=False)
    exporter.update(View(rows=(row("j", 1),), pods=(PodRow("n", "p", "j", "internet", "in", 1),)))
    assert {name for name, _ in samples(exporter)} == {each.name for each in METRICS}
