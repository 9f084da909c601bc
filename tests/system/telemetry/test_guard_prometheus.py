"""Issue 17 A1 and A2: the guard before a real Prometheus: what it passes on, what it denies, and what it ends."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cramjam
import pytest

from tests.support import guardprocess, prometheus
from tests.support.guardprocess import Guard
from tests.support.prometheus import Prometheus
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PODS, BUCKETS, STEPS, STEP_S = 200, 10, 60, 60
MAX_VALUES = 500
CONFIG = {
    "callers": {"anonymous": "default"},
    "groups": {"default": {"limits": {"maxSeries": 1000, "maxLabelValues": MAX_VALUES, "maxSamples": 10**13,
                                      "maxSteps": 20_000}}},
}  # fmt: skip
EVERYTHING = '{le!=""}'
ONE_POD = 'temperature{pod="pod-1"}'
IN_FLIGHT = "muster_guard_upstream_requests_in_flight"
SERIES = "/api/v1/series?match[]="


@dataclass
class World:
    """A server with two thousand series of a histogram, a guard before it, and the time of the last sample."""

    server: Prometheus
    guard: Guard
    end_s: int

    def direct(self, path: str) -> Any:
        """What Prometheus answers, without the guard."""
        connection = http.client.HTTPConnection("127.0.0.1", int(self.server.url.rpartition(":")[2]), timeout=30)
        connection.request("GET", path)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    def through(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """What the guard answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.guard.port, timeout=30)
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    def handled(self, handler: str) -> float:
        """How many requests Prometheus has answered at a path."""
        lines = self.direct("/metrics")[1].decode().splitlines()
        name = f'prometheus_http_requests_total{{code="200",handler="{handler}"}}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def running_queries(self) -> float:
        """How many queries run in Prometheus."""
        lines = self.direct("/metrics")[1].decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith("prometheus_engine_queries "))


def history(end_s: int) -> str:
    """Two thousand series of a histogram, and one gauge for each pod, over an hour."""
    lines = ["# TYPE latency_seconds histogram"]
    times = [(step, end_s - (STEPS - step) * STEP_S) for step in range(1, STEPS + 1)]
    lines += [
        f'latency_seconds_bucket{{pod="pod-{pod}",le="{bucket}"}} {step * (bucket + 1)} {at_s}'
        for pod in range(PODS)
        for bucket in range(BUCKETS)
        for step, at_s in times
    ]
    lines += ["# TYPE temperature gauge"]
    lines += [f'temperature{{pod="pod-{pod}"}} {40 + step % 5} {at_s}' for pod in range(PODS) for step, at_s in times]
    return "\n".join([*lines, "# EOF\n"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("guarded")
    end_s = int(time.time()) // 60 * 60
    prometheus.add_history(folder, history(end_s))
    options = ["--web.enable-admin-api", "--web.enable-lifecycle", "--query.timeout=20m"]
    with prometheus.running(folder, options) as server:
        config = folder / "guard.yaml"
        config.write_text(json.dumps({"upstream": {"url": server.url}, **CONFIG}))
        with guardprocess.running(config, folder / "guard.log") as guard:
            yield World(server, guard, end_s)


def query(text: str, **more: Any) -> str:
    return urllib.parse.urlencode({"query": text, **more})


def test_listed_requests_get_the_answer_of_prometheus(world: World) -> None:
    start, end = world.end_s - 1800, world.end_s
    for path in (
        f"/api/v1/query?{query('sum(temperature)', time=end)}",
        f"/api/v1/query_range?{query(ONE_POD, start=start, end=end, step=60)}",
        f"{SERIES}temperature&start={start}&end={end}",
        f"/api/v1/labels?match[]=temperature&start={start}&end={end}",
        f"/api/v1/label/pod/values?match[]=temperature&start={start}&end={end}",
        "/api/v1/metadata?limit=5",
        "/api/v1/status/buildinfo",
        "/api/v1/rules",
        "/api/v1/alerts",
        "/api/v1/targets?state=active",
        f"/api/v1/query_exemplars?{query('temperature', start=start, end=end)}",
        f"/federate?match[]={urllib.parse.quote(ONE_POD)}",
    ):
        assert world.through(path) == world.direct(path), path
        assert world.direct(path)[0] == 200, path


def test_form_and_query_string_are_one_request(world: World) -> None:
    form = query("sum(temperature)", time=world.end_s).encode()
    direct = world.direct(f"/api/v1/query?{form.decode()}")
    content_type = {"Content_Type": "application/x-www-form-urlencoded"}
    assert world.through("/api/v1/query", "POST", form, **content_type) == direct
    time_only = f"time={world.end_s}"
    assert (
        world.through(f"/api/v1/query?{time_only}", "POST", form.replace(b"&time=", b"&x="), **content_type) == direct
    )


def test_answer_is_compressed_by_prometheus_and_passed_through(world: World) -> None:
    path = f"/api/v1/query?{query('temperature', time=world.end_s)}"
    status, body = world.through(path, Accept_Encoding="gzip")
    assert (status, body[:2]) == (200, b"\x1f\x8b")


def field(tag: int, data: bytes) -> bytes:
    """A field of bytes, or of a message, in protobuf."""
    return bytes([tag << 3 | 2, len(data)]) + data


def number(tag: int, value: int) -> bytes:
    """A field with a number in protobuf."""
    found = bytearray([tag << 3])
    while value >= 128:
        found.append(value % 128 + 128)
        value //= 128
    return bytes([*found, value])


def test_remote_read_is_passed_on(world: World) -> None:
    matchers = b"".join(
        field(3, field(2, name) + field(3, value))
        for name, value in ((b"__name__", b"temperature"), (b"pod", b"pod-1"))
    )
    request = field(1, number(1, (world.end_s - 600) * 1000) + number(2, world.end_s * 1000) + matchers)
    status, body = world.through(
        "/api/v1/read", "POST", bytes(cramjam.snappy.compress_raw(request)),
        Content_Type="application/x-protobuf", Content_Encoding="snappy", X_Prometheus_Remote_Read_Version="0.1.0",
    )  # fmt: skip
    assert status == 200
    assert b"pod-1" in bytes(cramjam.snappy.decompress_raw(body))


def test_admin_and_lifecycle_are_denied_in_every_form(world: World) -> None:
    everything = urllib.parse.quote('{__name__=~".+"}')
    paths = [
        f"/api/v1/admin/tsdb/delete_series?match[]={everything}",
        f"/api/v1/%61dmin/tsdb/delete_series?match[]={everything}",
        f"//api/v1/admin/tsdb/delete_series?match[]={everything}",
        f"/api/v1/query/../admin/tsdb/delete_series?match[]={everything}",
        f"/api/v1/query/..%2fadmin/tsdb/delete_series?match[]={everything}",
        f"/./api/v1/admin/tsdb/delete_series?match[]={everything}",
        "/-/quit",
        "/-/reload",
        "/%2d/quit",
        "/api/../-/quit",
        "/debug/pprof/heap",
        "/metrics",
        "/graph",
        "/",
    ]
    for path in paths:
        for method in ("GET", "POST", "PUT", "DELETE"):
            assert raw(world.guard.port, f"{method} {path} HTTP/1.1") in (403, 405), (method, path)
    smuggled = f"POST /api/v1/admin/tsdb/delete_series?match[]={everything} HTTP/1.1\r\nHost: p\r\n\r\n"
    raw(
        world.guard.port,
        "POST /api/v1/query HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 6",
        f"0\r\n\r\n{smuggled}",
    )
    assert world.server.process.poll() is None
    assert world.server.get("/api/v1/query", query="count(temperature)", time=str(world.end_s))["result"]


def raw(port: int, head: str, body: str = "") -> int:
    """Send bytes as they are and return the status of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(f"{head}\r\nHost: g\r\n\r\n{body}".encode())
        return int(connection.recv(1000).split()[1])


def test_grafana_15992_explore_of_twenty_users_gets_a_bounded_answer_or_none(world: World) -> None:
    # grafana/grafana 15992: opening Explore asked for all series of all histograms, without a time.
    before = world.handled("/api/v1/series")
    answers: list[tuple[int, bytes]] = []

    def open_explore() -> None:
        answers.append(world.through(SERIES + urllib.parse.quote(EVERYTHING), X_Grafana_Org_Id="1"))

    users = [threading.Thread(target=open_explore) for _ in range(20)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    one_label = json.loads(world.direct("/api/v1/labels?limit=1")[1])["data"]
    if len(one_label) == 1:  # the server honours `limit`
        assert {status for status, _ in answers} == {200}
        assert {len(json.loads(body)["data"]) for _, body in answers} == {MAX_VALUES}
    else:
        assert {status for status, _ in answers} == {422}
        refusal = json.loads(answers[0][1])
        assert refusal["errorType"] == "execution"  # Grafana shows `error`
        assert refusal["guard"]["price"]["series"] >= 1000
        assert refusal["guard"]["cheaper"]
        assert world.handled("/api/v1/series") == before
    assert world.through(f"/api/v1/query?{query('sum(temperature)', time=world.end_s)}")[0] == 200


def test_query_ends_in_prometheus_when_its_client_goes(world: World) -> None:
    # 200 series and 10,000 steps, for each a sort of 3,600 values: minutes of work.
    text, end_s = "sum(quantile_over_time(0.5, (temperature * 2)[1h:1s]))", world.end_s
    endless = query(text, start=end_s - 2000, end=end_s, step="200ms")
    assert world.running_queries() == 0
    with socket.create_connection(("127.0.0.1", world.guard.port), timeout=30) as connection:
        connection.sendall(f"GET /api/v1/query_range?{endless} HTTP/1.1\r\nHost: g\r\n\r\n".encode())
        eventually("the query is sent", lambda: f"{IN_FLIGHT} 1.0" in world.guard.metrics())
        eventually("the query runs", lambda: world.running_queries() >= 1)
    eventually("the query has ended", lambda: world.running_queries() == 0)
    eventually("the guard counts it no more", lambda: f"{IN_FLIGHT} 0.0" in world.guard.metrics())


def test_prometheus_that_hangs_is_away_until_it_answers_again(world: World, tmp_path: Path) -> None:
    """The kernel still accepts connections for a process that is stopped."""
    config = tmp_path / "guard.yaml"
    config.write_text(json.dumps({"upstream": {"url": world.server.url}, **CONFIG}))
    world.server.process.send_signal(signal.SIGSTOP)
    try:
        with guardprocess.running(config, tmp_path / "guard.log") as guard:
            status, body = guard.query(ONE_POD)
            assert (status, body["guard"]["reason"]) == (502, "unreachable")
            world.server.process.send_signal(signal.SIGCONT)
            eventually("the guard passes on the query", lambda: guard.query(ONE_POD)[0] == 200)
    finally:
        world.server.process.send_signal(signal.SIGCONT)
