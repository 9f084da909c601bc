"""Takes one sample of all GPUs with NVML. Values that a model lacks are left out; a lost GPU is marked as lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ctypes import c_void_p
from typing import Final, TypeVar

from muster.agent.checks.gpusample import CHECK, Gpu
from muster.agent.checks.nvml import (
    CORRECTED,
    CRC_DATA,
    CRC_FLIT,
    DRAM,
    GPU_IS_LOST,
    LINKS_MAX,
    RECOVERY,
    REPLAY,
    RESET_REQUIRED,
    SRAM,
    UNCORRECTED,
    Nvml,
    NvmlError,
)
from muster.fleet.health.patterns import pci_address
from muster.kube.counters import NUMBER_MAX

T = TypeVar("T")

_HELD_BYTES: Final = 1 << 30
"""More memory than this without a process cannot be a rounding error."""
_ERRORS: Final = (
    ("uncorrected-dram", UNCORRECTED, DRAM), ("uncorrected-sram", UNCORRECTED, SRAM),
    ("corrected-dram", CORRECTED, DRAM), ("corrected-sram", CORRECTED, SRAM),
)  # fmt: skip
_LINK_COUNTERS: Final = ((REPLAY, "replay"), (RECOVERY, "recovery"), (CRC_FLIT, "crc"), (CRC_DATA, "crc"))

Judge = Callable[[Sequence[int], int], dict[str, str]]
"""(process IDs, bytes held) -> unexpected contexts, by code."""


def sample(nvml: Nvml, on_bus: Sequence[str], judge: Judge) -> Iterator[Gpu]:
    """Yield a sample of each GPU.

    Args:
        nvml: a session.
        on_bus: PCI addresses of all GPUs, to name a GPU that NVML cannot open.
        judge: returns unexpected contexts.

    Raises:
        NvmlError: the number of GPUs is not known.
    """
    silent, known = [], set[str]()
    for index in range(nvml.count()):
        try:
            device = nvml.device(index)
            address = pci_address(nvml.pci_address(device))
        except NvmlError as error:
            silent.append((index, error))
            continue
        known.add(address)
        yield _sample(nvml, device, address, judge)
    unknown = [address for address in on_bus if address not in known]
    for index, trouble in silent:
        name = unknown[0] if len(silent) == len(unknown) == 1 else f"gpu{index}"
        yield Gpu(name, states={(CHECK, "lost"): str(trouble)})


def _sample(nvml: Nvml, device: c_void_p, address: str, judge: Judge) -> Gpu:
    states: dict[tuple[str, str], str] = {}

    def ask(call: Callable[[], T]) -> T | None:
        """Return the answer; None if the call failed, which may set a state of the GPU."""
        try:
            return call()
        except NvmlError as error:
            if error.code == GPU_IS_LOST:
                states[CHECK, "lost"] = str(error)
            elif error.code == RESET_REQUIRED:
                states[CHECK, "reset-required"] = str(error)
            return None

    counters: dict[tuple[str, str, int], int] = {}

    def count(check: str, code: str, part: int, value: int | None) -> None:
        if value is not None and value != NUMBER_MAX:  # a GPU that is gone reads as all ones
            counters[check, code, part] = value

    for code, kind, place in _ERRORS:
        count("ecc", code, 0, ask(lambda kind=kind, place=place: nvml.memory_errors(device, kind, place)))  # type: ignore[misc]
    if ask(lambda: nvml.sram_threshold_exceeded(device)):
        states["ecc", "sram-threshold"] = "the threshold of uncorrectable errors within the chip is exceeded"
    remapped, pending, failed = ask(lambda: nvml.remapped_rows(device)) or (None, False, False)
    count("rows", "remapped", 0, remapped)
    retired, waiting = ask(lambda: nvml.retired_pages(device)) or (None, False)
    count("rows", "retired", 0, retired)
    if pending or waiting:
        states["rows", "pending"] = "a row or page is replaced at the next reset"
    if failed:
        states["rows", "failed"] = "a row could not be replaced"
    if banks := ask(lambda: nvml.banks_without_spare_rows(device)):
        states["rows", "no-spares"] = f"{banks} banks have no spare rows left"
    links = {}
    for link in range(LINKS_MAX):
        up = ask(lambda link=link: nvml.link_is_active(device, link))  # type: ignore[misc]
        if up is None:
            break  # the GPU has only the links before this one
        links[link] = up
        for number, code in _LINK_COUNTERS if up else ():
            value = ask(lambda link=link, number=number: nvml.link_errors(device, link, number))  # type: ignore[misc]
            count("nvlink", code, link * len(_LINK_COUNTERS) + number, value)
    processes = ask(lambda: nvml.processes(device))
    held = ask(lambda: nvml.memory_held_bytes(device))
    throttle = ask(lambda: nvml.throttle_reasons(device)) or 0
    contexts = judge(processes, held or 0) if processes is not None else {}
    return Gpu(address, counters, states, throttle, links, None, contexts)


def is_held_without_process(processes: Sequence[int], held_bytes: int) -> bool:
    """Return whether memory of a GPU is held although no process uses the GPU."""
    return not processes and held_bytes > _HELD_BYTES
