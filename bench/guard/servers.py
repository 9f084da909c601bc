"""The releases of Prometheus that the bench finds, and their data: a log with many series that each start replays."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.guard import othershapes
from muster.controlplane.goprograms import NotBuiltError, find_built
from tests.support import manyseries
from tests.support.prometheus import Prometheus, running, write_config

ROUNDS = 13
SPACING_S = 120.0
"""Between samples: a series has 24 minutes of history, all in the head block."""
TARGETS = 20
OTHER_SERIES = 25_000
"""At least so many series have the other shapes."""
_INGEST_S_PER_MILLION = 600.0
_SETTLE_S = 120.0
_SETTLED_S = 3.0
_IDLE_CPU = 0.02


@dataclass(frozen=True)
class Release:
    """A release of Prometheus.

    Attributes:
        name: for figures, such as `v2_42`.
        folder: of its programs.
    """

    name: str
    folder: str

    @property
    def has_custom_buckets(self) -> bool:
        """Whether it can store classic histograms as native ones."""
        return not self.name.startswith("v2_")


@dataclass(frozen=True)
class Data:
    """What a server has stored.

    Attributes:
        folder: of the server.
        series: how many there are.
        begin_s: time of the first sample.
        end_s: time of the last sample.
    """

    folder: Path
    series: int
    begin_s: float
    end_s: float


def releases(folders: tuple[str, ...]) -> list[Release]:
    """The releases in these folders. Without folders: the system's, and that of PROMETHEUS_BIN or `make prometheus`."""
    found = list(folders)
    if not found:
        system = shutil.which("prometheus")
        found += [str(Path(system).parent)] if system else []
        found += [named] if (named := os.environ.get("PROMETHEUS_BIN")) else _newest()
    return [Release(_version(folder), folder) for folder in dict.fromkeys(found)]


def _newest() -> list[str]:
    try:
        return [str(find_built("prometheus", build=False))]
    except NotBuiltError:
        print("without the newest Prometheus: run 'make prometheus'", file=sys.stderr)
        return []


def _version(folder: str) -> str:
    command = [f"{folder}/prometheus", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    words = (said.stdout + said.stderr).split()
    version = words[words.index("version") + 1]
    return "v" + "_".join(version.split("+")[0].split(".")[:2]) if version[0].isdigit() else "newest"


@contextlib.contextmanager
def using(release: Release) -> Iterator[None]:
    """Let `tests.support.prometheus` use this release."""
    before = os.environ.get("PROMETHEUS_BIN")
    os.environ["PROMETHEUS_BIN"] = release.folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["PROMETHEUS_BIN"]
        else:
            os.environ["PROMETHEUS_BIN"] = before


def fill(folder: Path, series: int) -> Data:
    """Let a server scrape its series, end it, and leave its log. Raises TimeoutError if it does not get there."""
    history = _history()
    with manyseries.serving(series, TARGETS, history) as targets:
        return _filled(folder, series, targets, history)


def fill_other(folder: Path, native: bool) -> Data:
    """Let a server scrape the series of `othershapes`. Raises TimeoutError if it does not get there.

    Args:
        folder: of the server.
        native: store some histograms as native ones.
    """
    history = _history()
    half = len(history) // 2
    pages = [othershapes.lasting(), *([othershapes.histograms()] if native else [])]
    served = [
        *(manyseries.Target(each, history) for each in pages),
        manyseries.Target(othershapes.passing(0), history[:half]),
        manyseries.Target(othershapes.passing(1), history[half:]),
    ]
    more = {"global": {"scrape_interval": "1s", "convert_classic_histograms_to_nhcb": True}} if native else {}
    with manyseries.serving_targets(served) as targets:
        return _filled(folder, OTHER_SERIES, targets, history, more)


def _history() -> list[float]:
    end_s = float(int(time.time()))
    return [end_s - SPACING_S * (ROUNDS - 1 - number) for number in range(ROUNDS)]


def _filled(
    folder: Path,
    series: int,
    targets: Mapping[str, manyseries.Target],
    history: Sequence[float],
    more: Mapping[str, Any] | None = None,
) -> Data:
    deadline = time.monotonic() + 60.0 + _INGEST_S_PER_MILLION * series / 1e6
    write_config(folder, {"pods": list(targets)}, interval_s=max(1.0, 4.0 * series / 1e6), more=more)
    with running(folder) as server:
        while not all(each.exhausted for each in targets.values()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{folder}: {series} series were not scraped in time")
            time.sleep(0.2)
        count = server.get("/api/v1/status/tsdb")["headStats"]["numSeries"]
    if count < series:
        raise RuntimeError(f"the server has {count} of {series} series")
    write_config(folder, {})  # it scrapes nothing from here on, so that loads are compared and not scrapes
    return Data(folder, count, history[0], history[-1])


def copied(data: Data, folder: Path) -> Data:
    """A copy of the data for another release: the newest one's log can be read by all of them."""
    shutil.copytree(data.folder, folder)
    return replace(data, folder=folder)


def figures(server: Prometheus, *names: str) -> list[float]:
    """Read metrics without labels of the server itself. Raises RuntimeError if it does not export one."""
    found = dict(line.rsplit(" ", 1) for line in server.page().splitlines() if line.startswith(names))
    if missing := [name for name in names if name not in found]:
        raise RuntimeError(f"the server does not export {missing[0]}")
    return [float(found[name]) for name in names]


@contextlib.contextmanager
def started(data: Data) -> Iterator[Prometheus]:
    """Run a server on its data."""
    with running(data.folder) as server:
        yield server


def settle(server: Prometheus) -> None:
    """Wait until a server that has replayed its log works no more in the background, or for two minutes."""
    deadline, used_s = time.monotonic() + _SETTLE_S, server.cpu_s()
    while time.monotonic() < deadline:
        time.sleep(_SETTLED_S)
        before_s, used_s = used_s, server.cpu_s()
        if used_s - before_s < _IDLE_CPU * _SETTLED_S:
            return
    print(f"the server still works after {_SETTLE_S:g} s", file=sys.stderr)
