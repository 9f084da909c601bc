"""Measures replays of several sizes on this machine, and fits the coefficients of the model to them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp

from muster.telemetry.prometheus.page import parse_page
from muster.telemetry.replay.fit import Run
from muster.telemetry.replay.measuring.remotewrite import HEADERS, Labels, SyntheticSeries
from muster.telemetry.replay.measuring.server import Server, ServerError, running
from muster.telemetry.replay.model import CHUNK_SAMPLES, ReplaySize

DURATION_METRIC: Final = "prometheus_tsdb_data_replay_duration_seconds"
_START_S: Final = 300.0
_WRITE_S: Final = 60.0
_SAMPLED_SERIES: Final = 120_000
_SPACING_MS: Final = 15_000
_MAPPED_LEAST: Final = 1_000_000
_MAPPED_BYTES: Final = 1 << 16
_MAPPED_S: Final = 75.0
_POLL_S: Final = 0.5

Progress = Callable[[str], None]


class Shape(NamedTuple):
    """A log to make: series, samples of each, and how many labels each has."""

    series: int
    samples_each: int
    labels: Labels = "usual"


class Measured(NamedTuple):
    """Replays that were measured, and the version of the server (empty if its build has none)."""

    runs: tuple[Run, ...]
    version: str


def shapes(most_series: int) -> tuple[Shape, ...]:
    """Return logs that differ in series, in samples for each series, and in labels.

    Logs with different labels show what series, their labels, and values that a single series has cost; without them a
    fit cannot separate these. Two logs have both, many series with values of their own and several samples of each, as
    real ones do. Small logs are left out: the processor's caches hold them, so they say little about real ones. Logs
    with many samples of each series do not grow above `_SAMPLED_SERIES`, since writing them would take longest.
    """
    sampled = min(most_series, _SAMPLED_SERIES)
    return (
        Shape(most_series, 1),
        Shape(most_series // 3, 1, "long"),
        Shape(most_series // 4, 1, "many"),
        Shape(most_series // 2, 4, "own"),
        Shape(most_series * 2 // 3, 12),
        Shape(sampled * 2 // 5, 50, "own"),
        Shape(sampled // 20, 360),
    )


async def measure(
    binary: str, wanted: Sequence[Shape], cores: Sequence[int], repeats: int, progress: Progress = lambda text: None
) -> Measured:
    """Make a log of each shape and replay it with each number of cores. The temporary folder is removed at the end.

    Other programs of the machine make replays slower. So the time that the server's threads waited for a core is taken
    off, and the fastest of the `repeats` counts.

    Raises:
        ServerError: the server cannot be used.
        MissingExtra: a library is not installed.
    """
    runs: list[Run] = []
    version = ""
    with tempfile.TemporaryDirectory(prefix="muster-replay-") as temporary:
        folder = Path(temporary)
        for number, shape in enumerate(wanted, 1):
            stage = f"log {number} of {len(wanted)}, {shape.series:,} series and {shape.samples_each} samples of each"
            progress(f"writing {stage}")
            made = folder / f"log-{number}"
            writing = partial(_written, progress, stage)
            size, version = await make_log(binary, folder, made, shape, max(cores), writing)
            for each in cores:
                progress(f"replaying {stage}, GOMAXPROCS {each}")
                found = [await replay(binary, folder, made, each) for _ in range(repeats)]
                runs.append(
                    Run(size, each, min(item.undisturbed_s for item in found), max(item.peak_bytes for item in found))
                )
            shutil.rmtree(made)
    return Measured(tuple(runs), version)


def _written(progress: Progress, stage: str, share: float) -> None:
    progress(f"writing {stage}: {share:.0%}")


async def make_log(
    binary: str,
    folder: Path,
    data: Path,
    shape: Shape,
    cores: int,
    progress: Callable[[float], None] = lambda share: None,
) -> tuple[ReplaySize, str]:
    """Have a server write a log into `data`, and kill it. Returns the size of the log and the server's version.

    `progress` receives the share of the samples that is written.
    """
    start_ms = int(time.time() * 1000) - shape.samples_each * _SPACING_MS
    async with running(binary, folder, data, cores, _START_S) as server:
        version = (await server.client.buildinfo()).version
        series = SyntheticSeries(shape.series, shape.labels)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_WRITE_S)) as session:
            for step in range(shape.samples_each):
                for body in series.requests(step, start_ms + step * _SPACING_MS):
                    await _write(session, f"{server.client.url}/api/v1/write", body)
                progress((step + 1) / shape.samples_each)
        if shape.samples_each > 2 * CHUNK_SAMPLES and shape.series * shape.samples_each >= _MAPPED_LEAST:
            await _mapped(data)
    stored = sum(file.stat().st_size for file in (data / "wal").rglob("*") if file.is_file())
    samples = shape.series * shape.samples_each
    size = ReplaySize(shape.series, samples, series.label_bytes, stored, series.labels, series.label_pairs)
    return size, version


async def _mapped(data: Path) -> None:
    """Wait until closed chunks are on disk; Prometheus 2.46 and later write them once a minute."""
    deadline = time.monotonic() + _MAPPED_S
    while time.monotonic() < deadline:
        if any(file.stat().st_size > _MAPPED_BYTES for file in (data / "chunks_head").glob("*")):
            return
        await asyncio.sleep(_POLL_S)


class Replayed(NamedTuple):
    """A replay.

    Attributes:
        time_s: of the replay, by the server.
        ready_s: until the server was ready.
        peak_bytes: peak of its resident memory.
        running_share: see `running_share`.
    """

    time_s: float
    ready_s: float
    peak_bytes: int
    running_share: float

    @property
    def undisturbed_s(self) -> float:
        """Estimate of the time on a machine without other programs."""
        return self.time_s * self.running_share


async def replay(binary: str, folder: Path, made: Path, cores: int) -> Replayed:
    """Start a server on a copy of a log, since a server changes what it reads."""
    copy = folder / "copy"
    shutil.copytree(made, copy)
    try:
        started = time.monotonic()
        async with running(binary, folder, copy, cores, _START_S) as server:
            ready_s = time.monotonic() - started
            share, peak_bytes = server.running_share(), server.peak_memory_bytes()
            return Replayed(await _replay_s(server), ready_s, peak_bytes, share)
    finally:
        shutil.rmtree(copy)


async def _replay_s(server: Server) -> float:
    page = parse_page(await server.client.page("/metrics"))
    found = page.value(DURATION_METRIC)
    if found is None:
        raise ServerError(f"the server does not export {DURATION_METRIC}: use Prometheus 2.24 or later")
    return found


async def _write(session: aiohttp.ClientSession, url: str, body: bytes) -> None:
    try:
        async with session.post(url, data=body, headers=HEADERS) as answer:
            if answer.status // 100 != 2:
                text = (await answer.content.read(300)).decode(errors="replace")
                raise ServerError(f"the server refused samples with status {answer.status}: {text}")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ServerError(f"the server did not take samples: {str(error) or type(error).__name__}") from error
