"""Issue 17 A1: broad requests to a server that honours `limit` (the newest does), and to one that does not (2.42)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support import guardprocess, manyseries, prometheus
from tests.support.guardprocess import Guard
from tests.support.prometheus import Prometheus
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SERIES = 20_000
PODS = SERIES // manyseries.PER_POD
MAX_VALUES = 50
LIMITS = {"maxSeries": 1000, "maxLabelValues": MAX_VALUES}
CONFIG = {"callers": {"anonymous": "default"}, "groups": {"default": {"limits": LIMITS}}}
BROAD = "/api/v1/series?match[]=" + quote('{le!=""}')
NARROW = quote('container_threads{pod="job-3-worker-1"}')


@dataclass
class World:
    """A server with many series, a guard before it, and whether the server honours `limit`."""

    server: Prometheus
    guard: Guard
    honours: bool

    def bounded(self, path: str) -> Any:
        """The data of an answer that a server bounds by `limit`, and else None: then the guard must have refused it."""
        status, answer = self.guard.get(path)
        if self.honours:
            assert status == 200, answer
            return answer["data"]
        assert status == 422, answer
        assert answer["status"] == "error"
        assert answer["guard"]["reason"] in ("too_many_series", "too_many_values")
        return None


def _config(folder: Path, server: Prometheus) -> Path:
    file = folder / "guard.yaml"
    file.write_text(json.dumps({"upstream": {"url": server.url}, **CONFIG}))
    return file


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("limits")
    with manyseries.serving(SERIES) as targets:
        prometheus.write_config(folder, {"pods": list(targets)}, interval_s=5)
        with prometheus.running(folder) as server:
            eventually("all is scraped", lambda: server.get("/api/v1/query", query="up == 1")["result"])
            honours = len(server.get("/api/v1/labels", limit="1")) == 1
            with guardprocess.running(_config(folder, server), folder / "guard.log") as guard:
                yield World(server, guard, honours)


@pytest.mark.parametrize("asked", ["", "&limit=100000000", "&limit=0"])
def test_prometheus_5547_broad_series_are_bounded_by_the_server_or_refused(world: World, asked: str) -> None:
    series = world.bounded(BROAD + asked)
    assert series is None or len(series) == MAX_VALUES


def test_smaller_limit_of_the_caller_is_kept(world: World) -> None:
    series = world.bounded(f"{BROAD}&limit=3")
    assert series is None or len(series) == 3


def test_values_of_a_label_with_many_are_bounded_by_the_server_or_refused(world: World) -> None:
    assert len(world.server.get("/api/v1/label/pod/values")) == PODS > MAX_VALUES
    pods = world.bounded("/api/v1/label/pod/values")
    assert pods is None or len(pods) == MAX_VALUES


def test_narrow_requests_are_served_by_both(world: World) -> None:
    status, answer = world.guard.get(f"/api/v1/series?match[]={NARROW}")
    assert (status, len(answer["data"])) == (200, len(manyseries.CONTAINERS))
    status, answer = world.guard.get(f"/api/v1/label/container/values?match[]={NARROW}")
    assert (status, answer["data"]) == (200, sorted(manyseries.CONTAINERS))
    status, answer = world.guard.query('sum(container_threads{pod="job-3-worker-1"})')
    assert (status, len(answer["data"]["result"])) == (200, 1)


def test_queries_over_all_series_are_refused_by_both(world: World) -> None:
    for expression in ('count by (__name__) ({__name__=~".+"})', f"sum({manyseries.HISTOGRAM}_bucket)"):
        status, answer = world.guard.query(expression)
        assert (status, answer["guard"]["reason"]) == (422, "too_many_series")
    status, answer = world.guard.get("/federate?match[]=" + quote('{__name__=~".+"}'))
    assert (status, answer["guard"]["reason"]) == (422, "too_many_series")
