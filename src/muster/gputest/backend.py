"""The interface to a machine's GPUs: small primitives, so that the tests run on any back end.

A device is identified by its index. Arrays are opaque to tests, which only pass them between primitives. Expected
results are computed on the host (patterns.py, operands.py), never by the device under test.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from muster.gputest.codes import Code
from muster.gputest.patterns import Pattern

Array = Any
HOST = -1
"""The place of an array in pinned host memory, from and to which the device copies."""


def check_name(name: str) -> str | None:
    """Return what is wrong with a name of the form `nvidia`, `cpu` or `cpu:COUNT`; None if it is valid."""
    kind, colon, count = name.partition(":")
    if name == "nvidia" or (kind == "cpu" and (not colon or (count.isdecimal() and 0 < int(count) <= 64))):
        return None
    return f"no back end {name!r}: nvidia, cpu, or cpu:COUNT with up to 64 devices"


class BackendError(Exception):
    """The machine cannot be tested, or its results could not be trusted; `code` has the reason."""

    def __init__(self, code: Code, message: str):
        super().__init__(message)
        self.code = code


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a GPU."""

    index: int
    uuid: str
    name: str
    pci_address: str
    memory_bytes: int


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a GPU in the driver's records. `None` if the model does not have it."""

    ecc_enabled: bool | None = None
    ecc_pending: bool | None = None
    remap_pending: bool = False
    remap_failed: bool = False
    retirement_pending: bool = False
    processes: tuple[int, ...] = ()
    memory_free_bytes: int


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample of a GPU. Values that its model or driver does not report are None.

    Attributes:
        slowdowns: hardware reasons that limit its clocks, without power caps set by software; empty if not reported.
    """

    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    slowdowns: tuple[str, ...] = ()


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The amounts of data and work at a level.

    Attributes:
        memory_share: share of the free memory.
        matrix_n, load_n: rows of square matrices: for products that are checked, and for load.
    """

    memory_share: float
    chunk_bytes: int
    copy_bytes: int
    matrix_n: int
    load_n: int
    reduce_bytes: int


class Wrong(msgspec.Struct, frozen=True, kw_only=True):
    """Wrong words: how many, and the first."""

    count: int
    index: int
    found: int


class Communicator(Protocol):
    """One of several ranks; each has a process and a device."""

    def all_reduce(self, array: Array) -> None:
        """Replace the array by the sum over all ranks. Returns when it is complete."""

    def close(self) -> None:
        """Leave the group of ranks."""


class Backend(ABC):
    """One machine's GPUs. Every call may block, so the caller needs a deadline."""

    name: str
    timing_margin: float = 0.0
    """Smallest share by which a figure may be worse than its peers', for machines with uncertain timing."""
    round_s: float = 0.0
    """How long timed work is repeated, so that the overhead of waiting is negligible."""

    @abstractmethod
    def devices(self) -> tuple[Device, ...]:
        """Return the driver's GPUs, by index."""

    @abstractmethod
    def bus_addresses(self) -> tuple[str, ...]:
        """Return PCI addresses of the GPUs on the bus, with or without a driver."""

    @abstractmethod
    def computing_uuids(self) -> tuple[str, ...]:
        """Return UUIDs in the order of the computing library. May create contexts."""

    @abstractmethod
    def local_cpus(self, device: int) -> frozenset[int]:
        """Return the CPUs of the device's NUMA node; empty if not known."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return versions of drivers and libraries, by name."""

    @abstractmethod
    def condition(self, device: int) -> Condition:
        """Return the state of the device in the driver's records."""

    @abstractmethod
    def sample(self, device: int) -> Sample | None:
        """Return a sample of the device; None if it cannot be read."""

    @abstractmethod
    def sizes(self, level: int) -> Sizes:
        """Return how much to test at a level."""

    @abstractmethod
    def words(self, place: int, count: int) -> Array:
        """Return uninitialized 64-bit words on a device or HOST."""

    @abstractmethod
    def fill(self, device: int, words: Array, pattern: Pattern, first: int = 0) -> None:
        """Write the pattern; the array's first word has the index `first`."""

    @abstractmethod
    def check(self, words: Array, pattern: Pattern, first: int = 0) -> Wrong | None:
        """Read every word and compare it with the pattern."""

    @abstractmethod
    def address(self, words: Array) -> int:
        """Return the array's address in its memory, as the device sees it."""

    @abstractmethod
    def copy(self, device: int, target: Array, source: Array) -> None:
        """Copy all words between any two places; `device` is the one under test."""

    @abstractmethod
    def precisions(self, device: int) -> tuple[str, ...]:
        """Return the device's precisions, as named in operands.py."""

    @abstractmethod
    def upload(self, device: int, values: Any, precision: str) -> Array:
        """Copy a numpy array of float64 to the device; its values must be exact in the precision."""

    def operands(self, device: int, a: Any, b: Any, precision: str) -> tuple[Array, Array]:
        """Upload both operands of products, in the layout that `multiply` needs: layout is not a part of its time."""
        return self.upload(device, a, precision), self.upload(device, b, precision)

    @abstractmethod
    def multiply(self, device: int, a: Array, b: Array, precision: str) -> Array:
        """Return the product of `operands`, accumulated at least in fp32 if the device can."""

    @abstractmethod
    def download(self, array: Array) -> Any:
        """Return a numpy array of floats with exactly the values on the device."""

    @abstractmethod
    def same_bits(self, device: int, one: Array, other: Array) -> bool:
        """Return whether two arrays on the device are equal bit for bit."""

    @abstractmethod
    def corrupt(self, array: Array) -> None:
        """Add one to the bits of one element, for drills (drill.py)."""

    @abstractmethod
    def timed(self, devices: Sequence[int], work: Callable[[], object]) -> float:
        """Return the seconds that the work takes on these devices, from its start until all of it is done."""

    @abstractmethod
    def release(self) -> None:
        """Free cached memory on the devices."""

    @abstractmethod
    def join(self, device: int, rank: int, ranks: int, address: str, port: int, timeout_s: float) -> Communicator:
        """Join the other ranks at rank 0's address. Raises OSError or RuntimeError if they do not come in time."""

    def reduce(self, device: int, communicator: Communicator, array: Array) -> None:
        """Sum the array over all ranks, in place."""
        communicator.all_reduce(array)
