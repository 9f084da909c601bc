"""A query that was found in an input, and notes about parts that could not be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from muster.telemetry.usage.query import Query

_NOTES_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Question:
    """A query of an input.

    Attributes:
        text: as the input has it.
        source: the file and the place in it, for people.
        query: the metrics that it reads.
    """

    text: str
    source: str
    query: Query


@dataclass
class Notes:
    """Files and parts of files that were not read as queries.

    Attributes:
        texts: the first of them, each with its file and the reason.
        left_out: number of the others.
    """

    texts: list[str] = field(default_factory=list)
    left_out: int = 0

    def add(self, text: str) -> None:
        """Add a note for the user."""
        if len(self.texts) < _NOTES_MAX:
            self.texts.append(text)
        else:
            self.left_out += 1
