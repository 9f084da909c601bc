"""The samples of the bench: pseudo-random images with a label, in tar shards as webdataset writes them."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Iterator
from typing import NamedTuple

IMAGE_BYTES = 110 * 1024
"""An image of ImageNet has 110 KB on average."""
MIB = 1 << 20


class Size(NamedTuple):
    """How much data a run reads."""

    shards: int
    samples: int
    """Samples of each shard."""

    @property
    def total_bytes(self) -> int:
        """Of the images alone."""
        return self.shards * self.samples * IMAGE_BYTES


FULL = Size(shards=16, samples=300)
QUICK = Size(shards=4, samples=75)


def samples(shard: int, count: int) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield (name, image, label) of a shard, the same in every run."""
    source = random.Random(shard)
    for number in range(count):
        label = str(source.randrange(1000)).encode()
        yield f"{shard:05d}{number:06d}", source.randbytes(IMAGE_BYTES), label


def tar(shard: int, count: int) -> bytes:
    """A shard as a tar file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, image, label in samples(shard, count):
            for suffix, data in (("jpg", image), ("cls", label)):
                entry = tarfile.TarInfo(f"{name}.{suffix}")
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def key(shard: int) -> str:
    """The object's key below the data set's prefix."""
    return f"shard-{shard:05d}.tar"
