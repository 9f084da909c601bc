"""Paths and parameters that servers read in different ways."""

from __future__ import annotations

import pytest

from muster.telemetry.guard.serving.failure import Failure
from muster.telemetry.guard.serving.target import split_target

MAX_BYTES = 64 << 10


@pytest.mark.parametrize(
    "raw",
    [
        "/api/v1/%61dmin/tsdb/snapshot",
        "/api/v1/quer%79?query=up",
        "//api/v1/query",
        "/api//v1/query",
        "/api/v1/query/../admin/tsdb/snapshot",
        "/api/v1/./query",
        "/..",
        "/api/v1/query\\..\\admin",
        "/api/v1/query;x=1",
        "/api/v1/query%00",
        "/api/v1/query%2f..%2fadmin",
        "/api/v1/query#fragment",
        "http://prometheus:9090/api/v1/query",
        "prometheus:9090",
        "*",
        "",
        "/api/v1/qu\u00e9ry",
        "/api/v1/query \t",
    ],
)
def test_path_in_another_form_is_denied(raw: str) -> None:
    with pytest.raises(Failure) as caught:
        split_target(raw, "/prometheus", MAX_BYTES)
    assert (caught.value.outcome, caught.value.status) == ("denied_path", 403)


@pytest.mark.parametrize(
    ("prefix", "raw", "path"),
    [
        ("", "/api/v1/query", "/api/v1/query"),
        ("", "/api/v1/label/U__a_2e_b/values", "/api/v1/label/U__a_2e_b/values"),
        ("/prometheus", "/prometheus/api/v1/query", "/api/v1/query"),
        ("/prometheus", "/api/v1/query", "/api/v1/query"),
        ("/prometheus", "/prometheus/federate", "/federate"),
        ("/prometheus", "/prometheus/prometheus/api/v1/query", "/prometheus/prometheus/api/v1/query"),
        ("/prometheus", "/prometheusapi/v1/query", "/prometheusapi/v1/query"),
        ("/prometheus", "/prometheus/graph", "/prometheus/graph"),
        ("/select/0/prometheus", "/select/0/prometheus/api/v1/series", "/api/v1/series"),
        ("/api", "/api/v1/query", "/api/v1/query"),
        ("/api", "/api/api/v1/query", "/api/v1/query"),
    ],
)
def test_prefix_of_the_upstream_is_removed_once(prefix: str, raw: str, path: str) -> None:
    assert split_target(raw, prefix, MAX_BYTES) == (path, ())


def test_parameters_keep_their_order_and_blanks() -> None:
    _, parameters = split_target("/api/v1/series?match[]=a&match[]=%7Ble!%3D%22%22%7D&end=&start=1", "", MAX_BYTES)
    assert parameters == (("match[]", "a"), ("match[]", '{le!=""}'), ("end", ""), ("start", "1"))


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("query=up;query=down", 400),
        ("query=%zz", 400),
        ("query=%", 400),
        ("query=%ff", 400),
        ("&".join(f"match[]=m{n}" for n in range(1001)), 400),
        ("query=" + "a" * MAX_BYTES, 414),
    ],
)
def test_parameters_that_servers_read_in_different_ways_are_refused(query: str, status: int) -> None:
    with pytest.raises(Failure) as caught:
        split_target(f"/api/v1/query?{query}", "", MAX_BYTES)
    assert caught.value.status == status
