"""Issue 17 A2: rules run inside the server, so `muster telemetry rules` prices them before they are loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.controlplane.ports import free_port
from tests.support import prometheus
from tests.support.prometheus import Prometheus
from tests.support.telemetrycommand import telemetry
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

RULES = """
groups:
- name: quick
  interval: 30s
  rules:
  - {record: "handler:requests:rate5m", expr: "sum by (handler) (rate(prometheus_http_requests_total[5m]))"}
  - {alert: Down, expr: "up == 0"}
- name: slow
  rules:
  - {record: "all:series", expr: 'count({__name__=~".+"})'}
"""

EVERYTHING = '{__name__=~".+"}'
REQUESTS = "prometheus_http_requests_total"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A server that has scraped itself, with one rule."""
    folder = tmp_path_factory.mktemp("rules")
    own = folder / "own.yaml"
    own.write_text("groups:\n- {name: own, interval: 15s, rules: [{alert: Own, expr: 'up == 0'}]}\n")
    port = free_port()
    # A scrape may take as long as the interval: a busy machine needs time for it, and a failed one ends the series.
    prometheus.write_config(folder, {"self": [f"127.0.0.1:{port}"]}, 2.0, rules=[own])
    with prometheus.running(folder, port=port) as server:
        eventually("it has scraped itself", lambda: series(server, REQUESTS) > 0)
        yield server


def series(server: Prometheus, selector: str) -> int:
    found = server.get("/api/v1/query", query=f"count({selector})")["result"]
    return int(found[0]["value"][1]) if found else 0


def test_rules_are_priced_and_the_broad_one_is_refused(server: Prometheus, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    command = ("rules", f"--prometheus={server.url}", f"--rules={file}", "--max-series=100")
    before = {name: series(server, name) for name in (EVERYTHING, REQUESTS)}
    done = telemetry(*command, "-o", "json")
    after = {name: series(server, name) for name in before}  # each kind of request to the server adds some
    assert done.returncode == 1, done.stderr
    found = {each["rule"]["name"]: each for each in json.loads(done.stdout)}
    broad, narrow, down = found["all:series"], found["handler:requests:rate5m"], found["Down"]
    for found_series, name in ((broad["series"], EVERYTHING), (narrow["series"], REQUESTS)):
        assert 0.5 * before[name] <= found_series <= 2 * after[name]
    assert "the limit is 100" in broad["problem"]
    assert (down["series"], down["problem"], narrow["problem"]) == (1, "", "")
    assert (broad["rule"]["intervalSeconds"], down["rule"]["intervalSeconds"]) == (60, 30)
    assert down["costPerDay"] == pytest.approx(down["cost"] * 2880)
    table = telemetry(*command)
    assert table.returncode == 1
    assert table.stdout.index("all:series") < table.stdout.index("Down")


def test_rules_of_the_server_need_no_files(server: Prometheus) -> None:
    done = telemetry("rules", f"--prometheus={server.url}", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    [own] = json.loads(done.stdout)
    assert (own["rule"]["name"], own["rule"]["intervalSeconds"], own["problem"]) == ("Own", 15, "")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("groups: [{name: g, rules: [{record: a, expr: 'sum(('}]}]", 1, "rule a: the query cannot be parsed"),
        ("groups: [{name: g, rules: []", 2, "promtool check rules"),
        ("groups: []", 4, "there are no rules"),
        ("groups: [{name: g, rules: [{record: a, exp: up}, {alert: B, expr: up}]}]", 2, "rule a has no expr"),
        ("groups: [{name: g, rules: [{recrod: a, expr: up}]}]", 2, "rule up has no record or alert"),
        ("groups: [{name: g, rules: [{alert: B, expr: 'upp == 0'}]}]", 0, "alert B matches no series now: upp == 0"),
    ],
)
def test_files_that_cannot_be_checked_say_why(
    server: Prometheus, tmp_path: Path, text: str, code: int, said: str
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    done = telemetry("rules", f"--prometheus={server.url}", f"--rules={file}")
    assert done.returncode == code
    assert said in done.stdout + done.stderr


def test_server_that_cannot_be_reached_is_an_error() -> None:
    done = telemetry("rules", f"--prometheus=http://127.0.0.1:{free_port()}")
    assert done.returncode == 3
    assert "cannot be reached" in done.stderr
