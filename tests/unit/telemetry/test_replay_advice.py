"""Advice about replays: dangers first, and only what helps."""

from __future__ import annotations

import msgspec
import pytest

from muster.telemetry.replay.advice import GIB, Advice, Settings, advise
from muster.telemetry.replay.defaults import DEFAULT
from muster.telemetry.replay.model import ReplaySize, predict
from muster.telemetry.replay.wal.folder import Damage

BUSY = ReplaySize(4_000_000, 4_000_000 * 240, 4_000_000 * 230)
SMALL = ReplaySize(20_000, 2_000_000, 20_000 * 230)


def kinds(size: ReplaySize, settings: Settings, damage: Damage | None = None) -> list[tuple[str, str]]:
    return [(each.kind, each.severity) for each in advise(size, settings, DEFAULT, damage=damage)]


def only(size: ReplaySize, settings: Settings, kind: str) -> Advice:
    [found] = [each for each in advise(size, settings, DEFAULT) if each.kind == kind]
    return found


def test_small_server_needs_no_advice() -> None:
    assert kinds(SMALL, Settings(2, gomaxprocs=2, memory_limit_bytes=8 * GIB, startup_limit_s=900)) == []


def test_prometheus_16942_replay_above_the_limit_is_a_crash_loop_although_the_server_runs_now() -> None:
    """prometheus/prometheus 16942: a replay needs more memory than the server did before it was killed."""
    peak = predict(BUSY, 4, DEFAULT).peak_memory_bytes
    settings = Settings(4, memory_limit_bytes=round(peak * 0.9), memory_bytes=round(peak * 0.6))
    found = only(BUSY, settings, "memory-limit")
    assert found.severity == "error"
    assert "crash loop" in found.message
    assert f"{peak * 0.6 / GIB:.2f} GiB now" in found.message
    assert next(each.kind for each in advise(BUSY, settings, DEFAULT)) == "memory-limit"


def test_prometheus_16942_advised_limit_ends_the_danger() -> None:
    peak = predict(BUSY, 4, DEFAULT).peak_memory_bytes
    advised = only(BUSY, Settings(4, memory_limit_bytes=round(peak * 0.9)), "memory-limit").memory_limit_bytes
    assert "memory-limit" not in dict(kinds(BUSY, Settings(4, memory_limit_bytes=advised)))


def test_peak_that_may_be_above_the_limit_is_a_warning() -> None:
    peak = predict(BUSY, 4, DEFAULT).peak_memory_bytes
    assert ("memory-limit", "warning") in kinds(BUSY, Settings(4, memory_limit_bytes=round(peak * 1.5)))
    assert "memory-limit" not in dict(kinds(BUSY, Settings(4, memory_limit_bytes=round(peak * 2.1))))


def test_startup_probe_that_ends_too_early_is_an_error() -> None:
    time_s = predict(BUSY, 4, DEFAULT).time_s
    assert ("startup-deadline", "error") in kinds(BUSY, Settings(4, startup_limit_s=time_s * 0.9))
    assert ("startup-deadline", "warning") in kinds(BUSY, Settings(4, startup_limit_s=time_s * 1.5))
    assert "startup-deadline" not in dict(kinds(BUSY, Settings(4, startup_limit_s=time_s * 2.1)))


@pytest.mark.parametrize(("version", "advised"), [("2.42.0", True), ("3.1.0", False), ("", False)])
def test_gomaxprocs_above_the_limit_matters_before_prometheus_3(version: str, advised: bool) -> None:
    found = dict(kinds(BUSY, Settings(4, gomaxprocs=64, version=version)))
    assert ("gomaxprocs" in found) == advised


def test_each_hint_helps_as_much_as_it_promises() -> None:
    settings = Settings(1, gomaxprocs=1)
    found = {each.kind: each for each in advise(BUSY, settings, DEFAULT)}
    expected = predict(BUSY, 1, DEFAULT)
    assert found["cpu"].time_s == predict(BUSY, 2, DEFAULT).time_s
    assert found["snapshot"].applies == "clean restarts"
    assert found["snapshot"].time_s == predict(msgspec.structs.replace(BUSY, samples=0), 1, DEFAULT).time_s
    for kind in ("cpu", "snapshot", "shorter-head", "fewer-series"):
        assert (found[kind].time_s or 0) < 0.9 * expected.time_s
    assert (found["fewer-series"].peak_memory_bytes or 0) < 0.6 * expected.peak_memory_bytes


def test_snapshot_is_not_advised_twice_nor_where_it_does_not_help() -> None:
    assert "snapshot" not in dict(kinds(BUSY, Settings(1, snapshot=True)))
    only_series = ReplaySize(8_000_000, 8_000_000)
    assert "snapshot" not in dict(kinds(only_series, Settings(1)))


def test_damage_comes_first_and_says_whether_the_server_starts() -> None:
    torn = Damage("wal/00000003", 77, "wrong checksum", 5000)
    assert kinds(SMALL, Settings(2), torn) == [("damage", "warning")]
    fatal = msgspec.structs.replace(torn, fatal=True)
    assert kinds(SMALL, Settings(2), fatal) == [("damage", "error")]


def test_replay_uses_no_more_cores_than_gomaxprocs() -> None:
    settings = Settings(8, gomaxprocs=2)
    assert settings.usable_cores == 2
    assert ("gomaxprocs", "hint") in kinds(SMALL, settings)
    assert only(BUSY, settings, "fewer-series").time_s == only(BUSY, Settings(2), "fewer-series").time_s
