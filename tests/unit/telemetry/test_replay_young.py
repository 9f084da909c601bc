"""A server that has just started: the series of its first scrapes do not count as churn."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

import pytest
from aiohttp import web

from muster.telemetry.prometheus.client import PrometheusClient
from muster.telemetry.replay.serversize import PAIRS_EACH, ServerState, read_server
from tests.support.fakeprometheus import serving, vector

SERIES = 18_812
SAMPLES_PER_S = 1_000.0
REPLAY_S = 60.0
BURST_S = 45.0
"""The first scrapes are over so long after the replay."""


@dataclass
class Young:
    """A server that scraped all its series within 45 s after its replay, and creates some in each second."""

    age_s: float
    churn_per_s: float = 0.0
    label_pairs: int = 0

    def created(self, at_s: float) -> float:
        """Series that were created until a time after the replay."""
        return SERIES * min(max(at_s / BURST_S, 0.0), 1.0) + self.churn_per_s * max(at_s, 0.0)

    def appended(self, at_s: float) -> float:
        return SAMPLES_PER_S * max(at_s, 0.0)

    async def handler(self, request: web.Request) -> web.StreamResponse:
        now_s = time.time()
        started_s = now_s - self.age_s - REPLAY_S
        if request.path == "/metrics":
            values = {
                "prometheus_tsdb_head_series": self.created(self.age_s),
                "prometheus_tsdb_head_series_created_total": self.created(self.age_s),
                "prometheus_tsdb_head_samples_appended_total": self.appended(self.age_s),
                "prometheus_tsdb_head_min_time_seconds": now_s - self.age_s,
                "prometheus_tsdb_head_max_time_seconds": now_s,
                "prometheus_tsdb_data_replay_duration_seconds": REPLAY_S,
                "process_start_time_seconds": started_s,
            }
            return web.Response(text="".join(f"{name} {value!r}\n" for name, value in values.items()))
        if request.path == "/api/v1/status/tsdb" and self.label_pairs:
            return web.json_response({"status": "success", "data": {"headStats": {"numLabelPairs": self.label_pairs}}})
        if request.path != "/api/v1/query":
            return web.json_response({"status": "success", "data": {}})
        query = request.query["query"]
        found = re.search(r"rate\((\w+)\{.*\}\[(\d+)s\]", query)
        if found is None:
            data = vector(({"job": "self"}, started_s))
        else:
            count = self.created if "created" in found[1] else self.appended
            range_s = float(found[2])
            data = vector(({}, (count(self.age_s) - count(self.age_s - range_s)) / range_s))
        return web.json_response({"status": "success", "data": data})


async def read(server: Young) -> ServerState:
    async with serving(server.handler) as url, PrometheusClient(url) as client:
        return await read_server(client)


async def test_label_pairs_grow_with_the_series_of_the_longest_log() -> None:
    plain = await read(Young(1800, churn_per_s=2.0))
    assert plain.now.label_pairs == round(PAIRS_EACH * plain.now.series)  # the server does not show them
    state = await read(Young(1800, churn_per_s=2.0, label_pairs=40_000))
    assert state.now.label_pairs == 40_000
    assert state.worst.label_pairs == pytest.approx(40_000 * state.worst.series / state.now.series, rel=0.001)


@pytest.mark.parametrize("minutes", [0.5, 2, 6, 7.5, 11, 19, 30])
async def test_first_scrapes_of_a_young_server_are_not_churn(minutes: float) -> None:
    state = await read(Young(minutes * 60))
    assert state.worst.series == state.now.series
    assert state.worst.samples == pytest.approx(SAMPLES_PER_S * state.head_most_s, rel=0.01) or minutes < 2


@pytest.mark.parametrize("minutes", [7.5, 11, 30])
async def test_churn_after_the_first_scrapes_counts(minutes: float) -> None:
    state = await read(Young(minutes * 60, churn_per_s=2.0))
    expected = state.now.series + 2.0 * (state.head_most_s - minutes * 60)
    assert state.worst.series == pytest.approx(expected, rel=0.01)


async def test_report_says_how_sure_it_is_of_the_churn() -> None:
    unknown, short, sure = [(await read(Young(minutes * 60))).notes for minutes in (5, 11, 30)]
    assert [("not known yet" in each, "started 5 min ago" in each) for each in unknown] == [(True, True)]
    assert ["over 6 min only" in each for each in short] == [True]
    assert sure == ()
