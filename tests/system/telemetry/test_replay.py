"""`muster telemetry replay` beside a real Prometheus: folders that it wrote, its replays, and a calibration."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.cli import main
from muster.controlplane.ports import free_port
from muster.telemetry.prometheus.client import PrometheusClient
from muster.telemetry.replay.calibration import load_calibration, save_calibration
from muster.telemetry.replay.defaults import DEFAULT
from muster.telemetry.replay.measuring.calibrate import Shape, make_log, replay, shapes
from muster.telemetry.replay.measuring.server import ServerError, running
from muster.telemetry.replay.model import ReplaySize, predict
from muster.telemetry.replay.restart import NoRestart, calibrate_by_restart
from muster.telemetry.replay.serversize import read_server
from muster.telemetry.replay.wal.folder import Folder, read_folder
from tests.support import prometheus
from tests.support.waiting import eventually

SHAPE = Shape(4000, 5)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ReplaySize]]:
    """A database that a server wrote until it was killed, and what was sent to it."""
    folder = tmp_path_factory.mktemp("made")
    size, _ = asyncio.run(make_log(prometheus.program(), folder, folder / "data", SHAPE, 2))
    yield folder / "data", size
    shutil.rmtree(folder)


def muster(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    status = main.run(["telemetry", "replay", *map(str, arguments)], "muster")
    out, error = capsys.readouterr()
    return status, out, error


def test_counts_are_what_was_sent_to_the_server(made: tuple[Path, ReplaySize]) -> None:
    data, size = made
    found = read_folder(data)
    assert (found.counts.series, found.counts.samples) == (size.series, size.samples)
    assert (found.counts.label_bytes, found.counts.labels) == (size.label_bytes, size.labels)
    assert found.counts.label_pairs == size.label_pairs
    assert (found.damage, found.growing) == (None, False)


def test_folder_is_only_read(made: tuple[Path, ReplaySize], capsys: pytest.CaptureFixture[str]) -> None:
    data, _ = made
    before = {file: file.stat().st_mtime_ns for file in data.rglob("*")}
    status, out, error = muster(capsys, data, "--cores", "2")
    assert status == 0
    assert "4,000" in out
    assert "20,000" in out
    assert "factor of 2" in error
    assert {file: file.stat().st_mtime_ns for file in data.rglob("*")} == before


def test_prometheus_16942_peak_of_a_real_replay_above_a_limit_is_an_error(
    made: tuple[Path, ReplaySize], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """prometheus/prometheus 16942: the advisor warns of a limit that the real replay breaks."""
    data, _ = made
    found = asyncio.run(replay(prometheus.program(), tmp_path, data, 2))
    status, out, _ = muster(capsys, data, "--memory-limit", str(found.peak_bytes // 3))
    assert status == 1
    assert "crash loop" in out
    status, out, _ = muster(capsys, data, "--memory-limit", str(found.peak_bytes * 5))
    assert (status, "crash loop" in out) == (0, False)


def test_damage_is_where_the_server_cuts_the_log(made: tuple[Path, ReplaySize], tmp_path: Path) -> None:
    data, size = made
    broken = tmp_path / "data"
    shutil.copytree(data, broken)
    segment = broken / "wal" / "00000000"
    content = bytearray(segment.read_bytes())
    content[len(content) * 3 // 4] ^= 0xFF
    segment.write_bytes(content)
    found = read_folder(broken)
    assert found.damage is not None
    assert 0 < found.counts.samples < size.samples

    async def restarted() -> Folder:
        async with running(prometheus.program(), tmp_path, broken, 2, 60.0):
            return read_folder(broken)

    after = asyncio.run(restarted())
    assert after.damage is None
    assert after.counts.samples == found.counts.samples  # the server kept as much as we could read


def history_of(started_s: float, own: dict[str, str]) -> str:
    """What a server stored about itself in the 20 minutes before a restart: 2M series, 50k samples a second."""
    labels = ",".join(f'{name}="{value}"' for name, value in own.items())
    lines = []
    values: dict[str, Any] = {
        "prometheus_tsdb_head_series": lambda at: 2_000_000,
        "prometheus_tsdb_head_samples_appended_total": lambda at: 50_000 * (at - started_s + 7200),
        "prometheus_tsdb_head_min_time_seconds": lambda at: started_s - 60 - 7200,
        "prometheus_tsdb_head_max_time_seconds": lambda at: at,
    }
    for name, value in values.items():
        lines.append(f"# TYPE {name} unknown")
        times = [round(started_s) - 60 - 15 * each for each in range(80)]
        lines += [f"{name}{{{labels}}} {value(at)} {at}" for at in reversed(times)]
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def itself(tmp_path_factory: pytest.TempPathFactory) -> Iterator[prometheus.Prometheus]:
    """A server that scrapes itself, and has samples of itself from before it started."""
    folder, port = tmp_path_factory.mktemp("itself"), free_port()
    own = {"instance": f"127.0.0.1:{port}", "job": "self"}
    # A scrape may take as long as the interval: a busy machine needs time for it, and a failed one ends the series.
    prometheus.write_config(folder, {"self": [own["instance"]]}, 2.0)
    prometheus.add_history(folder, history_of(time.time(), own))
    options = ["--enable-feature=memory-snapshot-on-shutdown", "--storage.tsdb.min-block-duration=1h"]
    with prometheus.running(folder, options, {"GOMAXPROCS": "1"}, port) as server:
        recent = "sum(increase(prometheus_tsdb_head_samples_appended_total[10s])) > 0"
        eventually("a scrape of itself", lambda: server.get("/api/v1/query", query=recent)["result"])
        yield server


def test_log_of_a_running_server_is_read_with_its_settings(
    itself: prometheus.Prometheus, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, error = muster(capsys, itself.folder / "data", "--prometheus", itself.url, "-o", "json")
    head = itself.get("/api/v1/status/tsdb")["headStats"]
    series = int(head["numSeries"])
    assert (status, error) == (0, "")
    found = json.loads(out)
    state = found["server"]
    assert (state["snapshot"], state["gomaxprocs"], found["settings"]["cores"]) == (True, 1, 1)
    assert state["head_most_s"] == 5400
    clean, plain = found["clean_restarts"]["longest log"], found["predictions"]["longest log"]
    assert clean["time_s"] < plain["time_s"] / 2
    assert state["now"]["series"] == pytest.approx(series, abs=50)
    assert state["worst"]["samples"] > 10 * state["now"]["samples"]
    assert found["folder"]["log"]["series"] == pytest.approx(series, abs=50)
    assert state["now"]["label_pairs"] == pytest.approx(int(head["numLabelPairs"]), abs=100)
    assert "job" in state["own"]
    assert ["not known yet how many series" in each for each in state["notes"]] == [True]
    assert state["worst"]["series"] == state["now"]["series"]


def test_calibration_is_measured_written_and_used(
    made: tuple[Path, ReplaySize], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "calibration.json"
    options = ["--repeats", "1", "--binary", prometheus.program()]
    status, out, error = muster(capsys, made[0], "--calibrate", "--calibration", file, *options)
    assert status == 0, error
    assert "PEAK MEMORY" in out
    assert f"covers logs of up to {SHAPE.series:,} series" in error
    loaded = load_calibration(file)
    assert {run.size.series for run in loaded.runs} == {each.series for each in shapes(SHAPE.series)}
    assert all(run.peak_memory_bytes > 2**20 and run.time_s > 0 for run in loaded.runs)
    status, out, _ = muster(capsys, made[0], "--calibration", file, "-o", "json")
    found = json.loads(out)
    assert (status, found["trust"]) == (0, {"now": "calibrated"})
    expected = predict(
        ReplaySize(**found["sizes"]["now"]), found["settings"]["cores"], loaded.coefficients, "calibrated"
    )
    assert found["predictions"]["now"] == msgspec.to_builtins(expected)
    small = msgspec.structs.replace(loaded.covers, series_most=SHAPE.series // 4)
    save_calibration(file, msgspec.structs.replace(loaded, covers=small))
    status, out, error = muster(capsys, made[0], "--calibration", file)
    assert status == 0
    assert f"{SHAPE.series:,} series (measured up to {SHAPE.series // 4:,})" in " ".join(error.split())
    assert "extrapolated" in error


def test_calibration_without_a_usable_server_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "calibration.json"
    status, _, error = muster(capsys, "--calibrate", "--calibration", file, "--binary", "no-such-prometheus")
    assert (status, "no program" in error) == (2, True)
    status, _, error = muster(capsys, "--calibrate", "--calibration", file, "--binary", shutil.which("false") or "")
    assert status == 1
    assert "ended with status 1" in error
    assert not file.exists()


def test_calibration_that_is_ended_leaves_neither_a_server_nor_a_folder(tmp_path: Path) -> None:
    command = ["telemetry", "replay", "--calibrate", "--calibration", str(tmp_path / "file"), "--series", "5000"]
    code = f"import sys; from muster.cli.main import run; sys.exit(run({command!r}))"
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)})

    def logs() -> list[Path]:
        return list(tmp_path.glob("muster-replay-*/*/wal"))

    eventually("a server that writes", logs)
    process.terminate()
    assert process.wait(timeout=60) == 130
    assert not logs()
    assert not [each for each in running_commands() if str(tmp_path) in each]


def running_commands() -> list[str]:
    """The commands of all processes."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(file.read_text(errors="replace"))
    return found


async def test_server_that_is_not_ready_in_time_is_ended(tmp_path: Path) -> None:
    sleeper = tmp_path / "prometheus"
    sleeper.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeper.chmod(0o755)
    with pytest.raises(ServerError, match="not ready in time"):
        async with running(str(sleeper), tmp_path, tmp_path / "data", 1, 0.3):
            pass


async def test_last_restart_of_a_server_that_scrapes_itself_scales_the_times(itself: prometheus.Prometheus) -> None:
    async with PrometheusClient(itself.url) as client:
        state = await read_server(client)
        with pytest.raises(NoRestart, match="too short"):
            await calibrate_by_restart(client, state, 4, DEFAULT)
        slow = msgspec.structs.replace(state, last_replay_s=300.0)
        found = await calibrate_by_restart(client, slow, 4, DEFAULT)
        with pytest.raises(NoRestart, match="scrape itself"):
            await calibrate_by_restart(client, msgspec.structs.replace(slow, own=""), 4, DEFAULT)
    assert found.size.series == 2_000_000
    assert found.size.samples == pytest.approx(50_000 * 7200, rel=0.1)
    assert predict(found.size, 4, found.coefficients).time_s == pytest.approx(300)
    assert found.coefficients.series_bytes == DEFAULT.series_bytes


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "nothing to predict"),
        (["/nonexistent"], "does not exist"),
        (["FOLDER", "--memory-limit", "lots"], "not a quantity"),
        (["FOLDER", "--startup-limit", "soon"], "not a duration"),
        (["FOLDER", "--same-machine"], "--calibration"),
        (["FOLDER", "--binary", "x"], "--calibrate"),
        (["FOLDER", "--calibrate"], "--calibration"),
        (["FOLDER", "--calibrate", "--calibration", "/dev/null", "--series", "1000"], "leave one out"),
        (["FOLDER", "--calibrate", "--calibration", "/dev/null", "--prometheus", "http://x"], "leave one out"),
        (["--token-file", "x"], "--prometheus URL"),
        (["--prometheus", "nowhere"], "http://HOST:PORT"),
        (["--prometheus", "http://x", "--user", "me"], "--password-file"),
        (["FOLDER", "--cores", "nan"], "finite"),
        (["FOLDER", "--calibration", "/dev/null"], "not a calibration"),
    ],
)
def test_bad_input_says_what_to_change(
    made: tuple[Path, ReplaySize], capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    status, out, error = muster(capsys, *[str(made[0]) if each == "FOLDER" else each for each in arguments])
    assert (status, out) == (2, "")
    assert text in error
