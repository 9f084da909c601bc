"""What a server scrapes: counted in portions, with fallbacks for servers that lack parts of the API."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import permutations, starmap
from typing import Any

import pytest

from muster.telemetry.prometheus.answers import Count, Metadata, RuleGroup, Sample, Target, TsdbStatus
from muster.telemetry.prometheus.client import PrometheusClient
from muster.telemetry.prometheus.errors import PrometheusError, Reason
from muster.telemetry.usage import inventory
from muster.telemetry.usage.inventory import Inventory, read_inventory
from muster.telemetry.usage.pools import Pool

MISSING = PrometheusError(404, "404 page not found")


class Server(PrometheusClient):
    """Answers from a table of series, and refuses queries of more than `most` names."""

    def __init__(self, series: Mapping[str, int], most: int = 1000, refuse: str = "") -> None:
        super().__init__("http://127.0.0.1:9090")
        self.table = series
        self.most = most
        self.refuse = refuse
        self.status: TsdbStatus | None = None
        self.asked: list[list[str]] = []

    async def label_values(self, label: str, *args: Any, **kwargs: Any) -> list[str]:
        return list(self.table) if label == "__name__" else ["a", "b"]

    async def query(self, expression: str, at_s: float | None = None, timeout_s: float | None = None) -> list[Sample]:
        pattern = re.search(r'__name__=~"(.*)",__muster', expression)
        if pattern is None:
            return []
        names = pattern[1].split("|")
        self.asked.append(names)
        if len(names) > self.most or self.refuse in names:
            raise PrometheusError(422, "query processing would load too many samples into memory")
        return [Sample({"__name__": name, "job": "a"}, 0.0, float(self.table[name])) for name in names]

    async def targets(self) -> list[Target]:
        raise MISSING

    async def tsdb_status(self, limit: int = 0) -> TsdbStatus:
        if self.status is None:
            raise MISSING
        return self.status

    async def metadata(self, limit: int = 0) -> dict[str, list[Metadata]]:
        raise MISSING

    async def rules(self) -> list[RuleGroup]:
        raise MISSING


async def read(server: Server, pools: Mapping[str, Pool] | None = None) -> Inventory:
    return await read_inventory(server, pools or {})


@pytest.mark.parametrize(
    ("types", "one"),
    [
        (("counter", "histogram", "summary"), "histogram"),
        (("gauge", "summary"), "summary"),
        (("unknown", "gauge"), "gauge"),
    ],
)
async def test_type_that_keeps_most_is_taken_when_targets_disagree_in_any_order(
    types: tuple[str, ...], one: str
) -> None:
    class Disagreeing(Server):
        order: tuple[str, ...] = ()

        async def metadata(self, limit: int = 0) -> dict[str, list[Metadata]]:
            return {"x": [Metadata(each) for each in self.order], "y": []}

    server = Disagreeing({"x": 3})
    for server.order in permutations(types):
        assert (await read(server)).types == {"x": one}, server.order


async def test_server_without_optional_pages_is_read() -> None:
    found = await read(Server({"x": 3, "y": 4}), {"a": Pool("a", {"a"}, 5.0)})
    assert (found.series, found.groups, found.types) == ({"x": {"a": 3}, "y": {"a": 4}}, None, {})
    assert (found.shares("x", "a"), found.samples_per_s("y", "a")) == ({"a": 3}, 0.8)
    assert not found.sample_bytes_measured


async def test_refused_portions_are_divided() -> None:
    server = Server({f"n{n}": n + 1 for n in range(8)}, most=2)
    server.status = TsdbStatus(series_count_by_metric_name=tuple(starmap(Count, server.table.items())))
    found = await read(server)
    assert {name: jobs["a"] for name, jobs in found.series.items()} == server.table
    assert max(len(names) for names in server.asked if len(names) <= 2) == 2


async def test_metric_that_cannot_be_counted_is_unknown() -> None:
    found = await read(Server({"x": 3, "y": 4}, refuse="y"))
    assert (found.series, list(found.unknown)) == ({"x": {"a": 3}}, ["y"])


async def test_metric_with_very_many_series_is_not_counted_by_a_query() -> None:
    server = Server({"x": 3, "y": 4_000_000})
    server.status = TsdbStatus(series_count_by_metric_name=(Count("y", 4_000_000), Count("x", 3)))
    found = await read(server)
    assert found.series == {"x": {"a": 3}, "y": {"a": 2_000_000, "b": 2_000_000}}
    assert server.asked == [["x"]]


async def test_refused_credentials_end_the_run() -> None:
    server = Server({"x": 3})

    async def refused() -> list[Target]:
        raise PrometheusError(401, "unauthorized")

    server.targets = refused  # type: ignore[method-assign]
    with pytest.raises(PrometheusError, match="unauthorized"):
        await read(server)


@pytest.mark.parametrize("reason", ["timeout", "unreachable", "too-big"])
async def test_rules_that_the_server_fails_to_list_end_the_run(reason: Reason) -> None:
    server = Server({"x": 3})

    async def failing() -> list[RuleGroup]:
        raise PrometheusError(0, "no rules now", reason)

    server.rules = failing  # type: ignore[method-assign]
    with pytest.raises(PrometheusError, match="no rules now"):
        await read(server)


async def test_count_that_is_not_a_number_ends_the_run() -> None:
    with pytest.raises(PrometheusError, match="counts nan series"):
        await read(Server({"x": math.nan}))  # type: ignore[dict-item]


async def test_too_many_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "NAMES_MAX", 1)
    with pytest.raises(PrometheusError, match="more than 1 names"):
        await read(Server({"x": 3, "y": 4}))
