"""Reads, checks and decodes the samples of an indexed data set."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Callable

from muster.sdk.data import spans as span
from muster.sdk.data.broken import BrokenShard, DecodeFailed
from muster.sdk.data.errors import NotFound, ObjectChanged, StoreError
from muster.sdk.data.formats.base import Format
from muster.sdk.data.index import NAME, Index, Shard
from muster.sdk.data.order import Place
from muster.sdk.data.readahead import Library
from muster.sdk.data.sample import Sample
from muster.sdk.data.shards import ShardFile, ShardSource, StoreSource
from muster.sdk.data.skipped import SkippedSamples
from muster.sdk.data.spans import Spans
from muster.sdk.data.store import Store


class IndexedShards(Library):
    """The samples of a data set.

    A shard whose ETag differs from the index may have been restored or copied. It is opened under its present ETag, and
    the checksum of each sample decides whether it is the shard that was indexed.

    Args:
        index: of the data set.
        place: where the index is stored.
        format: of the shards.
        source: where shards are read.
        bucket: where they are read again if their bytes are damaged.
        skipped: samples that are skipped.
        decode: maps a Sample to what the program receives.
        keep: number of shards whose spans and files are kept.
    """

    def __init__(
        self,
        index: Index,
        place: Store,
        format: Format,
        source: ShardSource,
        bucket: StoreSource,
        skipped: SkippedSamples,
        decode: Callable[[Sample], object] | None,
        keep: int,
    ) -> None:
        self._index = index
        self._place = place
        self._format = format
        self._source = source
        self._bucket = bucket
        self._skipped = skipped
        self._decode = decode
        self._keep = keep
        self._lock = threading.Lock()
        self._spans: OrderedDict[int, Spans] = OrderedDict()
        self._files: OrderedDict[int, ShardFile] = OrderedDict()
        self._present: dict[int, Shard] = {}
        """Shards that have another ETag than in the index."""

    def known_spans(self, shard: int) -> Spans | None:
        """The spans that were read before, or need not be read."""
        if not self._index.spans:
            return span.whole(self._index.shard(shard).size_bytes)
        with self._lock:
            return self._spans.get(shard)

    def spans(self, shard: int) -> Spans:
        """Read the spans from the index. Raises StoreError."""
        at = self._index.spans[shard]
        try:
            data = self._place.read(at.unit, at.start, at.length)
            spans = span.decode(data, self._index.counts[shard])
            if spans.digest() != at.digest:
                raise ValueError("wrong checksum")
        except (NotFound, ValueError) as error:
            key = self._index.shard(shard).key
            message = (
                f"{key}: its part of the index, {self._place.url}/{at.unit}, is missing or damaged ({error}): delete "
                f"it and {NAME}; the next run builds them again"
            )
            raise StoreError(message, self._place.url, at.unit) from None
        with self._lock:
            self._spans[shard] = spans
            if len(self._spans) > self._keep:
                self._spans.popitem(last=False)
        return spans

    def pread(self, shard: int, start: int, length: int) -> bytes:
        """Read a range of a shard. Raises ObjectChanged if it is certainly not the one that was indexed."""
        try:
            return self._file(shard).pread(start, length)
        except ObjectChanged:
            self._find(shard)
        try:
            return self._file(shard).pread(start, length)
        except ObjectChanged:
            raise self._changed(shard, "it is being changed now") from None

    def sample(self, place: Place, spans: Spans, data: memoryview, position: int) -> object:
        """Check, parse and decode a sample. Raises BrokenShard, ObjectChanged, DecodeFailed."""
        shard = self._index.shard(place.shard)
        try:
            self._check(shard.key, spans, place.sample, data)
        except BrokenShard:  # perhaps only this copy is damaged
            data = self._read_again(place, spans)
        try:
            key, fields = self._format.parse(shard.key, data)
        except ValueError as error:
            raise BrokenShard(f"{self._bucket.url}/{shard.key}: {error}", self._bucket.url, shard.key) from None
        sample = Sample(key, fields, shard.key, position)
        if self._decode is None:
            return sample
        try:
            return self._decode(sample)
        except Exception as error:
            raise DecodeFailed(f"cannot decode sample {key} of {shard.key}: {error!r}") from error

    def read(self, place: Place, position: int) -> object:
        """Read one sample now. Raises StoreError."""
        spans = self.known_spans(place.shard) or self.spans(place.shard)
        start, end = spans.starts[place.sample], spans.ends[place.sample]
        data = memoryview(self.pread(place.shard, start, end - start))
        return self.sample(place, spans, data, position)

    def skips(self, place: Place) -> bool:
        """Return whether this sample is skipped."""
        return bool(self._skipped) and self._skipped.has(place.epoch, self._index.shard(place.shard).key, place.sample)

    def close(self) -> None:
        """Close all shards, after the threads have ended."""
        with self._lock:
            files, self._files = list(self._files.values()), OrderedDict()
        for file in files:
            file.close()
        self._source.close()

    def _file(self, shard: int) -> ShardFile:
        with self._lock:
            file = self._files.get(shard)
        if file is None:
            file = self._source.open(self._shard(shard))
            with self._lock:
                self._files[shard] = file
                if len(self._files) > self._keep:
                    self._files.popitem(last=False)  # it closes itself when no thread reads it
        return file

    def _shard(self, number: int) -> Shard:
        with self._lock:
            return self._present.get(number) or self._index.shard(number)

    def _find(self, number: int) -> None:
        """Open a shard that has another ETag under the present one from now on. Raises ObjectChanged."""
        indexed = self._index.shard(number)
        present = self._bucket.present(indexed.key)
        if present.size_bytes != indexed.size_bytes:
            raise self._changed(number, f"it has {present.size_bytes} bytes instead of {indexed.size_bytes}")
        if not self._index.spans:
            raise self._changed(number, "its ETag differs, and the index has no checksums of this format")
        with self._lock:
            self._present[number] = present
            self._files.pop(number, None)

    def _read_again(self, place: Place, spans: Spans) -> memoryview:
        """Read a sample from the bucket, and check it. Raises BrokenShard, ObjectChanged."""
        start, end = spans.starts[place.sample], spans.ends[place.sample]
        try:
            data = self._bucket.open(self._shard(place.shard)).pread(start, end - start)
        except ObjectChanged:
            self._find(place.shard)
            data = self._bucket.open(self._shard(place.shard)).pread(start, end - start)
        view = memoryview(data)
        try:
            self._check(self._index.shard(place.shard).key, spans, place.sample, view)
        except BrokenShard:
            if self._shard(place.shard) != self._index.shard(place.shard):
                raise self._changed(place.shard, f"its ETag and the bytes of sample {place.sample} differ") from None
            raise
        return view

    def _changed(self, number: int, reason: str) -> ObjectChanged:
        url, key = self._bucket.url, self._index.shard(number).key
        index = f"delete {NAME} in {self._place.url}"
        fix = f"Restore it; or {index}, and start without a cursor"
        if not self._index.spans:
            fix = f"If its bytes are the same, {index}: cursors stay valid. {fix}"
        return ObjectChanged(f"{url}/{key} is not the object that was indexed: {reason}. {fix}", url, key)

    def _check(self, key: str, spans: Spans, sample: int, data: memoryview) -> None:
        span.check(data, spans, sample, key, self._bucket.url, lambda damaged: self._name(key, damaged))

    def _name(self, shard: str, damaged: memoryview) -> str:
        """The key of a damaged sample in parentheses; "" if it cannot be read."""
        try:
            return f" ({self._format.parse(shard, damaged)[0]})"
        except Exception:  # the format may fail in any way for such bytes
            return ""
