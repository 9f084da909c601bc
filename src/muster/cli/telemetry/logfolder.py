"""Reads the folder of a database for commands, with errors that say what to change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from muster.cli.errors import BadInput, CliError

if TYPE_CHECKING:
    from muster.telemetry.replay.wal.folder import Folder


def in_percent(stage: Callable[[str], None]) -> Callable[[int, int], None]:
    """Return a report of progress that shows bytes as a percentage."""
    return lambda done, total: stage(f"{100 * done // max(total, 1)}%")


def read_log(folder: Path, progress: Callable[[int, int], None]) -> Folder:
    """Read what a database replays; see `read_folder`. Raises CliError."""
    from muster.telemetry.replay.wal.compression import MissingExtra
    from muster.telemetry.replay.wal.folder import FolderError, read_folder

    try:
        return read_folder(folder, progress)
    except FolderError as error:
        raise BadInput(str(error)) from error
    except MissingExtra as error:
        raise CliError(str(error)) from error
