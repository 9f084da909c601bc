"""The back end without GPUs: the same primitives in numpy, on devices that are parts of the host's memory.

It lets everything except the kernels run anywhere. Its figures do not describe hardware.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from muster.gputest.backend import Array, Backend, Communicator, Condition, Device, Sample, Sizes, Wrong
from muster.gputest.patterns import Pattern, signed

MODEL = "CPU reference"
_MEMORY_BYTES = 1 << 20
_DTYPES = {"fp64": np.float64, "fp32": np.float32, "fp16": np.float16}


class ReferenceBackend(Backend):
    """A back end with `count` devices of numpy arrays."""

    name = "cpu"
    timing_margin = 0.9  # devices share cores with each other and with all other programs

    def __init__(self, count: int):
        self._devices = tuple(
            Device(
                index=index,
                uuid=f"CPU-{index:04d}",
                name=MODEL,
                pci_address=f"0000:{index + 1:02x}:00.0",
                memory_bytes=_MEMORY_BYTES,
            )
            for index in range(count)
        )

    def devices(self) -> tuple[Device, ...]:
        """Return the numpy devices."""
        return self._devices

    def bus_addresses(self) -> tuple[str, ...]:
        """Return one address for each device."""
        return tuple(device.pci_address for device in self._devices)

    def computing_uuids(self) -> tuple[str, ...]:
        """Return the UUIDs of all devices."""
        return tuple(device.uuid for device in self.devices())

    def local_cpus(self, device: int) -> frozenset[int]:
        """Return no CPUs: all are equally near."""
        return frozenset()

    def versions(self) -> dict[str, str]:
        """Return numpy's version."""
        return {"numpy": np.__version__}

    def condition(self, device: int) -> Condition:
        """Return a state without faults."""
        return Condition(memory_free_bytes=_MEMORY_BYTES)

    def sample(self, device: int) -> Sample | None:
        """Return None: there is nothing to read."""
        return None

    def sizes(self, level: int) -> Sizes:
        """Return small sizes, so that a run takes little longer than starting its processes."""
        return Sizes(
            memory_share=0.5,
            chunk_bytes=_MEMORY_BYTES // 4,
            copy_bytes=_MEMORY_BYTES // 4,
            matrix_n=64,
            load_n=64,
            reduce_bytes=_MEMORY_BYTES // 16,
        )

    def words(self, place: int, count: int) -> Array:
        """Return an array of int64."""
        return np.empty(count, np.int64)

    def fill(self, device: int, words: Array, pattern: Pattern, first: int = 0) -> None:
        """Assign the pattern."""
        words[:] = _expected(len(words), pattern, first)

    def check(self, words: Array, pattern: Pattern, first: int = 0) -> Wrong | None:
        """Compare with the pattern."""
        wrong = words != _expected(len(words), pattern, first)
        count = int(np.count_nonzero(wrong))
        if not count:
            return None
        index = int(np.argmax(wrong))
        return Wrong(count=count, index=index, found=int(words[index]))

    def address(self, words: Array) -> int:
        """Return the address in the process's memory."""
        return int(words.ctypes.data)

    def copy(self, device: int, target: Array, source: Array) -> None:
        """Assign the words."""
        target[:] = source

    def precisions(self, device: int) -> tuple[str, ...]:
        """Return numpy's precisions."""
        return tuple(_DTYPES)

    def upload(self, device: int, values: Any, precision: str) -> Array:
        """Convert the array."""
        return values.astype(_DTYPES[precision])

    def multiply(self, device: int, a: Array, b: Array, precision: str) -> Array:
        """Multiply. Products of fp16 are summed in fp32 and rounded once, as in tensor cores."""
        if precision == "fp16":
            return (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
        return a @ b

    def download(self, array: Array) -> Any:
        """Return the array."""
        return array

    def same_bits(self, device: int, one: Array, other: Array) -> bool:
        """Compare bytes: two NaNs can be equal, two zeros different."""
        return bool(one.tobytes() == other.tobytes())

    def corrupt(self, array: Array) -> None:
        """Change the first element."""
        array.reshape(-1).view(f"u{array.itemsize}")[0] += 1

    def timed(self, devices: Sequence[int], work: Callable[[], object]) -> float:
        """Return the CPU time of this thread: waiting for a core does not count as slow."""
        began = time.thread_time()
        work()
        return max(time.thread_time() - began, 1e-9)

    def release(self) -> None:
        """Do nothing: numpy does not cache."""

    def join(self, device: int, rank: int, ranks: int, address: str, port: int, timeout_s: float) -> Communicator:
        """Join over TCP."""
        return _Star(rank, ranks, address, port, timeout_s)


def _expected(count: int, pattern: Pattern, first: int) -> Any:
    start = np.int64(signed(pattern.word(first)))
    if not pattern.step:
        return start
    return np.arange(count, dtype=np.int64) * np.int64(signed(pattern.step)) + start


class _Star:
    """Sums through rank 0: the simplest way to give ranks in several processes or nodes sums that can be checked."""

    def __init__(self, rank: int, ranks: int, address: str, port: int, timeout_s: float):
        self._root = rank == 0
        self._peers: list[Connection[Any, Any]] = []
        deadline = time.monotonic() + timeout_s
        if self._root:
            with socket.create_server((address, port), backlog=ranks) as server:
                while len(self._peers) < ranks - 1:
                    server.settimeout(max(0.01, deadline - time.monotonic()))
                    self._peers.append(Connection(server.accept()[0].detach()))
            return
        while not self._peers:
            try:
                connected = socket.create_connection((address, port), timeout_s)
                connected.setblocking(True)  # otherwise the detached socket does not block
                self._peers = [Connection(connected.detach())]
            except OSError:  # rank 0 has not started yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def all_reduce(self, array: Array) -> None:
        """Gather, sum, send back."""
        if self._root:
            for peer in self._peers:
                array += np.frombuffer(peer.recv_bytes(), array.dtype)
        for peer in self._peers:
            peer.send_bytes(array.tobytes())
        if not self._root:
            array[:] = np.frombuffer(self._peers[0].recv_bytes(), array.dtype)

    def close(self) -> None:
        """Close the connections."""
        for peer in self._peers:
            peer.close()
