"""Injects faults for drills: a back end whose last device computes wrongly, is slow, hangs or is missing.

This shows that each detector finds its fault, in tests and on a node (`--inject`, docs/gputest.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from muster.gputest.backend import Array, Communicator, Device
from muster.gputest.patterns import Pattern
from muster.gputest.wrapper import Wrapper

_SLOWER = 100


class _WrongResult(Wrapper):
    """The last device changes one bit of its results, but only in every third product, as intermittent faults do."""

    _products = 0

    def _victim(self, device: int) -> bool:
        return device == self.devices()[-1].index

    def fill(self, device: int, words: Array, pattern: Pattern, first: int = 0) -> None:
        super().fill(device, words, pattern, first)
        if self._victim(device):
            self.corrupt(words)

    def copy(self, device: int, target: Array, source: Array) -> None:
        super().copy(device, target, source)
        if self._victim(device):
            self.corrupt(target)

    def multiply(self, device: int, a: Array, b: Array, precision: str) -> Array:
        product = super().multiply(device, a, b, precision)
        if self._victim(device):
            self._products += 1
            if self._products % 3 == 1:
                self.corrupt(product)
        return product

    def reduce(self, device: int, communicator: Communicator, array: Array) -> None:
        super().reduce(device, communicator, array)
        if self._victim(device):
            self.corrupt(array)


class _Slow(Wrapper):
    """The last device takes 100 times as long."""

    def timed(self, devices: Sequence[int], work: Callable[[], object]) -> float:
        took_s = super().timed(devices, work)
        return took_s * _SLOWER if self.devices()[-1].index in devices else took_s


class _Hang(Wrapper):
    """The last device never responds."""

    def fill(self, device: int, words: Array, pattern: Pattern, first: int = 0) -> None:
        self._stop_at(device)
        super().fill(device, words, pattern, first)

    def copy(self, device: int, target: Array, source: Array) -> None:
        self._stop_at(device)
        super().copy(device, target, source)

    def multiply(self, device: int, a: Array, b: Array, precision: str) -> Array:
        self._stop_at(device)
        return super().multiply(device, a, b, precision)

    def reduce(self, device: int, communicator: Communicator, array: Array) -> None:
        self._stop_at(device)
        super().reduce(device, communicator, array)

    def _stop_at(self, device: int) -> None:
        if device == self.devices()[-1].index:
            _never()


class _MissingGpu(Wrapper):
    """The last device is missing from the driver's list, as if it fell off the bus."""

    def devices(self) -> tuple[Device, ...]:
        return super().devices()[:-1]


def _never() -> NoReturn:
    while True:
        time.sleep(3600)


FAULTS: dict[str, type[Wrapper]] = {
    "wrong-result": _WrongResult,
    "slow": _Slow,
    "hang": _Hang,
    "missing-gpu": _MissingGpu,
}
