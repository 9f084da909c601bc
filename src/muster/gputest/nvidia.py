"""The back end for NVIDIA's GPUs: PyTorch computes, NVML gives information. Both are imported only when needed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from muster.gputest.backend import (
    HOST,
    Array,
    Backend,
    BackendError,
    Communicator,
    Condition,
    Device,
    Sample,
    Sizes,
    Wrong,
)
from muster.gputest.codes import Code
from muster.gputest.levels import sized_as
from muster.gputest.nvml import Nvml, bus_addresses, local_cpus
from muster.gputest.patterns import Pattern, signed

_MIB, _GIB = 1 << 20, 1 << 30
_FP8_CAPABILITY = (8, 9)
_TENSOR_CORE_CAPABILITY = (8, 0)  # with tf32 and bf16


class NvidiaBackend(Backend):
    """All GPUs of the machine, or those of its container."""

    name = "nvidia"
    round_s = 0.02

    def __init__(self) -> None:
        self._nvml = Nvml()
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the same order as NVML
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same bits with several streams too
        try:
            import torch
        except ImportError as error:
            raise BackendError(Code.NOT_INSTALLED, f"PyTorch is not installed ({error})") from error
        self._torch: Any = torch
        matmul = torch.backends.cuda.matmul
        matmul.allow_fp16_reduced_precision_reduction = False
        matmul.allow_bf16_reduced_precision_reduction = False
        self._dtypes = {
            "fp64": torch.float64,
            "fp32": torch.float32,
            "tf32": torch.float32,
            "bf16": torch.bfloat16,
            "fp16": torch.float16,
            "fp8": torch.float8_e4m3fn,
        }

    def devices(self) -> tuple[Device, ...]:
        """Return the devices that NVML lists."""
        return self._nvml.devices()

    def bus_addresses(self) -> tuple[str, ...]:
        """Return addresses from sysfs."""
        return bus_addresses()

    def computing_uuids(self) -> tuple[str, ...]:
        """Return UUIDs in CUDA's order."""
        cuda = self._torch.cuda
        return tuple(f"GPU-{cuda.get_device_properties(i).uuid}" for i in range(cuda.device_count()))

    def local_cpus(self, device: int) -> frozenset[int]:
        """Return CPUs from sysfs."""
        return local_cpus(self.devices()[device].pci_address)

    def versions(self) -> dict[str, str]:
        """Return the versions of NVML and PyTorch."""
        torch = self._torch
        # PyTorch's version is a subclass of str, which msgspec does not encode.
        return {**self._nvml.versions(), "torch": str(torch.__version__), "cuda": str(torch.version.cuda)}

    def condition(self, device: int) -> Condition:
        """Return the state from NVML."""
        return self._nvml.condition(device)

    def sample(self, device: int) -> Sample | None:
        """Return a sample from NVML."""
        return self._nvml.sample(device)

    def sizes(self, level: int) -> Sizes:
        """Return sizes: nearly all memory at every level; larger matrices and messages as far as time allows.

        Products for load take a millisecond each: eight threads of one process could not start shorter ones in time.
        """
        large = sized_as(level) > 1
        return Sizes(
            memory_share=0.9,
            chunk_bytes=_GIB,
            copy_bytes=256 * _MIB,
            matrix_n=8192 if large else 4096,
            load_n=8192,
            reduce_bytes=(4 if large else 2) * _GIB,
        )

    def words(self, place: int, count: int) -> Array:
        """Return a tensor of int64; pinned on the host."""
        if place == HOST:
            return self._torch.empty(count, dtype=self._torch.int64, pin_memory=True)
        return self._torch.empty(count, dtype=self._torch.int64, device=self._on(place))

    def fill(self, device: int, words: Array, pattern: Pattern, first: int = 0) -> None:
        """Fill with one kernel, and one more if words differ."""
        words.copy_(self._expected(words, pattern, first))

    def check(self, words: Array, pattern: Pattern, first: int = 0) -> Wrong | None:
        """Compare and count on the device that holds the words."""
        wrong = words != self._expected(words, pattern, first)
        count = int(wrong.sum())
        if not count:
            return None
        index = int(wrong.to(self._torch.uint8).argmax())
        return Wrong(count=count, index=index, found=int(words[index]))

    def address(self, words: Array) -> int:
        """Return the device's virtual address."""
        return int(words.data_ptr())

    def copy(self, device: int, target: Array, source: Array) -> None:
        """Copy with the copy engines if the places differ."""
        target.copy_(source, non_blocking=True)

    def precisions(self, device: int) -> tuple[str, ...]:
        """Return precisions by compute capability."""
        capability = self._torch.cuda.get_device_capability(device)
        names = ["fp64", "fp32", "fp16"]
        if capability >= _TENSOR_CORE_CAPABILITY:
            names += ["tf32", "bf16"]
        if capability >= _FP8_CAPABILITY:
            names += ["fp8"]
        return tuple(names)

    def upload(self, device: int, values: Any, precision: str) -> Array:
        """Convert on the host, so that the transferred values are those under test."""
        return self._torch.from_numpy(np.ascontiguousarray(values)).to(self._dtypes[precision]).to(self._on(device))

    def operands(self, device: int, a: Any, b: Any, precision: str) -> tuple[Array, Array]:
        """Upload; for fp8 the second operand by columns, because the scaled product needs it."""
        first, second = super().operands(device, a, b, precision)
        return first, second.t().contiguous().t() if precision == "fp8" else second

    def multiply(self, device: int, a: Array, b: Array, precision: str) -> Array:
        """Multiply with cuBLAS; for fp8 its scaled product (scales of 1)."""
        torch = self._torch
        if precision == "fp8":
            one = torch.ones((), dtype=torch.float32, device=a.device)
            return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=False)
        matmul = torch.backends.cuda.matmul
        if hasattr(matmul, "fp32_precision"):  # from PyTorch 2.9 on, which warns about the older name
            matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        else:
            matmul.allow_tf32 = precision == "tf32"
        return a @ b

    def download(self, array: Array) -> Any:
        """Convert on the host."""
        host = array.cpu()
        return host.to(self._torch.float32).numpy() if host.element_size() < 4 else host.numpy()

    def same_bits(self, device: int, one: Array, other: Array) -> bool:
        """Compare as integers, because NaNs and zeros have bits too."""
        return bool(self._torch.equal(self._integers(one), self._integers(other)))

    def corrupt(self, array: Array) -> None:
        """Change the first element."""
        self._integers(array).view(-1)[0] += 1

    def timed(self, devices: Sequence[int], work: Callable[[], object]) -> float:
        """Return the wall-clock time between two moments at which the devices are idle."""
        self._wait(devices)
        began = time.perf_counter()
        work()
        self._wait(devices)
        return time.perf_counter() - began

    def release(self) -> None:
        """Empty PyTorch's caches on every device."""
        self._torch.cuda.empty_cache()

    def join(self, device: int, rank: int, ranks: int, address: str, port: int, timeout_s: float) -> Communicator:
        """Join through NCCL."""
        self._torch.cuda.set_device(device)
        self._torch.distributed.init_process_group(
            "nccl",
            init_method=f"tcp://{address}:{port}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=timeout_s),
        )
        return _ProcessGroup(self._torch)

    def _on(self, device: int) -> str:
        return f"cuda:{device}"

    def _wait(self, devices: Sequence[int]) -> None:
        for device in devices:
            self._torch.cuda.synchronize(device)

    def _expected(self, words: Array, pattern: Pattern, first: int) -> Array:
        torch = self._torch
        start = signed(pattern.word(first))
        if not pattern.step:
            return torch.tensor(start, dtype=torch.int64, device=words.device)
        count = torch.arange(len(words), dtype=torch.int64, device=words.device)
        return count.mul_(signed(pattern.step)).add_(start)

    def _integers(self, array: Array) -> Array:
        torch = self._torch
        return array.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[array.element_size()])


class _ProcessGroup:
    """PyTorch's default process group."""

    def __init__(self, torch: Any):
        self._torch = torch

    def all_reduce(self, array: Array) -> None:
        """Sum, and wait for the device."""
        self._torch.distributed.all_reduce(array)
        if array.is_cuda:
            self._torch.cuda.synchronize(array.device)

    def close(self) -> None:
        """Leave the group."""
        self._torch.distributed.destroy_process_group()
