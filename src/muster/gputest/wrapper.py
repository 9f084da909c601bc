"""A back end around another, that hands everything on: what differs is overridden (drill.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from muster.gputest.backend import Array, Backend, Communicator, Condition, Device, Sample, Sizes, Wrong
from muster.gputest.patterns import Pattern


class Wrapper(Backend):
    """`inner`, as it is."""

    def __init__(self, inner: Backend):
        self.inner = inner
        self.name = inner.name
        self.timing_margin = inner.timing_margin

    def devices(self) -> tuple[Device, ...]:
        """Inner's."""
        return self.inner.devices()

    def bus_addresses(self) -> tuple[str, ...]:
        """Inner's."""
        return self.inner.bus_addresses()

    def computing_uuids(self) -> tuple[str, ...]:
        """Inner's."""
        return self.inner.computing_uuids()

    def local_cpus(self, device: int) -> frozenset[int]:
        """Inner's."""
        return self.inner.local_cpus(device)

    def versions(self) -> dict[str, str]:
        """Inner's."""
        return self.inner.versions()

    def condition(self, device: int) -> Condition:
        """Inner's."""
        return self.inner.condition(device)

    def sample(self, device: int) -> Sample | None:
        """Inner's."""
        return self.inner.sample(device)

    def sizes(self, level: int) -> Sizes:
        """Inner's."""
        return self.inner.sizes(level)

    def words(self, place: int, count: int) -> Array:
        """Inner's."""
        return self.inner.words(place, count)

    def fill(self, device: int, words: Array, pattern: Pattern, first: int = 0) -> None:
        """As inner does."""
        self.inner.fill(device, words, pattern, first)

    def check(self, words: Array, pattern: Pattern, first: int = 0) -> Wrong | None:
        """As inner does."""
        return self.inner.check(words, pattern, first)

    def address(self, words: Array) -> int:
        """Inner's."""
        return self.inner.address(words)

    def copy(self, device: int, target: Array, source: Array) -> None:
        """As inner does."""
        self.inner.copy(device, target, source)

    def precisions(self, device: int) -> tuple[str, ...]:
        """Inner's."""
        return self.inner.precisions(device)

    def upload(self, device: int, values: Any, precision: str) -> Array:
        """As inner does."""
        return self.inner.upload(device, values, precision)

    def multiply(self, device: int, a: Array, b: Array, precision: str) -> Array:
        """As inner does."""
        return self.inner.multiply(device, a, b, precision)

    def download(self, array: Array) -> Any:
        """As inner does."""
        return self.inner.download(array)

    def same_bits(self, device: int, one: Array, other: Array) -> bool:
        """As inner does."""
        return self.inner.same_bits(device, one, other)

    def corrupt(self, array: Array) -> None:
        """As inner does."""
        self.inner.corrupt(array)

    def timed(self, devices: Sequence[int], work: Callable[[], object]) -> float:
        """As inner does."""
        return self.inner.timed(devices, work)

    def release(self) -> None:
        """As inner does."""
        self.inner.release()

    def join(self, device: int, rank: int, ranks: int, address: str, port: int, timeout_s: float) -> Communicator:
        """As inner does."""
        return self.inner.join(device, rank, ranks, address, port, timeout_s)
