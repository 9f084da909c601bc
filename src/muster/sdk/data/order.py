"""Computes which sample stands at which position of the stream. Pure: the same on every machine and Python version.

Positions count samples from the start of training, over all epochs. Batch `b` holds the positions from `b * batch` on.
A batch is divided into lanes: contiguous ranges of it. In each epoch, the shards are shuffled and laid end to end, and
each lane walks through a part of this sequence that is its own. So a rank, which receives a contiguous range of every
batch, reads few shards at a time. Within a shard, samples are shuffled in windows of about WINDOW_BYTES.

The number of nodes and ranks has no part in the order. Any position is found in O(log shards).
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_right
from collections import OrderedDict
from hashlib import sha256
from itertools import accumulate
from typing import NamedTuple, Sequence

WINDOW_BYTES = 4 << 20
WINDOW_SAMPLES = 4096
LANES = 64


class Place(NamedTuple):
    """Where the sample of a position is stored.

    Attributes:
        epoch: from 0.
        shard: number of the shard in the index.
        sample: number of the sample in the shard.
        window: number of the shuffled window in the shard.
    """

    epoch: int
    shard: int
    sample: int
    window: int


class _Epoch(NamedTuple):
    shards: Sequence[int]
    starts: Sequence[int]
    """starts[i] is the number of samples before shards[i]."""


def bounds(total: int, part: int, parts: int) -> tuple[int, int]:
    """The contiguous range of part `part` out of `parts`; sizes differ by at most one."""
    return part * total // parts, (part + 1) * total // parts


def window_samples(size_bytes: int, samples: int) -> int:
    """Number of samples in each shuffled window of a shard."""
    return max(1, min(WINDOW_SAMPLES, WINDOW_BYTES * samples // max(1, size_bytes)))


class Order:
    """The order of one data set.

    Args:
        counts: number of samples of each shard.
        windows: number of samples in each window of each shard.
        seed: another seed gives another order.
        batch: number of samples in a global batch.
        lanes: see above; at most `batch`.
        shuffle: if False, the samples stand in the order of the index.
    """

    def __init__(
        self, counts: Sequence[int], windows: Sequence[int], seed: int, batch: int, lanes: int, shuffle: bool
    ) -> None:
        self.batch = batch
        self.samples = sum(counts)
        self._counts = counts
        self._windows = windows
        self._seed = seed
        self._lanes = min(lanes, batch) if shuffle else 1
        self._shuffle = shuffle
        self._epochs: OrderedDict[int, _Epoch] = OrderedDict()
        self._permutations: OrderedDict[tuple[int, int, int], Sequence[int]] = OrderedDict()

    def lanes(self, first: int, end: int) -> list[tuple[int, int]]:
        """Divide the range [first, end) of a batch at the bounds of lanes."""
        if first >= end:
            return []
        cuts = [bounds(self.batch, lane, self._lanes)[0] for lane in range(self._lane(first) + 1, self._lanes)]
        edges = [first, *(cut for cut in cuts if cut < end), end]
        return list(zip(edges, edges[1:]))

    def locate(self, position: int) -> Place:
        """Find the sample of a position."""
        epoch, index = divmod(position, self.samples)
        # Batches span epochs: the epoch begins `phase` samples after the start of a batch.
        phase = epoch * self.samples % self.batch
        inside = (phase + index) % self.batch
        first, end = bounds(self.batch, self._lane(inside), self._lanes)
        before_lane = self._before(phase + self.samples, first) - self._before(phase, first)
        in_lane = self._in_lane(phase + index, first, end) - self._in_lane(phase, first, end)
        return self.sample(epoch, before_lane + in_lane)

    def sample(self, epoch: int, index: int) -> Place:
        """Find sample number `index` of the epoch's sequence of shuffled shards."""
        shuffled = self._epoch(epoch)
        at = bisect_right(shuffled.starts, index) - 1
        shard = shuffled.shards[at]
        window, offset = divmod(index - shuffled.starts[at], self._windows[shard])
        first = window * self._windows[shard]
        if self._shuffle:
            offset = self._permutation(epoch, shard, window)[offset]
        return Place(epoch, shard, first + offset, window)

    def draw(self, position: int, attempt: int) -> int:
        """A random index of the position's epoch for `sample`, as a replacement for a sample that is skipped."""
        return int.from_bytes(self._digest("replace", position, attempt)[:8], "big") % self.samples

    def _lane(self, inside: int) -> int:
        return ((inside + 1) * self._lanes - 1) // self.batch

    def _before(self, count: int, first: int) -> int:
        """How many of the first `count` positions, from the start of a batch, stand before `first` in their batch."""
        return count // self.batch * first + min(count % self.batch, first)

    def _in_lane(self, count: int, first: int, end: int) -> int:
        return self._before(count, end) - self._before(count, first)

    def _epoch(self, epoch: int) -> _Epoch:
        if epoch not in self._epochs:
            shards = [shard for shard, count in enumerate(self._counts) if count]
            if self._shuffle:
                self._mix(shards, "shards", epoch)
            starts = array("q", accumulate((self._counts[shard] for shard in shards), initial=0))
            self._epochs[epoch] = _Epoch(array("q", shards), starts[:-1])
            if len(self._epochs) > 3:  # lanes are in one epoch or two
                self._epochs.popitem(last=False)
        return self._epochs[epoch]

    def _permutation(self, epoch: int, shard: int, window: int) -> Sequence[int]:
        key = (epoch, shard, window)
        if key in self._permutations:
            self._permutations.move_to_end(key)
        else:
            size = min(self._windows[shard], self._counts[shard] - window * self._windows[shard])
            offsets = list(range(size))
            self._mix(offsets, "window", *key)
            self._permutations[key] = array("H", offsets)
            if len(self._permutations) > 4 * self._lanes:
                self._permutations.popitem(last=False)
        return self._permutations[key]

    def _digest(self, *key: object) -> bytes:
        return sha256(":".join(map(str, (self._seed, *key))).encode()).digest()

    def _mix(self, items: list[int], *key: object) -> None:
        """Shuffle in place. Python guarantees the numbers of random(), but not the algorithm of shuffle()."""
        draw = random.Random(int.from_bytes(self._digest(*key), "big")).random
        for last in range(len(items) - 1, 0, -1):
            other = int(draw() * (last + 1))
            items[last], items[other] = items[other], items[last]
