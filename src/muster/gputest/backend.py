"""What tests ask of a machine's GPUs: small primitives, so that the tests themselves run on any back end.

A device is named by its index. Arrays are opaque to tests: they go from one primitive to the next. Expected results
are worked out on the host (patterns.py, operands.py), never by the device under test.
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
"""As a place of words: memory of the host that the device copies from and to (pinned)."""


class BackendError(Exception):
    """There is nothing to test, or it must not be trusted to be tested: `code` says which."""

    def __init__(self, code: Code, message: str):
        super().__init__(message)
        self.code = code


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Who a GPU is."""

    index: int
    uuid: str
    name: str
    pci_address: str
    memory_bytes: int


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver keeps about a GPU. `None` where the model has no such thing."""

    ecc_enabled: bool | None = None
    ecc_pending: bool | None = None
    remap_pending: bool = False
    remap_failed: bool = False
    retirement_pending: bool = False
    processes: tuple[int, ...] = ()
    memory_free_bytes: int


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU at one moment. `slowdowns`: reasons why hardware held the clocks down (a power cap by software is none)."""

    sm_clock_mhz: float
    power_w: float
    temperature_c: float
    slowdowns: tuple[str, ...] = ()


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much is tested at a level.

    Attributes:
        memory_share: of what is free.
        matrix_n, load_n: rows of square matrices: of products that are checked, and of those that make load.
    """

    memory_share: float
    chunk_bytes: int
    copy_bytes: int
    matrix_n: int
    load_n: int
    reduce_bytes: int


class Wrong(msgspec.Struct, frozen=True, kw_only=True):
    """Words that are not as they were written: how many, and the first."""

    count: int
    index: int
    found: int


class Communicator(Protocol):
    """One rank of several, a process and a device each."""

    def all_reduce(self, array: Array) -> None:
        """Replace the array by the sum over all ranks; returns when it is there."""

    def close(self) -> None:
        """Leave."""


class Backend(ABC):
    """One machine's GPUs, as they are when asked. Every call may block: whoever runs tests has a deadline."""

    name: str
    timing_margin: float = 0.0
    """Least share by which a figure may be worse than its peers', where this machine's timing is uncertain."""
    round_s: float = 0.0
    """What is timed is repeated for so long: beside it, waiting for the device and for this process is nothing."""

    @abstractmethod
    def devices(self) -> tuple[Device, ...]:
        """The GPUs that the driver shows, by index."""

    @abstractmethod
    def bus_addresses(self) -> tuple[str, ...]:
        """PCI addresses of the GPUs that the bus shows, whether or not the driver does."""

    @abstractmethod
    def computing_uuids(self) -> tuple[str, ...]:
        """UUIDs in the order in which the library that computes has them; may create contexts."""

    @abstractmethod
    def local_cpus(self, device: int) -> frozenset[int]:
        """CPUs of the device's NUMA node; none where that is not known."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Versions of drivers and libraries, by name."""

    @abstractmethod
    def condition(self, device: int) -> Condition:
        """What the driver keeps about the device."""

    @abstractmethod
    def sample(self, device: int) -> Sample | None:
        """The device now; None where it cannot be read."""

    @abstractmethod
    def sizes(self, level: int) -> Sizes:
        """How much to test at a level."""

    @abstractmethod
    def words(self, place: int, count: int) -> Array:
        """Uninitialised 64-bit words on a device or HOST."""

    @abstractmethod
    def fill(self, device: int, words: Array, pattern: Pattern, first: int = 0) -> None:
        """Write the pattern, of which the array holds word `first` and those after it."""

    @abstractmethod
    def check(self, words: Array, pattern: Pattern, first: int = 0) -> Wrong | None:
        """Read every word and compare."""

    @abstractmethod
    def address(self, words: Array) -> int:
        """Where the array lies in its memory, as the device addresses it."""

    @abstractmethod
    def copy(self, device: int, target: Array, source: Array) -> None:
        """Copy all words between any two places; `device` is the one that is tested by it."""

    @abstractmethod
    def precisions(self, device: int) -> tuple[str, ...]:
        """Names of operands.py's precisions that the device multiplies in."""

    @abstractmethod
    def upload(self, device: int, values: Any, precision: str) -> Array:
        """A numpy array of float64, exactly representable in the precision, on the device."""

    @abstractmethod
    def multiply(self, device: int, a: Array, b: Array, precision: str) -> Array:
        """The matrix product, accumulated in fp32 at least where the device can."""

    @abstractmethod
    def download(self, array: Array) -> Any:
        """A numpy array of floats with exactly the values on the device."""

    @abstractmethod
    def same_bits(self, device: int, one: Array, other: Array) -> bool:
        """Whether two arrays on the device are equal bit for bit."""

    @abstractmethod
    def corrupt(self, array: Array) -> None:
        """Add one to the bits of one element. For drills (drill.py)."""

    @abstractmethod
    def timed(self, devices: Sequence[int], work: Callable[[], object]) -> float:
        """Seconds that the work takes on these devices, from none of it begun until all of it is done."""

    @abstractmethod
    def release(self) -> None:
        """Give memory that is cached back to the devices."""

    @abstractmethod
    def join(self, device: int, rank: int, ranks: int, address: str, port: int, timeout_s: float) -> Communicator:
        """Meet the other ranks at rank 0's address; raises OSError or RuntimeError where they do not come in time."""

    def reduce(self, device: int, communicator: Communicator, array: Array) -> None:
        """Sum the array over all ranks, in place."""
        communicator.all_reduce(array)
