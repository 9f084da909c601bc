"""Reads the samples of coming batches in threads, within a bound of bytes.

One planner thread walks through the positions of this reader in order. It gathers the positions that one window of a
shard covers into a group, which is read together. Groups begin in the order of their first positions while their bytes
fit the bound. If the next batch needs samples of a group that does not fit, only these samples are read.
So the memory is limited by the bound and one batch. No sample depends on the order in which threads finish.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from typing import Callable, Deque, Iterator, NamedTuple, Sequence

from muster.sdk.data.broken import BrokenShard
from muster.sdk.data.errors import Unavailable
from muster.sdk.data.order import Order, Place
from muster.sdk.data.spans import Spans

_GAP_BYTES = 64 << 10
"""Ranges that are closer are read together."""


class Read(NamedTuple):
    """What was read for a position: a value, or an error."""

    place: Place
    value: object
    error: Exception | None


class Library:
    """Opens shards and reads their samples, for the threads of a `ReadAhead`."""

    def spans(self, shard: int) -> Spans:
        """Where the samples of a shard are. May read it from the store. Raises StoreError."""
        raise NotImplementedError

    def known_spans(self, shard: int) -> Spans | None:
        """The spans, if they need not be read first."""
        raise NotImplementedError

    def pread(self, shard: int, start: int, length: int) -> bytes:
        """Read a range of a shard."""
        raise NotImplementedError

    def sample(self, shard: int, sample: int, data: bytes, position: int) -> object:
        """Check and parse the bytes of a sample; reads them again if they are damaged. Raises BrokenShard."""
        raise NotImplementedError

    def skips(self, place: Place, position: int) -> bool:
        """Whether this sample will not be asked for."""
        raise NotImplementedError


class _Group:
    """Positions that one window of a shard covers."""

    def __init__(self, epoch: int, shard: int, items: Deque[tuple[int, Place]]) -> None:
        self.epoch = epoch
        self.shard = shard
        self.items = items


class ReadAhead:
    """Reads samples for the ranges [first, end) of batches, from a batch on.

    Args:
        order: the order of samples.
        library: reads samples.
        part: maps the number of a batch to its range of positions for this reader.
        batches: number of the first batch, and of the batch after the last one (None: there is no last one).
        limit_bytes: bound of the bytes that are kept for later batches.
        threads: number of threads that read.
    """

    def __init__(
        self,
        order: Order,
        library: Library,
        part: Callable[[int], tuple[int, int]],
        batches: tuple[int, int | None],
        limit_bytes: int,
        threads: int,
    ) -> None:
        self._order = order
        self._library = library
        self._part = part
        self._end = batches[1]
        self._limit_bytes = limit_bytes
        self._changed = threading.Condition()
        self._ready: dict[int, tuple[Read, int]] = {}
        self._bytes = 0
        self._needed = -1  # end of the positions for which the consumer waits
        self._stopped = False
        self._failure: Exception | None = None
        self._tasks: Deque[Callable[[], None]] = deque()
        self._loading: set[int] = set()
        lanes = self._order.lanes(*(each - batches[0] * order.batch for each in part(batches[0])))
        self._lanes = [_Lane(order, lane, batches, part) for lane in lanes]
        targets = [self._plan, *[self._work] * threads]
        self._threads = [threading.Thread(target=target, name="muster-data", daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()

    def take(self, first: int, end: int, deadline_s: float) -> Iterator[tuple[int, Read]]:
        """Yield the samples of positions [first, end) in order, and free them. Raises Unavailable at the deadline."""
        deadline = time.monotonic() + deadline_s
        with self._changed:
            self._needed = end
            self._changed.notify_all()
        for position in range(first, end):
            with self._changed:
                while position not in self._ready:
                    self._check(position, deadline)
                    self._changed.wait(1.0)
                read, size = self._ready.pop(position)
                self._bytes -= size
                self._changed.notify_all()
            yield position, read
