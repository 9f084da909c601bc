"""The interface of a shard format."""

from __future__ import annotations

from typing import Iterator, NamedTuple, Protocol


class Read(Protocol):
    """Reads at most `length` bytes of a shard from `start`; fewer only at its end."""

    def __call__(self, start: int, length: int) -> bytes:
        """Read the bytes."""
        ...


class Piece(NamedTuple):
    """A contiguous part of a sample.

    Attributes:
        start: first byte in the shard.
        end: byte after the last one.
        first: True if a new sample begins here.
    """

    start: int
    end: int
    first: bool


class Format:
    """How samples are stored in a shard. All bytes of a sample are contiguous.

    Attributes:
        name: stored in the index.
        scans: whether the shards must be read to find the samples. If False, every shard is one sample.
    """

    name: str
    scans: bool

    def accepts(self, key: str) -> bool:
        """Return whether an object with this key is a shard."""
        raise NotImplementedError

    def pieces(self, read: Read, size_bytes: int) -> Iterator[Piece]:
        """Find the samples of a shard in order. Raises ValueError, with the reason, if the shard is damaged."""
        raise NotImplementedError

    def parse(self, key: str, data: memoryview) -> tuple[str, dict[str, bytes]]:
        """Return the name of the sample with these bytes, and copies of its fields. Raises ValueError."""
        raise NotImplementedError
