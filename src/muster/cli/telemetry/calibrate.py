"""Writes the calibration of `muster telemetry replay`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from muster.cli.doctor.page import amount
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.output import note, print_data, print_table
from muster.cli.telemetry.logfolder import in_percent, read_log
from muster.cli.telemetry.running import cores_here, run, stages
from muster.cli.telemetry.server_options import ServerOptions

if TYPE_CHECKING:
    from muster.telemetry.replay.calibration import Calibration


SERIES_LEAST: Final = 1_000
SERIES_MOST: Final = 2_000_000
_SERIES: Final = 120_000


class Work(NamedTuple):
    """What is measured.

    Attributes:
        binary: program of Prometheus; empty for the one of the system.
        series: of the largest log; None for those of `like`, or a default.
        like: folder of a database, near whose size the logs shall be.
        repeats: of each replay.
    """

    binary: str
    series: int | None
    like: Path | None
    repeats: int


def calibrate_into(file: Path, server: ServerOptions, work: Work, cores: float | None, output: str) -> int:
    """Write a calibration. Raises CliError."""
    from muster.telemetry.replay.calibration import BadCalibration, save_calibration
    from muster.telemetry.replay.measuring.server import ServerError
    from muster.telemetry.replay.restart import NoRestart
    from muster.telemetry.replay.wal.compression import MissingExtra

    if server.url and work.binary:
        raise BadInput("--prometheus uses the last restart of a server, and --binary measures", "give only one of them")
    if server.url and work.like:
        raise BadInput("--prometheus uses the last restart of a server, and FOLDER is for measuring", "leave one out")
    if work.like and work.series:
        raise BadInput("FOLDER and --series both say how many series are measured", "leave one out")
    try:
        series = 0 if server.url else _series(work, output)
        with stages("calibrating", output) as stage:
            made = run(_restart(server, cores) if server.url else _measure(work, series, stage))
        save_calibration(file, made)
    except (ServerError, NoRestart, MissingExtra) as error:
        raise CliError(str(error)) from error
    except BadCalibration as error:
        raise BadInput(str(error)) from error
    if output:
        from msgspec import to_builtins

        print_data(to_builtins(made), output)
    else:
        _print_calibration(made)
        covers = made.covers
        note(
            f"covers logs of up to {covers.series_most:,} series and {covers.samples_most:,} samples; a prediction for "
            "more than twice as many is an extrapolation"
        )
        note(f"written to {file}; later predictions use it with --calibration {file}")
    return ExitCode.DONE


def _series(work: Work, output: str) -> int:
    """Return the series of the largest log, and note it if this machine has no room for the wanted ones."""
    from muster.telemetry.replay.measuring.room import series_that_fit

    wanted = work.series or _SERIES
    if work.like:
        with stages(f"reading {work.like}", output) as stage:
            wanted = max(read_log(work.like, in_percent(stage)).counts.series, SERIES_LEAST)
    room = series_that_fit(Path(tempfile.gettempdir()))
    if room < SERIES_LEAST:
        raise CliError("this machine has too little free memory or disk to calibrate: free some, or use another one")
    used = min(wanted, room, SERIES_MOST)
    if used < wanted:
        why = "a calibration has at most so many" if used == SERIES_MOST else "memory and disk are enough for these"
        note(f"the largest log has {used:,} series instead of {wanted:,}: {why}")
    return used


async def _measure(work: Work, series: int, stage: Callable[[str], None]) -> Calibration:
    from muster.telemetry.replay.calibration import made_now
    from muster.telemetry.replay.fit import fit
    from muster.telemetry.replay.measuring.calibrate import measure, shapes

    program = work.binary or "prometheus"
    path = shutil.which(program)
    if path is None:
        raise BadInput(f"this machine has no program {program}", "name the same version as your server's with --binary")
    cores = sorted({1, cores_here()})
    measured = await measure(path, shapes(series), cores, work.repeats, stage)
    return made_now("measured", fit(measured.runs), measured.runs, version=measured.version)


async def _restart(server: ServerOptions, cores: float | None) -> Calibration:
    from muster.telemetry.replay.calibration import made_now
    from muster.telemetry.replay.defaults import DEFAULT
    from muster.telemetry.replay.fit import Run
    from muster.telemetry.replay.restart import calibrate_by_restart
    from muster.telemetry.replay.serversize import read_server

    async with server.client() as client:
        state = await read_server(client)
        used = cores or state.gomaxprocs or 1
        found = await calibrate_by_restart(client, state, used, DEFAULT)
    runs = (Run(found.size, used, found.time_s, 0.0),)
    return made_now("restart", found.coefficients, runs, version=state.version, server=state.url)


def _print_calibration(made: Calibration) -> None:
    from muster.telemetry.replay.model import predict

    rows = []
    for each in made.runs:
        fitted = predict(each.size, each.cores, made.coefficients)
        memory = amount(each.peak_memory_bytes, "bytes") if each.peak_memory_bytes else "-"
        rows.append(
            [
                f"{each.size.series:,}",
                f"{each.size.samples:,}",
                f"{each.cores:g}",
                f"{each.time_s:.2f} s",
                f"{fitted.time_s:.2f} s",
                memory,
                amount(fitted.peak_memory_bytes, "bytes") if each.peak_memory_bytes else "-",
            ]
        )
    print_table(["SERIES", "SAMPLES", "CORES", "REPLAY", "MODEL", "PEAK MEMORY", "MODEL"], rows)
