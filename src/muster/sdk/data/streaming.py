"""Streams a data set: each rank iterates over its part of every global batch.

    import muster
    from muster.sdk.data import stream

    with stream(seed=7, global_batch=512, cursor=saved_cursor) as batches:
        for samples in batches:
            train_step(samples)
            ...
            muster.save_checkpoint(step, write, cursor=batches.cursor(), skipped=batches.skipped)

The order is a function of the seed, the epoch and the position (`muster.sdk.data.order`), so a job may continue with
another number of nodes. Batches span epochs: the first samples of an epoch may complete the last batch of the one
before.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from typing import Callable, Iterable, Iterator, NamedTuple, Sequence

from muster.sdk import place
from muster.sdk.data import cursor as cursors
from muster.sdk.data.access import Access, access_from
from muster.sdk.data.broken import BadCursor, BrokenShard
from muster.sdk.data.cache_client import cache_from_environment
from muster.sdk.data.cursor import Cursor
from muster.sdk.data.errors import Forbidden, NotFound, StoreError, Unavailable
from muster.sdk.data.formats.base import Format
from muster.sdk.data.formats.choose import choose
from muster.sdk.data.index import Index
from muster.sdk.data.index_store import open_index
from muster.sdk.data.library import IndexedShards
from muster.sdk.data.order import LANES, Order, Place, bounds
from muster.sdk.data.readahead import Read, ReadAhead
from muster.sdk.data.sample import Sample
from muster.sdk.data.shards import CacheSource, ShardSource, StoreSource, Traffic
from muster.sdk.data.skipped import Skipped, SkippedSamples
from muster.sdk.data.store import Store
from muster.sdk.data.stores import open_store

_log = logging.getLogger(__name__)
READ_AHEAD_BYTES = 256 << 20
_THREADS = 16
_REPLACEMENTS = 16
"""How many random samples are tried in place of a skipped one."""


class Stats(NamedTuple):
    """What this process has received.

    Attributes:
        batches: batches received.
        samples: samples of this rank.
        skipped: samples of this rank that were replaced, because their shards are broken.
        bucket_bytes: bytes read from the data set itself: the bucket, or the folder if the data set is one.
        cache_bytes: bytes read from the node's cache.
        cache_errors: failed requests to the cache; the bucket served instead. 0 for a folder, which has none.
        waited_s: time that the program has waited for samples.
    """

    batches: int
    samples: int
    skipped: int
    bucket_bytes: int
    cache_bytes: int
    cache_errors: int
    waited_s: float


class Stream:
    """Iterates over this rank's part of each global batch: a list of samples. Not thread-safe.

    The arguments are those of `stream`. `part` is (number, parts): a share of this rank's part, for a worker process.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        seed: int,
        global_batch: int,
        shuffle: bool = True,
        epochs: int | None = None,
        cursor: str | None = None,
        skipped: Iterable[Sequence[object]] = (),
        rank: int | None = None,
        world_size: int | None = None,
        format: str | Format = "auto",
        decode: Callable[[Sample], object] | None = None,
        bad_shards: str | None = None,
        read_ahead_bytes: int = READ_AHEAD_BYTES,
        drop_last: bool = True,
        lanes: int = LANES,
        store: Store | None = None,
        index: str | Store | Index | None = None,
        deadline_s: float = 600.0,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self._rank = place.rank() if rank is None else rank
        self._world_size = place.world_size() if world_size is None else world_size
        self._part = part
        self._skip = _policy(bad_shards) == "skip"
        self._url = url or os.environ.get("MUSTER_DATA_URL", "")
        self._deadline_s = deadline_s
        self._format = format
        self._decode = decode
        self._limit_bytes = read_ahead_bytes
        self._epochs = epochs
        self._drop_last = drop_last
        self._check(global_batch, lanes, store)
        self._given_store = store
        self._given_index = index
        self._skipped = SkippedSamples(skipped)
        self._traffic = Traffic()
        self._batches = self._samples = self._replaced = 0
        self._waited_s = 0.0
        self._closed = False
        started = cursors.parse(cursor) if cursor else None
        self._open(started.digest if started else "")
        self._order = self._new_order(seed, global_batch, lanes, shuffle)
        self._cursor = Cursor(self._index.digest, seed, global_batch, lanes if shuffle else 0, 0, 0)
        if started:
            cursors.check(started, self._cursor, self._order.samples)
            self._cursor = started
        self._total = None if epochs is None else epochs * self._order.samples
        if self._cursor.position % global_batch and self._cursor.position != self._total:
            raise BadCursor("the cursor stands after a last, short batch: the stream cannot go on there")
        self._shuffle = shuffle
        self._reader: ReadAhead | None = None

    def __iter__(self) -> Iterator[list[object]]:
        return self

    def __next__(self) -> list[object]:
        """The samples of this rank in the next global batch.

        Raises:
            BrokenShard: a shard is damaged, and the policy is "fail".
            ObjectChanged: a shard is not the one that was indexed.
            StoreError: the store failed, or did not answer before the deadline.
        """
        if self._closed:
            raise ValueError("the stream is closed")
        start, end = self._batch(self._cursor.position // self._cursor.batch)
        ended = self._cursor.position == self._total
        if ended or end - start < (self._cursor.batch if self._drop_last else 1):
            self._stop()
            raise StopIteration
        low, high = self._mine(start // self._cursor.batch)
        reader = self._started()
        began = time.monotonic()
        try:
            reads = reader.take(low, high, self._deadline_s)
            samples = [self._settle(low + offset, read) for offset, read in enumerate(reads)]
        except TimeoutError as error:
            self._stop(0.0)
            position, slowest = error.args
            number = self._order.locate(position).shard if slowest is None else slowest
            shard = self._index.shard(number).key
            message = f"{shard}: no sample came within {self._deadline_s:g} s"
            raise Unavailable(message, self._store.url, shard) from None
        except BaseException:
            self._stop(0.0)  # the next call reads this batch again
            raise
        self._waited_s += time.monotonic() - began
        self._batches += 1
        self._samples += len(samples)
        self._cursor = self._cursor._replace(position=end, epoch=end // self._order.samples)
        return samples

    def cursor(self) -> str:
        """The batches that this iterator has returned, as a small JSON text; the same on all ranks.

        Save it with the checkpoint, and give it to `stream` to go on with the next batch.
        """
        return self._cursor.text()

    @property
    def skipped(self) -> list[Skipped]:
        """Records of the samples that this rank has skipped, and those that were given to `stream`.

        Save them with the checkpoint. If `stream` gets the records of all ranks, it skips the same samples again.
        """
        return self._skipped.records()

    @property
    def stats(self) -> Stats:
        """What this process has received since the start."""
        traffic = self._traffic
        return Stats(
            self._batches,
            self._samples,
            self._replaced,
            traffic.bucket_bytes,
            traffic.cache_bytes,
            traffic.cache_errors,
            self._waited_s,
        )

    @property
    def index(self) -> Index:
        """The index of the data set."""
        return self._index

    def close(self) -> None:
        """End the threads, and close connections."""
        self._stop()
        if not self._closed and self._given_store is None:
            self._store.close()
        self._closed = True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, global_batch: int, lanes: int, store: Store | None) -> None:
        if global_batch < 1:
            raise ValueError(f"global_batch must be at least 1, not {global_batch}")
        if lanes < 1:
            raise ValueError(f"lanes must be at least 1, not {lanes}")
        if not 0 <= self._rank < self._world_size:
            raise ValueError(f"rank {self._rank} is not in a job of {self._world_size} ranks")
        if global_batch < self._world_size:
            raise ValueError(f"global_batch is {global_batch}, so some of the {self._world_size} ranks get no samples")
        if not self._url and store is None:
            raise ValueError("no data: pass a URL to stream(), use `muster run --data URL`, or set MUSTER_DATA_URL")

    def _open(self, digest: str) -> None:
        """Open the store and the index, for this process."""
        self._pid = os.getpid()
        self._store = self._given_store or _open(self._url, self._deadline_s)
        given = self._given_index
        if isinstance(given, Index):
            self._index, self._place = given, self._store
            return
        place = _open(given, self._deadline_s) if isinstance(given, str) else given
        number, parts = self._part
        rank, world_size = self._rank * parts + number, self._world_size * parts
        self._index, self._place = open_index(self._store, place, self._format, rank, world_size, self._skip, digest)

    def _new_order(self, seed: int, batch: int, lanes: int, shuffle: bool) -> Order:
        order = Order(self._index.counts, self._index.windows(), seed, batch, lanes, shuffle)
        if not order.samples:
            raise ValueError(f"no samples in the {len(self._index)} shards below {self._store.url}")
        if order.samples < batch:
            raise ValueError(f"{self._store.url} has {order.samples} samples, fewer than one global batch of {batch}")
        return order

    def _batch(self, number: int) -> tuple[int, int]:
        """The positions of a global batch; fewer at the end."""
        start, end = number * self._cursor.batch, (number + 1) * self._cursor.batch
        return start, end if self._total is None else max(start, min(end, self._total))

    def _mine(self, number: int) -> tuple[int, int]:
        """This reader's positions of a global batch."""
        start, end = self._batch(number)
        low, high = bounds(end - start, self._rank, self._world_size)
        first, last = bounds(high - low, *self._part)
        return start + low + first, start + low + last

    def _started(self) -> ReadAhead:
        if self._reader is not None and self._pid == os.getpid():
            return self._reader
        if self._pid != os.getpid():  # forked: threads and connections stayed in the parent process
            self._open(self._cursor.digest)
        cursor = self._cursor
        order = self._new_order(cursor.seed, cursor.batch, cursor.lanes or 1, self._shuffle)
        bucket = StoreSource(self._store, self._traffic)
        library = IndexedShards(
            self._index,
            self._place,
            choose(self._format if isinstance(self._format, Format) else self._index.format, ()),
            self._source(bucket),
            bucket,
            self._skipped,
            self._decode,
            cursor.lanes + 32,
        )
        full_end = None if self._total is None else self._total // cursor.batch
        short = not self._drop_last and self._total is not None and self._total % cursor.batch > 0
        first = cursor.position // cursor.batch
        self._library = library
        self._reader = ReadAhead(order, library, self._mine, first, full_end, short, self._limit_bytes, _THREADS)
        self._end = weakref.finalize(self, _end, self._reader, library, 0.0)
        return self._reader

    def _source(self, bucket: ShardSource) -> ShardSource:
        """The node's cache if there is one, else the bucket."""
        client = cache_from_environment()
        if client is None or self._store.url.partition("://")[0] not in ("s3", "gs", "az"):
            return bucket
        return CacheSource(client, self._store.url, _access(self._store.url), bucket, self._traffic)

    def _stop(self, deadline_s: float = 5.0) -> None:
        if self._reader is not None and self._pid == os.getpid():
            self._end.detach()
            _end(self._reader, self._library, deadline_s)
        self._reader = None

    def _settle(self, position: int, read: Read) -> object:
        """The sample of a position; if it is skipped, a replacement."""
        if not self._library.skips(read.place):
            if read.error is None:
                return read.sample
            self._tolerate(read.place, read.error)
        self._replaced += 1
        error = read.error
        for attempt in range(_REPLACEMENTS):
            place = self._order.sample(read.place.epoch, self._order.draw(position, attempt))
            if self._library.skips(place):
                continue
            try:
                return self._library.read(place, position)
            except StoreError as failure:
                self._tolerate(place, failure)
                error = failure
        raise BrokenShard(
            f"{self._store.url}: found no replacement for position {position} among {_REPLACEMENTS} samples: too many "
            "shards are broken. Restore them",
            self._store.url,
        ) from error

    def _tolerate(self, place: Place, error: Exception) -> None:
        """Record that a sample is skipped, or raise the error."""
        shard = self._index.shard(place.shard).key
        if not self._skip and isinstance(error, BrokenShard):
            raise error.with_fix() from error
        if not self._skip or not isinstance(error, (BrokenShard, Forbidden, NotFound)):
            raise error
        if self._skipped.full():
            message = (
                f"{self._store.url}/{shard} is broken, and too many samples were skipped already to record another "
                "one. Restore the broken shards"
            )
            raise BrokenShard(message, self._store.url, shard) from error
        self._skipped.add(place.epoch, shard, place.sample, str(error)[:200])
        _log.warning("sample %d is skipped in epoch %d: %s", place.sample, place.epoch, error)


def stream(
    url: str | None = None,
    *,
    seed: int,
    global_batch: int,
    shuffle: bool = True,
    epochs: int | None = None,
    cursor: str | None = None,
    skipped: Iterable[Sequence[object]] = (),
    rank: int | None = None,
    world_size: int | None = None,
    format: str | Format = "auto",
    decode: Callable[[Sample], object] | None = None,
    bad_shards: str | None = None,
    read_ahead_bytes: int = READ_AHEAD_BYTES,
    drop_last: bool = True,
    lanes: int = LANES,
    store: Store | None = None,
    index: str | Store | Index | None = None,
    deadline_s: float = 600.0,
) -> Stream:
    """Stream a data set in an order that does not depend on the number of nodes and ranks.

    Args:
        url: of the shards; by default the job's `data.url` (MUSTER_DATA_URL).
        seed: of the order.
        global_batch: number of samples that all ranks together receive at a time. It stays the same if the number of
            ranks changes; parts differ by at most one sample.
        shuffle: False: in the order of keys and of samples in shards.
        epochs: how often each sample comes; None: without end.
        cursor: where to go on, from `Stream.cursor`.
        skipped: samples that an earlier run skipped, from `Stream.skipped` of all ranks.
        rank: of this process; by default from the environment.
        world_size: number of processes; by default from the environment.
        format: "tar" (WebDataset), "plain" (each object is a sample), a Format, or "auto".
        decode: maps a Sample to what the program receives. It runs in threads of the reader.
        bad_shards: "fail" or "skip"; by default the job's `data.badShards`, else "fail".
        read_ahead_bytes: bound of the bytes of samples that are read before they are needed.
        drop_last: with `epochs`, whether the last batch is left out if it is not full. If False, some ranks may
            receive an empty list.
        lanes: number of places from which a batch is drawn. With more ranks than lanes, ranks read the same shards.
        store: an open store, instead of `url`.
        index: where the index is stored (URL, folder or store), or the index itself. By default it is beside the data.
        deadline_s: time for a request with its retries, and for a batch.

    Raises:
        ValueError: an argument cannot be used, or there are fewer samples than a global batch.
        BadCursor: the cursor belongs to another stream.
        BrokenShard: a shard cannot be indexed.
        StoreError: the store failed.
    """
    return Stream(
        url,
        seed=seed,
        global_batch=global_batch,
        shuffle=shuffle,
        epochs=epochs,
        cursor=cursor,
        skipped=skipped,
        rank=rank,
        world_size=world_size,
        format=format,
        decode=decode,
        bad_shards=bad_shards,
        read_ahead_bytes=read_ahead_bytes,
        drop_last=drop_last,
        lanes=lanes,
        store=store,
        index=index,
        deadline_s=deadline_s,
    )


def _end(reader: ReadAhead, library: IndexedShards, deadline_s: float) -> None:
    reader.stop(deadline_s)
    library.close()


def _policy(given: str | None) -> str:
    policy = given or os.environ.get("MUSTER_DATA_BAD_SHARD", "") or "fail"
    if policy not in ("fail", "skip"):
        raise ValueError(f'bad_shards must be "fail" or "skip", not {policy!r}')
    return policy


def _open(url: str, deadline_s: float) -> Store:
    return open_store(url, _access(url), deadline_s)


def _access(url: str) -> Access:
    """Endpoint and credentials of the job's data, if the URL belongs to it."""
    job = os.environ.get("MUSTER_DATA_URL", "").rstrip("/")
    return access_from("MUSTER_DATA") if job and (url == job or url.startswith(job + "/")) else Access()
