"""Real replays of a log beside what the replay advisor predicts after a calibration here."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import NamedTuple

from bench.guard.servers import Data, Release, figures
from muster.telemetry.replay.fit import fit
from muster.telemetry.replay.measuring.calibrate import DURATION_METRIC, measure, shapes
from muster.telemetry.replay.measuring.server import running_share
from muster.telemetry.replay.model import Prediction, predict, size_of
from muster.telemetry.replay.wal.folder import read_folder
from tests.support.prometheus import Prometheus

_REPEATS = 2


class Replayed(NamedTuple):
    """A real replay.

    Attributes:
        time_s: as the server reports it.
        undisturbed_s: without the time in which its threads waited for a core; predictions are of this.
        peak_bytes: of resident memory until the server was ready.
    """

    time_s: float
    undisturbed_s: float
    peak_bytes: int


def replayed(server: Prometheus) -> Replayed:
    """The replay of a server that is just ready."""
    share, peak_bytes = running_share(server.process.pid), server.rss_bytes(peak=True)
    [time_s] = figures(server, DURATION_METRIC)
    return Replayed(time_s, time_s * share, peak_bytes)


def predicted(release: Release, data: Data) -> Prediction:
    """Read the log, calibrate with logs of other shapes that have up to as many series, and predict."""
    cores = len(os.sched_getaffinity(0))
    size = size_of(read_folder(data.folder / "data").counts)
    binary = str(Path(release.folder) / "prometheus")
    wanted = shapes(size.series)
    measured = asyncio.run(measure(binary, wanted, [cores], _REPEATS, lambda text: print(text, file=sys.stderr)))
    return predict(size, cores, fit(measured.runs), "calibrated")
