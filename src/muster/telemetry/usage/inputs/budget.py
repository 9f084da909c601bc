"""Bounds the parts of a document: references of YAML can stand for very many."""

from __future__ import annotations

from typing import Final

PARTS_MAX: Final = 1_000_000


class Budget:
    """Counts the parts of a document that are visited.

    Args:
        most: parts.
    """

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def spend(self) -> None:
        """Count a part. Raises ValueError if there are too many."""
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"it has more than {self._most} parts")
