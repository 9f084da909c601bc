"""The position of a stream, as a small text that is stored with a checkpoint."""

from __future__ import annotations

import json
from typing import NamedTuple

from muster.sdk.data.broken import BadCursor

VERSION = 1


class Cursor(NamedTuple):
    """The samples that all ranks together have received. The numbers of nodes and ranks have no part in it.

    Attributes:
        digest: of the data set's index.
        seed: seed of the order.
        batch: number of samples in a global batch.
        lanes: number of lanes of the order; 0 without shuffling.
        epoch: epoch of the next sample.
        position: number of samples received, over all epochs.
    """

    digest: str
    seed: int
    batch: int
    lanes: int
    epoch: int
    position: int

    def text(self) -> str:
        """One line of JSON."""
        return json.dumps({"version": VERSION, **self._asdict()}, separators=(",", ":"))


def parse(text: str) -> Cursor:
    """Read a cursor. Raises BadCursor if it is not one, or of a later version."""
    try:
        fields = json.loads(text)
        version = fields["version"]
        if version == VERSION:
            numbers = [int(fields[name]) for name in Cursor._fields[1:]]
            return Cursor(str(fields["digest"]), *numbers)
    except (TypeError, KeyError, ValueError):
        raise BadCursor(f"this is not the cursor of a stream: {text[:80]!r}") from None
    raise BadCursor(
        f"the cursor has version {version}, and this Muster reads version {VERSION}: update Muster in the image"
    )


def check(cursor: Cursor, expected: Cursor, samples: int) -> None:
    """Check that a cursor fits a stream. Raises BadCursor, which says what to change."""
    for name in ("seed", "batch", "lanes"):
        got, want = getattr(cursor, name), getattr(expected, name)
        if got != want:
            raise BadCursor(
                f"the cursor was saved with {_ARGUMENTS[name]} {got}, and the stream has {want}: "
                f"use {got}, or start without a cursor"
            )
    if cursor.position < 0 or cursor.position // samples != cursor.epoch:
        raise BadCursor(f"position {cursor.position} of the cursor is not in epoch {cursor.epoch}")


_ARGUMENTS = {"seed": "seed", "batch": "global_batch", "lanes": "lanes (0 without shuffle)"}
