"""Limits of a hub, and the memory that the logs of all kinds may use together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one kind.

    Attributes:
        log_events: events in the log.
        log_bytes: bytes of old objects that only the log keeps.
        waiting_events: events that a paused subscription may miss before it is closed.
        pending_events: events that wait for the flush, over all groups; a group reads further ones from the log.
        chunk_bytes: bytes passed to a subscription at once.
        slice_s: seconds of fan-out before other callbacks of the loop run.
        clock_interval: deliveries between two looks at the clock.
        read_events: events of the log that are read for one watch before the next one has its turn.
        index_watches: number of watches that catch up at once from which an index of the log is built for them.
    """

    log_events: int = 20_000
    log_bytes: int = 256 << 20
    waiting_events: int = 10_000
    pending_events: int = 200_000
    chunk_bytes: int = 128 << 10
    slice_s: float = 0.005
    clock_interval: int = 32
    read_events: int = 1_000
    index_watches: int = 8


DEFAULT = Limits()


class Log(Protocol):
    """A log that can be shortened."""

    @property
    def bytes(self) -> int:
        """Bytes that it keeps."""
        ...

    def shorten(self) -> bool:
        """Drop the oldest part. Returns whether there was anything to drop."""
        ...


class Budget:
    """The bytes that all logs may use together. The largest log is shortened first.

    Attributes:
        used: bytes in all logs.
        dropped: how often a log was shortened because of this limit.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.dropped = 0
        self._logs: list[Log] = []

    def add(self, log: Log) -> None:
        """Include a log."""
        self._logs.append(log)

    def remove(self, log: Log) -> None:
        """Exclude a log that is no longer used, with its bytes."""
        self._logs.remove(log)
        self.used -= log.bytes

    def charge(self, size: int) -> None:
        """Add `size` bytes (or subtract), and shorten logs until all fit."""
        self.used += size
        while self.used > self.bytes_max and size > 0:
            largest = max(self._logs, key=lambda log: log.bytes)
            if not largest.shorten():
                return
            self.dropped += 1
