"""Plain files: each object is one sample."""

from __future__ import annotations

from typing import Iterator

from muster.sdk.data.formats.base import Format, Piece, Read
from muster.sdk.data.formats.names import split


class PlainFormat(Format):
    """Each object is one sample with one field, named after its extension ("" without one)."""

    name = "plain"
    scans = False

    def accepts(self, key: str) -> bool:
        """Every object is a sample."""
        return True

    def pieces(self, read: Read, size_bytes: int) -> Iterator[Piece]:
        """One sample: the whole object."""
        yield Piece(0, size_bytes, True)

    def parse(self, key: str, data: memoryview) -> tuple[str, dict[str, bytes]]:
        """Name and field from the object's key."""
        name, extension = split(key)
        return name, {extension: bytes(data)}
