"""Reads small files of the kernel, which may be missing, invalid or fail with I/O errors."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from muster.kube.counters import NUMBER_MAX

_BYTES: Final = 4096


def text_of(path: Path, size_bytes: int = _BYTES) -> str | None:
    """Return the beginning of a file without surrounding blanks; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(size_bytes).decode(errors="replace").strip()
    except (OSError, ValueError):  # sysfs gives EIO and EINVAL if the device does not answer
        return None


def number_of(path: Path) -> int | None:
    """Return the number in a file; None if it is missing, negative or larger than 64 bits."""
    text = text_of(path)
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 20:
        return None
    value = int(text)
    return value if value <= NUMBER_MAX else None


def names_in(path: Path) -> list[str]:
    """Return the names in a folder, sorted; empty if the folder does not exist."""
    try:
        return sorted(each.name for each in path.iterdir())
    except OSError:
        return []
