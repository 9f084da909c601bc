"""The back end without a GPU: the same primitives in numpy, on devices that are parts of this host's memory.

It is there so that everything but the kernels can be tried anywhere; its figures say nothing about hardware.
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
    """`count` devices of numpy arrays."""

    name = "cpu"
    timing_margin = 0.9  # devices share cores with each other and with everything else

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
        """As many as were asked for."""
        return self._devices

    def bus_addresses(self) -> tuple[str, ...]:
        """One for each device."""
        return tuple(device.pci_address for device in self._devices)

    def computing_uuids(self) -> tuple[str, ...]:
        """All devices."""
        return tuple(device.uuid for device in self.devices())

    def local_cpus(self, device: int) -> frozenset[int]:
        """None is nearer than another."""
        return frozenset()

    def versions(self) -> dict[str, str]:
        """That of numpy."""
        return {"numpy": np.__version__}

    def condition(self, device: int) -> Condition:
        """Always in order."""
        return Condition(memory_free_bytes=_MEMORY_BYTES)

    def sample(self, device: int) -> Sample | None:
        """There is nothing to read."""
        return None

    def sizes(self, level: int) -> Sizes:
        """Small ones, so that a run takes little more than its processes' starts."""
        return Sizes(
            memory_share=0.5,
            chunk_bytes=_MEMORY_BYTES // 4,
            copy_bytes=_MEMORY_BYTES // 4,
            matrix_n=64,
            load_n=64,
            reduce_bytes=_MEMORY_BYTES // 16,
        )

    def words(self, place: int, count: int) -> Array:
        """An array of int64."""
        return np.empty(count, np.int64)

    def fill(self, device: int, words: Array, pattern: Pattern, first: int = 0) -> None:
        """Assign."""
        words[:] = _expected(len(words), pattern, first)

    def check(self, words: Array, pattern: Pattern, first: int = 0) -> Wrong | None:
        """Compare."""
        wrong = words != _expected(len(words), pattern, first)
        count = int(np.count_nonzero(wrong))
        if not count:
            return None
        index = int(np.argmax(wrong))
        return Wrong(count=count, index=index, found=int(words[index]))

    def address(self, words: Array) -> int:
        """That of the process's memory."""
        return int(words.ctypes.data)

    def copy(self, device: int, target: Array, source: Array) -> None:
        """Assign."""
        target[:] = source

    def precisions(self, device: int) -> tuple[str, ...]:
        """Those that numpy has."""
        return tuple(_DTYPES)

    def upload(self, device: int, values: Any, precision: str) -> Array:
        """Convert."""
        return values.astype(_DTYPES[precision])

    def multiply(self, device: int, a: Array, b: Array, precision: str) -> Array:
        """Products of fp16 are summed in fp32 and rounded once, as tensor cores do."""
        if precision == "fp16":
            return (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
        return a @ b

    def download(self, array: Array) -> Any:
        """As it is."""
        return array

    def same_bits(self, device: int, one: Array, other: Array) -> bool:
        """Compare bytes: two NaNs can be equal, two zeros different."""
        return bool(one.tobytes() == other.tobytes())

    def corrupt(self, array: Array) -> None:
        """In the first element."""
        array.reshape(-1).view(f"u{array.itemsize}")[0] += 1

    def timed(self, devices: Sequence[int], work: Callable[[], object]) -> float:
        """Time of this thread on a core: what waits for a core is not slow."""
        began = time.thread_time()
        work()
        return max(time.thread_time() - began, 1e-9)

    def release(self) -> None:
        """Nothing is cached."""

    def join(self, device: int, rank: int, ranks: int, address: str, port: int, timeout_s: float) -> Communicator:
        """Meet over TCP."""
        return _Star(rank, ranks, address, port, timeout_s)


def _expected(count: int, pattern: Pattern, first: int) -> Any:
    start = np.int64(signed(pattern.word(first)))
    if not pattern.step:
        return start
    return np.arange(count, dtype=np.int64) * np.int64(signed(pattern.step)) + start


class _Star:
    """Sums by way of rank 0: the least that gives ranks in several processes, on several nodes, checked sums."""

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
                connected.setblocking(True)  # or what is detached does not wait
                self._peers = [Connection(connected.detach())]
            except OSError:  # rank 0 is not there yet
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
