"""`muster telemetry cardinality` beside a real Prometheus that scrapes a small cluster."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import ClientSession, web

from muster.cli import main
from muster.telemetry.cardinality.collect import Settings, collect
from muster.telemetry.prometheus.client import PrometheusClient
from tests.support import prometheus
from tests.support.growingtargets import PODS_PER_NODE, serving
from tests.support.waiting import eventually

NODES = 12
TARGETS = 2 * NODES + 1
INTERVAL_S = 3
"""A scrape may take as long, which is time enough on a busy machine. A failed one ends the series of its target."""


def earlier(now_s: float) -> str:
    """The mesh and the nodes over the day before: from 4 to 12 nodes."""
    nodes: list[str] = []
    pings: list[str] = []
    for step in range(24 * 15):
        at = round(now_s) - 10_800 - (24 * 15 - step) * 240
        number = 4 + 8 * step // (24 * 15 - 1)
        nodes += [f'kube_node_info{{node="node-{each}"}} 1 {at}' for each in range(number)]
        pings += [
            f'mesh_ping_seconds{{source="node-{a}",destination="node-{b}"}} 1 {at}'
            for a in range(number)
            for b in range(number)
        ]
    parts = ["# TYPE kube_node_info unknown", *sorted(nodes), "# TYPE mesh_ping_seconds unknown", *sorted(pings)]
    return "\n".join([*parts, "# EOF", ""])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[prometheus.Prometheus]:
    folder = tmp_path_factory.mktemp("cluster")
    prometheus.add_history(folder, earlier(time.time()))
    with serving(folder, NODES, INTERVAL_S), prometheus.running(folder) as running:
        eventually(
            "all targets are scraped", lambda: len(running.get("/api/v1/query", query="up == 1")["result"]) == TARGETS
        )
        yield running


def muster(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main.run(["telemetry", "cardinality", *arguments], "muster")
    out, error = capsys.readouterr()
    return status, out, error


def report(capsys: pytest.CaptureFixture[str], url: str, *arguments: str) -> tuple[int, Any]:
    status, out, _ = muster(capsys, "--prometheus", url, "-o", "json", *arguments)
    return status, json.loads(out)


def growth_of(found: Any) -> dict[str, tuple[int, str, str]]:
    return {
        row["name"]: (row["growth"]["power"], row["growth"]["grows_with"], row["growth"]["basis"])
        for row in found["metrics"]
    }


def test_growing_metrics_are_found_and_the_worst_comes_first(
    server: prometheus.Prometheus, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = report(capsys, server.url, "--history-days", "0")
    growth = growth_of(found)
    assert status == 1  # the mesh grows faster than the cluster
    assert growth["mesh_ping_seconds"] == (2, "nodes", "number of values")
    assert growth["kube_pod_phase"] == (1, "pods", "name of a label")
    assert growth["node_cpu_seconds_total"] == (1, "nodes", "targets")
    assert growth["build_steps_total"] == (0, "", "")
    first = found["metrics"][0]
    assert (first["name"], first["now"]["series"], first["then"]["series"]) == ("mesh_ping_seconds", 144, 14_400)
    assert first["then"]["memory_bytes"] == 100 * first["now"]["memory_bytes"]
    assert first["growth"]["labels"] == ["destination", "source"]
    population = found["evidence"]["population"]
    assert (population["nodes"], population["pods"]) == (NODES, NODES * PODS_PER_NODE)
    jobs = {row["job"]["name"]: row for row in found["jobs"]}
    assert jobs["node-exporter"]["growth"]["grows_with"] == "nodes"
    assert jobs["node-exporter"]["job"]["interval_s"] == INTERVAL_S
    assert jobs["kube-state-metrics"]["factor"] > 8
    assert {row["name"]: row["growth"]["grows_with"] for row in found["labels"]}["pod"] == "pods"


def test_growth_at_earlier_times_is_measured(server: prometheus.Prometheus, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = report(capsys, server.url, "--history-days", "1", "--metrics", "5")
    assert growth_of(found)["mesh_ping_seconds"] == (2, "nodes", "earlier times")


def test_large_metrics_are_looked_at_on_one_target_only(
    server: prometheus.Prometheus, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = report(capsys, server.url, "--most-series", "100", "--history-days", "0")
    metrics = {each["name"]: each for each in found["evidence"]["metrics"]}
    assert metrics["mesh_ping_seconds"]["distinct"] == {}
    assert metrics["mesh_ping_seconds"]["jobs"] == ["mesh"]
    assert growth_of(found)["mesh_ping_seconds"] == (1, "nodes", "targets")
    assert any("kube_pod_phase has 180 series" in note for note in found["evidence"]["notes"])
    assert growth_of(found)["kube_pod_phase"] == (1, "pods", "name of the metric")


def test_table_names_what_to_do(server: prometheus.Prometheus, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, error = muster(capsys, "--prometheus", server.url, "--times", "3", "--history-days", "0")
    assert status == 1
    assert "AT 3X" in out
    assert "fix: mesh_ping_seconds: It has series for pairs" in out
    assert "requests" in error


class Asked:
    """A proxy in front of the server, which records queries and denies some paths."""

    def __init__(self, upstream: str, denied: tuple[str, ...]) -> None:
        self.upstream, self.denied = upstream, denied
        self.queries: list[str] = []
        self.paths: set[str] = set()

    async def handle(self, request: web.Request) -> web.Response:
        self.paths.add(request.path)
        if request.path.startswith(self.denied):
            return web.Response(status=403, text="denied")
        parts = urlsplit(request.raw_path)
        self.queries += parse_qs(parts.query).get("query", [])
        async with ClientSession() as session, session.get(f"{self.upstream}{request.raw_path}") as answer:
            return web.Response(status=answer.status, body=await answer.read())


async def asked_through(server: prometheus.Prometheus, denied: tuple[str, ...], *arguments: str) -> tuple[int, Asked]:
    """Run the command through a proxy."""
    asked = Asked(server.url, denied)
    app = web.Application()
    app.router.add_route("GET", "/{path:.*}", asked.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        command = ["telemetry", "cardinality", "--prometheus", f"http://127.0.0.1:{runner.addresses[0][1]}", *arguments]
        return await asyncio.to_thread(main.run, [*command, "--history-days", "0"], "muster"), asked
    finally:
        await runner.cleanup()


async def test_server_is_never_asked_for_all_series(server: prometheus.Prometheus) -> None:
    _, asked = await asked_through(server, ())
    assert not asked.paths & {"/api/v1/series", "/api/v1/labels", "/federate"}
    touched = []
    for query in asked.queries:
        if "__name__" in query:
            assert '{__name__="' in query
            assert '__muster_probe__=""' in query
            selector = query[query.index("{") : query.rindex("}") + 1]
            touched.append(len(server.get("/api/v1/query", query=selector)["result"]))
    assert len(touched) > 10
    assert max(touched) == 180


async def test_server_without_statistics_shows_its_targets(
    server: prometheus.Prometheus, capsys: pytest.CaptureFixture[str]
) -> None:
    denied = ("/api/v1/status", "/api/v1/cardinality", "/api/v1/targets", "/metrics")
    status, _ = await asked_through(server, denied, "-o", "json")
    found = json.loads(capsys.readouterr().out)
    assert (status, found["metrics"], found["projected"]) == (1, [], False)
    assert found["now"]["series"] == pytest.approx(NODES * (9 + NODES) + 268, abs=100)
    assert {row["job"]["name"] for row in found["jobs"]} == {"mesh", "node-exporter", "kube-state-metrics"}
    assert any("no statistics of its series" in note for note in found["evidence"]["notes"])


async def test_cost_that_is_not_known_is_not_shown(
    server: prometheus.Prometheus, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _ = await asked_through(server, ("/api/v1/status", "/api/v1/cardinality"))
    out, error = capsys.readouterr()
    assert status == 1
    assert [line.split()[-1] for line in out.splitlines()[1:5]] == ["?"] * 4
    assert "ask Prometheus itself, not a guard" in " ".join(error.split())


async def test_time_limit_leaves_out_the_rest(server: prometheus.Prometheus) -> None:
    async with PrometheusClient(server.url) as client:
        found = await collect(client, Settings(limit_s=0))
    assert (found.requests, found.jobs, found.metrics) == (0, (), ())
    assert found.notes.count("the time is over, so the rest of the queries was left out") == 1


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ([], 2, "--prometheus"),
        (["--prometheus", "http://127.0.0.1:1"], 3, "Connection refused"),
        (["--prometheus", "http://127.0.0.1:1", "--times", "0.5"], 2, "--times"),
        (["--prometheus", "http://127.0.0.1:1", "--nodes", "1", "--pods", "100000"], 2, "do not fit"),
    ],
)
def test_bad_input_says_what_to_change(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, text: str
) -> None:
    found, out, error = muster(capsys, *arguments)
    assert (found, out) == (status, "")
    assert text in error


def test_empty_server_is_an_error(tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]) -> None:
    with prometheus.running(tmp_path_factory.mktemp("empty")) as empty:
        status, _, error = muster(capsys, "--prometheus", empty.url)
    assert status == 4
    assert "neither targets nor series" in error
