"""The file with a calibration: coefficients, and the replays from which they come."""

from __future__ import annotations

import contextlib
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from muster.kube.durablefile import write_durably
from muster.telemetry.replay.coverage import Coverage, coverage_of
from muster.telemetry.replay.fit import Run
from muster.telemetry.replay.model import Coefficients

_FILE_BYTES_MAX: Final = 1 << 20


class BadCalibration(Exception):
    """The file cannot be used. The message says what to change."""


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A calibration.

    Attributes:
        kind: of the file.
        origin: `measured`: replays of synthetic logs on `machine`. `restart`: the last restart of `server`.
        machine: processor and architecture, as `this_machine` returns them; empty for a restart.
        server: address; empty if replays were measured.
        version: of Prometheus; empty if its build has none.
        made_at: date and time, RFC 3339.
        coefficients: of the model.
        runs: the replays that were measured.
        covers: sizes for which the coefficients hold; a prediction of another size is an extrapolation.
    """

    kind: Literal["muster-replay-calibration"]
    origin: Literal["measured", "restart"]
    machine: str
    server: str
    version: str
    made_at: str
    coefficients: Coefficients
    runs: tuple[Run, ...]
    covers: Coverage


def load_calibration(file: Path) -> Calibration:
    """Read a calibration. Raises BadCalibration."""
    try:
        with file.open("rb") as opened:
            content = opened.read(_FILE_BYTES_MAX)
        calibration = msgspec.json.decode(content, type=Calibration)
    except OSError as error:
        raise BadCalibration(f"{file}: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadCalibration(
            f"{file} is not a calibration: {error}: make it again with `muster telemetry replay --calibrate`"
        ) from error
    for name in Coefficients.__struct_fields__:
        if not 0 <= getattr(calibration.coefficients, name) < float("inf"):
            raise BadCalibration(f"{file}: {name} is not a positive number: make the calibration again")
    return calibration


def save_calibration(file: Path, calibration: Calibration) -> None:
    """Write a calibration. Raises BadCalibration."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(file, msgspec.json.format(msgspec.json.encode(calibration)) + b"\n")
    except OSError as error:
        raise BadCalibration(f"{file}: {error.strerror or error}") from error


def this_machine() -> str:
    """Return architecture and processor of this machine. Machines with equal ones replay at about the same speed."""
    processor = platform.processor()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    return f"{platform.machine()} {processor}".strip()


def made_now(
    origin: Literal["measured", "restart"],
    coefficients: Coefficients,
    runs: tuple[Run, ...] = (),
    *,
    version: str,
    server: str = "",
) -> Calibration:
    """Return a calibration with the date of now, and of this machine if replays were measured on it."""
    machine = this_machine() if origin == "measured" else ""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    covers = coverage_of([run.size for run in runs])
    return Calibration("muster-replay-calibration", origin, machine, server, version, at, coefficients, runs, covers)
