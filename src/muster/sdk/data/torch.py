"""Streams for PyTorch: an `IterableDataset`, and a loader whose cursor counts what the program has received.

    from muster.sdk.data.torch import StreamLoader

    loader = StreamLoader(seed=7, global_batch=512, cursor=saved_cursor, num_workers=4, decode=..., collate=...)
    for batch in loader:
        ...
        muster.save_checkpoint(step, write, cursor=loader.cursor(), skipped=loader.skipped)

Worker processes share each batch of the rank: worker `w` of `n` reads the `w`-th part of it. So workers read different
shards, and the samples and their order are the same for any number of workers. Each part carries the position after its
batch, which is all that the cursor needs. So nothing is copied for the cursor, and batches that workers have
prefetched do not count.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, NamedTuple

import torch.distributed
import torch.utils.data

from muster.sdk import place
from muster.sdk.data.skipped import Skipped, SkippedSamples
from muster.sdk.data.streaming import READ_AHEAD_BYTES, Stream


class Part(NamedTuple):
    """A worker's part of one batch of the rank.

    Attributes:
        samples: what `decode` returned, or Samples.
        part: number of this part.
        parts: number of parts of the batch; 1 without worker processes.
        cursor: of the stream after this batch. It counts once all parts of the batch were received.
        skipped: records of skipped samples that are new since the last part of this worker.
    """

    samples: list[object]
    part: int
    parts: int
    cursor: str
    skipped: list[Skipped]


class StreamDataset(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Yields the parts of each batch of this rank. Use it with `batch_size=None`, or use `StreamLoader`.

    With `num_workers=n`, each `n` successive items are one batch. The options are those of `muster.sdk.data.stream`.
    The rank is that of `torch.distributed` if it is initialized, else that of the environment.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        if options.get("rank") is None and options.get("world_size") is None:
            options["rank"], options["world_size"] = _rank()
        self._options = options
        self._started = False

    def __iter__(self) -> Iterator[Part]:
        """Start at the cursor. Raises RuntimeError if this process did so before."""
        if self._started:
            raise RuntimeError(
                "a StreamDataset cannot be iterated twice, because it does not know which batches were received: use "
                "StreamLoader, or a new StreamDataset with a cursor"
            )
        self._started = True
        worker = torch.utils.data.get_worker_info()
        part = (worker.id, worker.num_workers) if worker else (0, 1)
        bound = self._options.get("read_ahead_bytes", READ_AHEAD_BYTES) // part[1]
        with Stream(**{**self._options, "part": part, "read_ahead_bytes": bound}) as stream:
            reported: list[Skipped] = []
            for samples in stream:
                skipped = stream.skipped
                new = [record for record in skipped if record not in reported]
                reported = skipped
                yield Part(samples, part[0], part[1], stream.cursor(), new)


class StreamLoader:
    """Iterates over the batches of this rank, with worker processes.

    It is one iterator: if a loop ends early, the next loop continues with the next batch.

    Args:
        num_workers: number of processes that read and decode; 0: threads of this process.
        collate: maps the list of samples to what the program receives. Runs in this process.
        prefetch_factor: number of parts that each worker has ready.
        multiprocessing_context: how workers are started. The default is "spawn", because threads and connections of
            this process do not work in forked ones. So `decode` must be a function that can be pickled.
        options: of `muster.sdk.data.stream`.
    """

    def __init__(
        self,
        *,
        num_workers: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        prefetch_factor: int = 2,
        multiprocessing_context: str = "spawn",
        **options: Any,
    ) -> None:
        self._collate = collate
        self._options = options
        self._workers = num_workers
        self._prefetch_factor = prefetch_factor
        self._context = multiprocessing_context
        self._cursor: str | None = options.pop("cursor", None)
        self._skipped = SkippedSamples(options.pop("skipped", ()))
        self._parts: Iterator[Part] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next batch of this rank. Errors as for `Stream`; the next call reads the same batch again."""
        samples: list[object] = []
        try:
            if self._parts is None:
                self._parts = self._start()
            for number in range(max(1, self._workers)):
                part = next(self._parts)
                if part.part != number:
                    raise RuntimeError(f"part {part.part} of a batch came where part {number} was due")
                samples += part.samples
                for record in part.skipped:
                    self._skipped.merge(record)
        except BaseException:
            self.close()
            raise
        self._cursor = part.cursor
        return samples if self._collate is None else self._collate(samples)

    def cursor(self) -> str:
        """The batches that this loader has returned, as `Stream.cursor`."""
        if self._cursor is None:
            with Stream(**self._options) as stream:
                self._cursor = stream.cursor()
        return self._cursor

    @property
    def skipped(self) -> list[Skipped]:
        """Records of the samples that this rank has skipped, as `Stream.skipped`."""
        return self._skipped.records()

    def close(self) -> None:
        """End the worker processes and threads."""
        self._parts = None  # they end with the last reference

    def _start(self) -> Iterator[Part]:
        dataset = StreamDataset(**self._options, cursor=self._cursor, skipped=self._skipped.records())
        if not self._workers:
            return iter(dataset)
        parts: Iterator[Part] = iter(
            torch.utils.data.DataLoader(
                dataset,
                batch_size=None,
                num_workers=self._workers,
                prefetch_factor=self._prefetch_factor,
                multiprocessing_context=self._context,
                collate_fn=_unchanged,
            )
        )
        return parts


def _unchanged(part: Part) -> Part:
    return part


def _rank() -> tuple[int, int]:
    """The rank of this process, and their number."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return place.rank(), place.world_size()
