"""The price of a DaemonSet from recorded requests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api.finding import Growth
from muster.doctor.costs.budget import DEFAULT, BudgetError, parse_budget
from muster.doctor.costs.cost import Objects, Population
from muster.doctor.costs.logfiles import read_requests
from muster.doctor.costs.owners import Owners, PodFacts
from muster.doctor.costs.tally import Tally
from muster.doctor.pricing.price import NothingRecorded, Plan, Price, price
from muster.kube.loglines import Reading
from muster.kube.objects.meta import OwnerReference
from muster.kube.requestlog import RequestLine
from tests.support.auditevents import informers, polling, text

CLUSTER = Population(1000, {"pods": Objects(20_000, 3000.0, 50.0), "nodes": Objects(1000, 8000.0, 100.0)})


def priced(lines: list[str], plan: Plan, tmp_path: Path, name: str, **options: object) -> Price:
    (tmp_path / "log").write_bytes(text(lines))
    owner = OwnerReference(api_version="apps/v1", kind="DaemonSet", name=name, uid="uid", controller=True)
    owners = Owners([PodFacts("monitoring", f"{name}-{number}", name, f"node-{number}", owner) for number in range(10)])
    tally = Tally(owners)
    for line in read_requests([tmp_path / "log"], Reading()):
        tally.add(line)
    seen = tally.finish()
    (samples,) = seen.samples.values()
    return price(seen.usages, samples, CLUSTER, plan, **options)  # type: ignore[arg-type]


def test_canary_of_three_nodes_shows_the_price_of_7500_nodes(tmp_path: Path) -> None:
    found = priced(polling(3, 120, 10.0), Plan(7500), tmp_path, "telemetry")
    assert found.growth is Growth.PER_NODE_SQUARED
    assert found.planned.requests == pytest.approx(750, rel=0.01)
    assert found.planned.objects == pytest.approx(750 * 150_000, rel=0.01)
    assert found.planned.list_bytes == pytest.approx(750 * 150_000 * 3000, rel=0.01)
    assert found.planned.etcd_reads == pytest.approx(750, rel=0.01)
    assert [each.part for each in found.over] == ["list_bytes", "objects", "requests", "etcd_reads"]
    assert found.start.requests == pytest.approx(7500)
    assert found.start.bytes == pytest.approx(7500 * 150_000 * 3000, rel=0.01)


def test_watch_per_node_is_within_the_budget(tmp_path: Path) -> None:
    found = priced(informers(3, 600), Plan(7500), tmp_path, "quiet")
    assert found.over == ()
    assert found.planned.watches == pytest.approx(7500, rel=0.01)
    assert found.planned.events == pytest.approx(50 * 7.5, rel=0.01)
    assert found.watch_memory_bytes == pytest.approx(7500 * 100 * 1024, rel=0.01)
    assert found.start.objects == pytest.approx(150_000, rel=0.01)


def test_planned_number_of_pods_replaces_the_extrapolated_one(tmp_path: Path) -> None:
    found = priced(polling(3, 120, 10.0), Plan(7500, {"pods": 30_000}), tmp_path, "telemetry")
    assert found.planned.objects == pytest.approx(750 * 30_000, rel=0.01)


def test_own_budget_decides(tmp_path: Path) -> None:
    lines = informers(3, 600)
    assert not priced(lines, Plan(100), tmp_path, "quiet").over
    tight = priced(lines, Plan(100), tmp_path, "quiet", budget=parse_budget(("watches=99",)))
    assert [(each.part, round(each.cost), each.limit) for each in tight.over] == [("watches", 100, 99)]


def test_processor_use_grows_with_the_work(tmp_path: Path) -> None:
    found = priced(polling(3, 120, 10.0), Plan(1000), tmp_path, "telemetry", cpu_cores=0.3)
    assert found.cpu_cores == pytest.approx(0.3 * 1000 / 3, rel=0.02)


def test_nothing_recorded_is_not_free() -> None:
    with pytest.raises(NothingRecorded):
        price((), (), CLUSTER, Plan(10))


def test_events_that_a_proxy_counted_replace_the_estimate() -> None:
    tally = Tally(Owners())
    for number in range(3):
        user = {"user": "system:serviceaccount:m:t", "pod": f"p{number}", "node": f"n{number}"}
        common = {"verb": "watch", "resource": "pods", "id": f"w{number}", **user}
        tally.add(RequestLine(time=0.0, open=True, **common))  # type: ignore[arg-type]
        tally.add(RequestLine(time=100.0, seconds=100.0, code=200, events=500, bytes=500_000, **common))  # type: ignore[arg-type]
    seen = tally.finish()
    found = price(seen.usages, (), CLUSTER, Plan(2000))
    assert found.recorded.events == pytest.approx(15, rel=0.01)
    assert found.planned.events == pytest.approx(2000 * 5 * 2, rel=0.01)
    assert found.planned.event_bytes == pytest.approx(2000 * 5 * 2 * 1000, rel=0.01)


@given(st.integers(1, 20_000), st.integers(1, 20_000))
def test_more_nodes_never_cost_less(few: int, more: int) -> None:
    few, more = sorted((few, more))
    tally = Tally(Owners())
    for at in range(20):
        for number in range(3):
            tally.add(
                RequestLine(
                    time=float(at),
                    verb="list",
                    resource="pods",
                    user="system:serviceaccount:m:t",
                    pod=f"p{number}",
                    node=f"n{number}",
                )
            )
    seen = tally.finish()
    small, large = (price(seen.usages, (), CLUSTER, Plan(nodes)).planned for nodes in (few, more))
    assert all(left <= right * (1 + 1e-9) for left, right in zip(small, large, strict=True))


def test_budget_entries_are_checked() -> None:
    assert parse_budget(("listBytes=10Mi", "requests=5")) == DEFAULT._replace(list_bytes=10 << 20, requests=5)
    for bad in ("requests", "speed=5", "requests=many", "requests=-1"):
        with pytest.raises(BudgetError, match=bad.partition("=")[0]):
            parse_budget((bad,))
