from __future__ import annotations

import time

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from muster.kube.health import Progress, health_app, serve


async def fetch(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


async def test_liveness_readiness_and_metrics() -> None:
    now = [100.0]
    registry = CollectorRegistry()
    progress = Progress(clock=lambda: now[0], registry=registry)
    missing: list[str | None] = ["no list of pods yet"]
    async with serve(health_app(progress, ready={"caches": lambda: missing[0]}, registry=registry)) as port:
        assert await fetch(port, "/healthz") == (200, "ok\n")
        assert await fetch(port, "/readyz") == (503, "caches: no list of pods yet\n")
        missing[0] = None
        assert await fetch(port, "/readyz") == (200, "ok\n")
        progress.expect("watch", 30)
        now[0] += 29
        assert (await fetch(port, "/healthz"))[0] == 200
        now[0] += 2
        assert await fetch(port, "/healthz") == (500, "watch: no progress for 31 s\n")
        code, text = await fetch(port, "/metrics")
        assert code == 200
        assert 'muster_progress_age_seconds{loop="watch"} 31.0' in text
        assert 'muster_progress_deadline_seconds{loop="watch"} 30.0' in text
        progress.mark("watch")
        assert (await fetch(port, "/healthz"))[0] == 200
        now[0] += 60
        progress.drop("watch")
        assert (await fetch(port, "/healthz"))[0] == 200
        assert 'loop="watch"' not in (await fetch(port, "/metrics"))[1]


async def test_a_counter_is_one_series() -> None:
    registry = CollectorRegistry()
    Counter("muster_example", "An example.", registry=registry).inc()
    async with serve(health_app(Progress(registry=registry), registry=registry)) as port:
        lines = (await fetch(port, "/metrics"))[1].splitlines()
    assert [line for line in lines if "example" in line and not line.startswith("#")] == ["muster_example_total 1.0"]


def test_a_step_of_the_wall_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress()
    progress.expect("loop", 5)
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert progress.overdue() == {}
    assert 0 <= progress.age_s("loop") < 5


def test_unexpected_marks_are_ignored() -> None:
    progress = Progress()
    progress.mark("unknown")
    progress.drop("unknown")
    assert (progress.overdue(), progress.age_s("unknown")) == ({}, 0.0)
