"""A finished checkpoint, as programs see it."""

from __future__ import annotations

from typing import NamedTuple


class Checkpoint(NamedTuple):
    """A finished checkpoint: the file, folder or URL, and its step."""

    path: str
    step: int
