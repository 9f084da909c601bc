"""What the agent changed on this node, on disk: the former values survive restarts of the agent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from muster.kube.durablefile import write_durably


class Entry(msgspec.Struct, frozen=True):
    """One setting that the agent changed.

    Attributes:
        former: value before the agent's first change: what is restored.
        value: what the agent wrote, or what the kernel made of it.
        wanted: value of the configuration at that time.
        before: value of the kernel before this write.
        applied: whether the kernel has taken it. It is false from before the write until after it.
    """

    former: int
    value: int
    wanted: int
    before: int
    applied: bool = False


class Record(msgspec.Struct, frozen=True):
    """All settings that the agent changed in one boot. A reboot undoes them."""

    boot: str = ""
    entries: Mapping[str, Entry] = {}


class RecordError(OSError):
    """The record cannot be read, so it is not known what to restore."""


def read_record(path: Path) -> Record:
    """Read the record; an empty one without a file.

    Raises:
        RecordError: it is damaged.
        OSError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except FileNotFoundError:
        return Record()
    except msgspec.DecodeError as error:
        raise RecordError(
            f"{path}, which holds the former values, is damaged ({error}); set the values by hand and remove the file"
        ) from error


def write_record(path: Path, record: Record) -> None:
    """Replace the record durably. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, msgspec.json.encode(record))
