"""A back end that delegates to another one; subclasses override what differs (drill.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from muster.gputest.backend import Array, Backend, Communicator, Condition, Device, Sample, Sizes, Wrong
from muster.gputest.patterns import Pattern


class Wrapper(Backend):
    """Delegates everything to `inner`."""

    def __init__(self, inner: Backend):
        self.inner = inner
        self.name = inner.name
        self.timing_margin = inner.timing_margin

    def devices(self) -> tuple[Device, ...]:
        """Return the result of `inner`."""
        return self.inner.devices()

    def bus_addresses(self) -> tuple[str, ...]:
        """Return the result of `inner`."""
        return self.inner.bus_addresses()

    def computing_uuids(self) -> tuple[str, ...]:
        """Return the result of `inner`."""
        return self.inner.computing_uuids()

    def local_cpus(self, device: int) -> frozenset[int]:
        """Return the result of `inner`."""
        return self.inner.local_cpus(device)

    def versions(self) -> dict[str, str]:
        """Return the result of `inner`."""
        return self.inner.versions()

    def condition(self, device: int) -> Condition:
        """Return the result of `inner`."""
        return self.inner.condition(device)

    def sample(self, device: int) -> Sample | None:
        """Return the result of `inner`."""
        return self.inner.sample(device)

    def sizes(self, level: int) -> Sizes:
        """Return the result of `inner`."""
        return self.inner.sizes(level)

    def words(self, place: int, count: int) -> Array:
        """Return the result of `inner`."""
        return self.inner.words(place, count)

    def fill(self, device: int, words: Array, pattern: Pattern, first: int = 0) -> None:
        """Delegate to `inner`."""
        self.inner.fill(device, words, pattern, first)

    def check(self, words: Array, pattern: Pattern, first: int = 0) -> Wrong | None:
        """Delegate to `inner`."""
        return self.inner.check(words, pattern, first)

    def address(self, words: Array) -> int:
        """Return the result of `inner`."""
        return self.inner.address(words)

    def copy(self, device: int, target: Array, source: Array) -> None:
        """Delegate to `inner`."""
        self.inner.copy(device, target, source)

    def precisions(self, device: int) -> tuple[str, ...]:
        """Return the result of `inner`."""
        return self.inner.precisions(device)

    def upload(self, device: int, values: Any, precision: str) -> Array:
        """Delegate to `inner`."""
        return self.inner.upload(device, values, precision)

    def operands(self, device: int, a: Any, b: Any, precision: str) -> tuple[Array, Array]:
        """Delegate to `inner`."""
        return self.inner.operands(device, a, b, precision)

    def multiply(self, device: int, a: Array, b: Array, precision: str) -> Array:
        """Delegate to `inner`."""
        return self.inner.multiply(device, a, b, precision)

    def download(self, array: Array) -> Any:
        """Delegate to `inner`."""
        return self.inner.download(array)

    def same_bits(self, device: int, one: Array, other: Array) -> bool:
        """Delegate to `inner`."""
        return self.inner.same_bits(device, one, other)

    def corrupt(self, array: Array) -> None:
        """Delegate to `inner`."""
        self.inner.corrupt(array)

    def timed(self, devices: Sequence[int], work: Callable[[], object]) -> float:
        """Delegate to `inner`."""
        return self.inner.timed(devices, work)

    def release(self) -> None:
        """Delegate to `inner`."""
        self.inner.release()

    def join(self, device: int, rank: int, ranks: int, address: str, port: int, timeout_s: float) -> Communicator:
        """Delegate to `inner`."""
        return self.inner.join(device, rank, ranks, address, port, timeout_s)
