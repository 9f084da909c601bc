"""Compares samples of a node's GPUs from any source, and finds problems in them. It does not read anything itself.

The faults follow the NVML API Reference Guide (counters and pending actions) and NVIDIA's GPU memory error
management guide (row remapping). Counters count from the driver's start. The check reports only their increase
between two samples, so an agent that restarts does not report old errors again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from muster.agent.checks.sights import Seen, Sight
from muster.kube.counters import rises

CHECK: Final = "gpu"
THROTTLE: Final[Mapping[int, str]] = {
    0x08: "hw-slowdown", 0x20: "sw-thermal", 0x40: "hw-thermal", 0x80: "hw-power-brake",
}  # fmt: skip
"""Bits of nvmlClocksEventReasons that are reported. Power caps, idleness and user settings are not."""
_SAYS_WHY: Final = {"hw-thermal", "hw-power-brake"}

COUNTED: Final = frozenset(
    {
        ("ecc", "uncorrected-dram"), ("ecc", "uncorrected-sram"), ("ecc", "corrected-dram"), ("ecc", "corrected-sram"),
        ("rows", "remapped"), ("rows", "retired"), ("nvlink", "replay"), ("nvlink", "recovery"), ("nvlink", "crc"),
    }
)  # fmt: skip
LASTING: Final = frozenset(
    {
        ("ecc", "sram-threshold"), ("rows", "pending"), ("rows", "failed"), ("rows", "no-spares"), (CHECK, "lost"),
        (CHECK, "reset-required"),
    }
)  # fmt: skip
OF_NODE: Final = frozenset({(CHECK, "count"), (CHECK, "driver-mismatch"), (CHECK, "nvml"), (CHECK, "dcgm")})
CODES: Final = (
    COUNTED | LASTING | OF_NODE | {("throttle", code) for code in THROTTLE.values()}
    | {("nvlink", "inactive"), (CHECK, "leftover-context"), (CHECK, "foreign-context")}
)  # fmt: skip
"""In addition, dcgm-exporter's Xids are reported as `xid`."""

_LOOKS_COUNT: Final = 2
_LOOKS_CONTEXT: Final = 4
"""A program that ends frees its memory within seconds; a pod's sandbox is deleted before its processes have ended."""


class Gpu(NamedTuple):
    """One GPU in one sample. Values that the model lacks or did not report are missing."""

    component: str
    """Its PCI address, as in the kernel's log; its UUID if that is not known."""
    counters: Mapping[tuple[str, str, int], int] = {}
    """By (check, code, part): each link of a GPU is counted separately."""
    states: Mapping[tuple[str, str], str] = {}
    """Current states, each with a text."""
    throttle: int = 0
    links: Mapping[int, bool] = {}
    xid: int | None = None
    """The last Xid, if the kernel's log is not read for that; 0: none."""
    contexts: Mapping[str, str] = {}
    """Unexpected programs, by code."""


class Gpus(NamedTuple):
    """All GPUs of a node in one sample."""

    gpus: tuple[Gpu, ...] = ()
    on_bus: tuple[str, ...] = ()
    """PCI addresses of the GPUs for the driver."""
    off_bus: tuple[str, ...] = ()
    """Those among them that no longer respond on the bus."""
    problem: tuple[str, str] | None = None
    """(code, text) of why the GPUs could not be queried; None if they were."""


class GpuHistory:
    """The GPUs of a node over time.

    Args:
        expected: how many GPUs there should be; None: the highest number seen, on the bus or with the driver.
    """

    def __init__(self, expected: int | None) -> None:
        self._expected = expected
        self._most = 0
        self._last: dict[str, Gpu] = {}
        self._was_active: set[tuple[str, int]] = set()

    def take(self, sample: Gpus) -> Seen:
        """Take the next sample."""
        states = [Sight(CHECK, address, "lost", "it does not answer on the bus") for address in sample.off_bus]
        events: list[Sight] = []
        self._most = max(self._most, len(sample.on_bus), len(sample.gpus))
        if sample.problem is not None:
            if self._expected is None and not self._most:
                return Seen()  # the node has never had a GPU
            code, words = sample.problem
            return Seen((*states, Sight(CHECK, "", code, words, looks=_LOOKS_COUNT)))
        for gpu in sample.gpus:
            states += self._states(gpu, sample.gpus)
            events += self._events(gpu)
        should = self._expected if self._expected is not None else self._most
        answering = sum((CHECK, "lost") not in gpu.states for gpu in sample.gpus)
        if answering < should:
            words = f"{answering} of {should} expected GPUs answer; {len(sample.on_bus)} are on the bus"
            states.append(Sight(CHECK, "", "count", words, looks=_LOOKS_COUNT))
        for gpu in sample.gpus:  # a GPU that does not respond now is later compared with its last values
            last = self._last.get(gpu.component, gpu)
            self._last[gpu.component] = gpu._replace(counters={**last.counters, **gpu.counters})
        self._was_active |= {(gpu.component, link) for gpu in sample.gpus for link, up in gpu.links.items() if up}
        return Seen(tuple(states), tuple(events))

    def _events(self, gpu: Gpu) -> Iterable[Sight]:
        last = self._last.get(gpu.component)
        if last is not None:
            rose: dict[tuple[str, str], int] = {}
            for (check, code, _), count in rises(last.counters, gpu.counters).items():
                rose[check, code] = rose.get((check, code), 0) + count
            for (check, code), count in rose.items():
                yield Sight(check, gpu.component, code, f"{count} more since the last sample", times=count)
            if gpu.xid and gpu.xid != last.xid:
                yield Sight("xid", gpu.component, str(gpu.xid), "the last Xid that DCGM knows of")
        reasons = {code for bit, code in THROTTLE.items() if gpu.throttle & bit}
        if reasons & _SAYS_WHY:
            reasons.discard("hw-slowdown")
        for code in sorted(reasons):
            yield Sight("throttle", gpu.component, code, f"clocks are held down (0x{gpu.throttle:x})")

    def _states(self, gpu: Gpu, gpus: Sequence[Gpu]) -> Iterable[Sight]:
        for (check, code), words in gpu.states.items():
            yield Sight(check, gpu.component, code, words)
        for code, words in gpu.contexts.items():
            yield Sight(CHECK, gpu.component, code, words, looks=_LOOKS_CONTEXT)
        down = [
            link for link, up in gpu.links.items() if not up
            and ((gpu.component, link) in self._was_active or _all_up(link, gpu, gpus))
        ]  # fmt: skip
        if down:
            words = f"NVLinks that are down: {', '.join(map(str, sorted(down)))}"
            yield Sight("nvlink", gpu.component, "inactive", words, looks=_LOOKS_COUNT)


def _all_up(link: int, gpu: Gpu, gpus: Sequence[Gpu]) -> bool:
    """Return whether all other GPUs, at least three, have this link up: then it should be up here too."""
    others = [other.links.get(link, False) for other in gpus if other is not gpu]
    return len(others) >= 3 and all(others)
