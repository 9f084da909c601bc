"""Reads the samples of coming batches in threads, within a bound of bytes.

One planner thread walks through the positions of this reader in order. It gathers the positions that one window of a
shard covers into a group, which is read together. Groups are started in the order of their first positions, while
their bytes fit the bound. If the next batch needs samples of a group that does not fit, only these samples are read.
So memory is limited to the bound and one batch. No sample depends on the order in which threads finish.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from typing import Callable, Iterator, NamedTuple

from muster.sdk.data.order import Order, Place
from muster.sdk.data.spans import Spans

_GAP_BYTES = 64 << 10
"""Ranges that are not further apart are read with one request."""
_AHEAD_BATCHES = 32
"""Small samples are not read further ahead, even if more of them fit the bound."""
_SAMPLE_BYTES = 1024
"""Memory of a sample besides its bytes."""


class Read(NamedTuple):
    """What was read for a position: a sample, or an error, or nothing because the sample is skipped."""

    place: Place
    sample: object
    error: Exception | None


class Library:
    """Reads samples of shards. Thread-safe."""

    def known_spans(self, shard: int) -> Spans | None:
        """Where the samples of a shard are, if that is known without a request."""
        raise NotImplementedError

    def spans(self, shard: int) -> Spans:
        """Where the samples of a shard are. Raises StoreError."""
        raise NotImplementedError

    def pread(self, shard: int, start: int, length: int) -> bytes:
        """Read a range of a shard. Raises StoreError."""
        raise NotImplementedError

    def sample(self, place: Place, spans: Spans, data: memoryview, position: int) -> object:
        """Check and parse a sample's bytes. Reads them again if they are damaged. Raises BrokenShard."""
        raise NotImplementedError

    def skips(self, place: Place) -> bool:
        """Return whether this sample is known to be skipped, so that it need not be read."""
        raise NotImplementedError


class _Group:
    """Positions, in order, that one window of a shard covers."""

    def __init__(self, items: deque[tuple[int, Place]]) -> None:
        self.items = items
        self.shard = items[0][1].shard
        self.spans: Spans | None = None
        self.error: Exception | None = None

    @property
    def known(self) -> bool:
        return self.spans is not None or self.error is not None


class ReadAhead:
    """Reads samples in the background, from a batch on.

    Args:
        order: the order of samples. Only the planner's thread uses it.
        library: reads samples.
        part: maps the number of a batch to this reader's range of positions in it.
        first: number of the first batch.
        full_end: number of the batch after the last full one; None if there is no end.
        short: whether a shorter batch follows.
        limit_bytes: bound of the bytes that are kept for later batches.
        threads: number of threads that read.
    """

    def __init__(
        self,
        order: Order,
        library: Library,
        part: Callable[[int], tuple[int, int]],
        first: int,
        full_end: int | None,
        short: bool,
        limit_bytes: int,
        threads: int,
    ) -> None:
        self._library = library
        self._ahead = _AHEAD_BATCHES * order.batch
        self._limit_bytes = limit_bytes
        lock = threading.Lock()
        self._arrived = threading.Condition(lock)
        self._room = threading.Condition(lock)
        self._work = threading.Condition(lock)
        self._ready: dict[int, tuple[Read, int]] = {}
        self._bytes = 0
        self._needed = first * order.batch
        """End of the positions that the consumer has asked for."""
        self._reading: dict[int, tuple[float, int]] = {}
        """Since when each thread reads, and from which shard."""
        self._stopped = False
        self._failure: BaseException | None = None
        self._tasks: deque[Callable[[], None]] = deque()
        self._lanes = list(_lanes(order, part, first, full_end))
        if short and full_end is not None:
            self._lanes += _lanes(order, part, max(first, full_end), full_end + 1)
        targets = [self._plan, *[self._run_tasks] * threads]
        self._threads = [threading.Thread(target=target, name="muster-data", daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()

    def take(self, first: int, end: int, deadline_s: float) -> list[Read]:
        """Return what was read for the positions [first, end), and free it.

        Raises:
            TimeoutError: nothing came for `deadline_s`. The arguments are the position, and the shard whose read has
                lasted longest, or None: a shard that hangs may keep all threads from the others.
        """
        taken = []
        with self._arrived:
            self._needed = end
            self._room.notify()
            for position in range(first, end):
                deadline = time.monotonic() + deadline_s
                while position not in self._ready:
                    if self._failure is not None:
                        raise RuntimeError("a thread of the reader failed") from self._failure
                    if self._stopped or time.monotonic() > deadline:
                        raise TimeoutError(position, self._slowest())
                    self._arrived.wait(1.0)
                read, size = self._ready.pop(position)
                self._bytes -= size
                taken.append(read)
            self._room.notify()
        return taken

    def stop(self, deadline_s: float = 5.0) -> None:
        """End the threads. A thread that waits for the store ends after its request."""
        with self._room:
            self._stopped = True
            self._tasks.clear()
            self._ready.clear()
            for condition in (self._arrived, self._room, self._work):
                condition.notify_all()
        deadline = time.monotonic() + deadline_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _plan(self) -> None:
        try:
            heap: list[tuple[int, int, _Group]] = []
            for lane in range(len(self._lanes)):
                self._advance(heap, lane)
            while heap:
                with self._room:
                    entry = self._next(heap)
                    if self._stopped:
                        return
                    if entry is None:
                        self._room.wait(1.0)
                        continue
                    first, lane, group = entry
                    self._start(group)
                    if group.items:
                        heapq.heappush(heap, (group.items[0][0], lane, group))
                        if group.items[0][0] == first:  # no room, and the consumer does not wait for it
                            self._room.wait(1.0)
                        continue
                self._advance(heap, lane)
        except BaseException as error:
            self._fail(error)

    def _advance(self, heap: list[tuple[int, int, _Group]], lane: int) -> None:
        """Put the lane's next group on the heap, and find its spans."""
        group = next(self._lanes[lane], None)
        if group is None:
            return
        heapq.heappush(heap, (group.items[0][0], lane, group))
        group.spans = self._library.known_spans(group.shard)
        if group.spans is None:
            with self._work:
                self._tasks.appendleft(lambda: self._find_spans(group))
                self._work.notify()

    def _next(self, heap: list[tuple[int, int, _Group]]) -> tuple[int, int, _Group] | None:
        """Take the first group whose spans are known."""
        unknown = []
        found = None
        while heap and found is None:
            entry = heapq.heappop(heap)
            if entry[2].known:
                found = entry
            else:
                unknown.append(entry)
        for entry in unknown:
            heapq.heappush(heap, entry)
        return found

    def _start(self, group: _Group) -> None:
        """Start to read the group if it fits, else only what the consumer waits for. Removes what is started."""
        if group.spans is None:
            self._arrive([(position, Read(place, None, group.error), 0) for position, place in group.items])
            group.items.clear()
            return
        total = sum(_cost(group.spans, place) for _, place in group.items)
        if self._bytes + total <= self._limit_bytes and group.items[0][0] < self._needed + self._ahead:
            self._bytes += total
            self._tasks.append(_task(self._read, list(group.items), group.spans))
            self._work.notify()
            group.items.clear()
            return
        while group.items and group.items[0][0] < self._needed:
            item = group.items.popleft()
            self._bytes += _cost(group.spans, item[1])
            self._tasks.appendleft(_task(self._read, [item], group.spans))
            self._work.notify()

    def _run_tasks(self) -> None:
        while True:
            with self._work:
                while not self._tasks and not self._stopped:
                    self._work.wait()
                if self._stopped:
                    return
                task = self._tasks.popleft()
            try:
                task()
            except BaseException as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._arrived:
            self._failure = error
            self._arrived.notify_all()

    def _find_spans(self, group: _Group) -> None:
        try:
            spans, error = self._library.spans(group.shard), None
        except Exception as caught:
            spans, error = None, caught
        with self._room:
            group.spans, group.error = spans, error
            self._room.notify()

    def _read(self, items: list[tuple[int, Place]], spans: Spans) -> None:
        """Read samples of one window with few requests."""
        arrived: list[tuple[int, Read, int]] = []
        wanted = []
        for position, place in items:
            if self._library.skips(place):
                arrived.append((position, Read(place, None, None), _cost(spans, place)))
            else:
                wanted.append((position, place))
        for start, end, together in _ranges(wanted, spans):
            shard, thread = together[0][1].shard, threading.get_ident()
            self._reading[thread] = (time.monotonic(), shard)
            try:
                data = memoryview(self._library.pread(shard, start, end - start))
            except Exception as error:
                arrived += [(position, Read(place, None, error), _cost(spans, place)) for position, place in together]
                continue
            finally:
                del self._reading[thread]
            for position, place in together:
                part = data[spans.starts[place.sample] - start : spans.ends[place.sample] - start]
                arrived.append((position, self._parse(place, spans, part, position), _cost(spans, place)))
        with self._arrived:
            self._arrive(arrived)

    def _slowest(self) -> int | None:
        """The shard whose read has lasted longest; None if no thread reads."""
        return min(self._reading.copy().values(), default=(0.0, None))[1]

    def _parse(self, place: Place, spans: Spans, data: memoryview, position: int) -> Read:
        try:
            return Read(place, self._library.sample(place, spans, data, position), None)
        except Exception as error:
            return Read(place, None, error)

    def _arrive(self, reads: list[tuple[int, Read, int]]) -> None:
        if not self._stopped:
            for position, read, cost in reads:
                self._ready[position] = (read, cost)
            self._arrived.notify()


def _lanes(
    order: Order, part: Callable[[int], tuple[int, int]], first: int, end: int | None
) -> Iterator[Iterator[_Group]]:
    """The groups of each lane, in the batches [first, end)."""
    if end is not None and first >= end:
        return
    base = first * order.batch
    start, stop = part(first)
    for low, high in order.lanes(start - base, stop - base):
        yield _groups(order, low, high, first, end)


def _groups(order: Order, low: int, high: int, first: int, end: int | None) -> Iterator[_Group]:
    """The groups of one lane's range [low, high) of each batch."""
    items: deque[tuple[int, Place]] = deque()
    batch = first
    while end is None or batch < end:
        for position in range(batch * order.batch + low, batch * order.batch + high):
            place = order.locate(position)
            if items and _window(place) != _window(items[-1][1]):
                yield _Group(items)
                items = deque()
            items.append((position, place))
        batch += 1
    if items:
        yield _Group(items)


def _window(place: Place) -> tuple[int, int, int]:
    return place.epoch, place.shard, place.window


def _ranges(items: list[tuple[int, Place]], spans: Spans) -> Iterator[tuple[int, int, list[tuple[int, Place]]]]:
    """Byte ranges to read, with their samples. Reads bytes that are not wanted only where that saves requests."""
    if not items:
        return
    items = sorted(items, key=lambda item: item[1].sample)
    first, last = spans.starts[items[0][1].sample], spans.ends[items[-1][1].sample]
    wanted = sum(spans.ends[place.sample] - spans.starts[place.sample] for _, place in items)
    gap = _GAP_BYTES if last - first > 2 * wanted else last
    together: list[tuple[int, Place]] = []
    for item in items:
        if together and spans.starts[item[1].sample] - spans.ends[together[-1][1].sample] > gap:
            yield spans.starts[together[0][1].sample], spans.ends[together[-1][1].sample], together
            together = []
        together.append(item)
    yield spans.starts[together[0][1].sample], spans.ends[together[-1][1].sample], together


def _cost(spans: Spans, place: Place) -> int:
    return spans.ends[place.sample] - spans.starts[place.sample] + _SAMPLE_BYTES


def _task(
    read: Callable[[list[tuple[int, Place]], Spans], None], items: list[tuple[int, Place]], spans: Spans
) -> Callable[[], None]:
    return lambda: read(items, spans)
