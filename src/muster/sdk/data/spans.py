"""Where the samples of a shard are, compactly: about 7 bytes a sample."""

from __future__ import annotations

import sys
import zlib
from array import array
from hashlib import sha256
from itertools import accumulate
from typing import Callable, Sequence

from muster.sdk.data.broken import BrokenShard


class Spans:
    """Byte range and checksum of each sample of one shard.

    Attributes:
        starts: first byte of each sample.
        ends: the byte after its last one.
        checksums: CRC-32 of these bytes; empty if they are not known.
    """

    def __init__(self, starts: Sequence[int], ends: Sequence[int], checksums: Sequence[int]) -> None:
        self.starts = starts
        self.ends = ends
        self.checksums = checksums

    def encode(self) -> bytes:
        """Compressed bytes, for `decode`."""
        return zlib.compress(self._raw(), 6)

    def digest(self) -> str:
        """The first 16 digits of the SHA-256 of these numbers. It does not depend on the compression."""
        return sha256(self._raw()).hexdigest()[:16]

    def _raw(self) -> bytes:
        gaps = array("Q", (start - end for start, end in zip(self.starts, [0, *self.ends])))
        sizes = array("Q", (end - start for start, end in zip(self.starts, self.ends)))
        checksums = array("I", self.checksums)
        return b"".join(_little_endian(each) for each in (gaps, sizes, checksums))


def decode(data: bytes, samples: int) -> Spans:
    """Read the spans of a shard with this number of samples. Raises ValueError if the bytes do not hold them."""
    try:
        raw = zlib.decompress(data)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(raw) != 20 * samples:
        raise ValueError(f"{len(raw)} bytes for {samples} samples")
    gaps, sizes, checksums = array("Q"), array("Q"), array("I")
    gaps.frombytes(raw[: 8 * samples])
    sizes.frombytes(raw[8 * samples : 16 * samples])
    checksums.frombytes(raw[16 * samples :])
    for each in (gaps, sizes, checksums):
        if sys.byteorder == "big":
            each.byteswap()
    ends = array("Q", accumulate(gap + size for gap, size in zip(gaps, sizes)))
    return Spans(array("Q", (end - size for end, size in zip(ends, sizes))), ends, checksums)


def whole(size_bytes: int) -> Spans:
    """The spans of a shard that is one sample."""
    return Spans([0], [size_bytes], [])


def check(data: memoryview, spans: Spans, sample: int, key: str, url: str, name: Callable[[memoryview], str]) -> None:
    """Check a sample's bytes. Raises BrokenShard if they differ from those that were indexed.

    Args:
        data: the bytes.
        spans: of the shard.
        sample: its number in the shard.
        key: of the shard.
        url: of the store.
        name: reads the sample's key from damaged bytes, for the message.
    """
    if len(data) != spans.ends[sample] - spans.starts[sample]:
        raise BrokenShard(f"{url}/{key}: truncated in sample {sample}: {len(data)} bytes came", url, key)
    if spans.checksums and zlib.crc32(data) != spans.checksums[sample]:
        message = f"{url}/{key}: sample {sample}{name(data)} has a wrong checksum: its bytes are damaged"
        raise BrokenShard(message, url, key)


def _little_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
