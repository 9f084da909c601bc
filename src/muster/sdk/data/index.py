"""The index of a data set: its shards, their versions, and the number of samples in each.

It is stored as one compressed JSON object. The places of samples in shards are in other objects ("units"), each for a
few shards, which readers fetch when they come to the shard. The digest of the index covers the digests of these parts,
and no ETags: a data set that is restored or copied byte for byte keeps its digest.
"""

from __future__ import annotations

import gzip
import json
from hashlib import sha256
from typing import NamedTuple, Sequence

from muster.sdk.data.order import window_samples

VERSION = 2
FOLDER = ".muster-index/"
NAME = FOLDER + "index.json.gz"


class Shard(NamedTuple):
    """One object of the data set.

    Attributes:
        key: relative to the data set's URL.
        size_bytes: its length.
        etag: its version when it was indexed.
    """

    key: str
    size_bytes: int
    etag: str


class SpansAt(NamedTuple):
    """Where the spans of a shard are stored: object, bytes, and `Spans.digest`."""

    unit: str
    start: int
    length: int
    digest: str


class Index:
    """The shards of a data set.

    Attributes:
        format: name of the format.
        counts: number of samples of each shard.
        broken: reasons by key of the shards that could not be indexed, and count 0 samples.
        spans: where the spans of each shard are; empty if each shard is one sample.
        digest: SHA-256 of what the data set contains: format, keys, sizes, counts, spans with checksums, and keys of
            broken shards. Without spans, checksums are not known.
    """

    def __init__(
        self,
        format: str,
        shards: Sequence[Shard],
        counts: Sequence[int],
        spans: Sequence[SpansAt] = (),
        broken: dict[str, str] | None = None,
    ) -> None:
        self.format = format
        self.counts = counts
        self.spans = spans
        self.broken = broken or {}
        # columns take a fifth of the memory of a list of shards
        self._keys = [shard.key for shard in shards]
        self._sizes = [shard.size_bytes for shard in shards]
        self._etags = [shard.etag for shard in shards]
        self.digest = sha256(self._contents()).hexdigest()

    def __len__(self) -> int:
        return len(self._keys)

    def shard(self, number: int) -> Shard:
        """The shard with this number."""
        return Shard(self._keys[number], self._sizes[number], self._etags[number])

    def windows(self) -> list[int]:
        """Number of samples in each window of each shard, for `Order`."""
        return [window_samples(size, count) for size, count in zip(self._sizes, self.counts)]

    def encode(self) -> bytes:
        """Compressed JSON, for `decode`."""
        return gzip.compress(self._json(), 6, mtime=0)

    def _contents(self) -> bytes:
        spans = [at.digest for at in self.spans]
        fields = [VERSION, self.format, self._keys, self._sizes, list(self.counts), spans, sorted(self.broken)]
        return json.dumps(fields, separators=(",", ":")).encode()

    def _json(self) -> bytes:
        fields = {
            "version": VERSION,
            "format": self.format,
            "keys": self._keys,
            "sizes": self._sizes,
            "etags": self._etags,
            "counts": list(self.counts),
            "spans": [list(at) for at in self.spans],
            "broken": self.broken,
        }
        return json.dumps(fields, separators=(",", ":")).encode()


def decode(data: bytes) -> Index:
    """Read an index. Raises ValueError if it is damaged, or of another version."""
    try:
        fields = json.loads(gzip.decompress(data))
        if fields["version"] != VERSION:
            raise ValueError(f"it has version {fields['version']}, and this Muster reads version {VERSION}")
        shards = [Shard(*row) for row in zip(fields["keys"], fields["sizes"], fields["etags"])]
        spans = [SpansAt(*row) for row in fields["spans"]]
        index = Index(fields["format"], shards, fields["counts"], spans, fields["broken"])
    except (OSError, EOFError, KeyError, TypeError) as error:
        raise ValueError(f"it is damaged ({error})") from None
    if len(index.counts) != len(index):
        raise ValueError("it is damaged (columns of different lengths)")
    return index
