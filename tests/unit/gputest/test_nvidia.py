"""The NVIDIA back end's calls of PyTorch, on tensors of the host. They need PyTorch, not a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from muster.gputest import nvidia
from muster.gputest.backend import HOST, Array, Backend, Condition, Device, Sample, Sizes
from muster.gputest.codes import Code
from muster.gputest.context import Context
from muster.gputest.drill import FAULTS
from muster.gputest.figures import PRECISIONS
from muster.gputest.nvidia import NvidiaBackend
from muster.gputest.probes import matmul, memory, sustained, transfers
from muster.gputest.reference import ReferenceBackend
from muster.gputest.wire import Measured
from tests.unit.gputest.runs import Bench

pytest.importorskip("torch")
LAST = "CPU-0002"
TESTS = [memory.run, transfers.run, matmul.run, sustained.run]


class OnHost(NvidiaBackend):
    """Every tensor is on the host, and what NVML answers is the reference back end's."""

    def __init__(self) -> None:
        super().__init__()
        self._reference = ReferenceBackend(3)

    def devices(self) -> tuple[Device, ...]:
        return self._reference.devices()

    def condition(self, device: int) -> Condition:
        return self._reference.condition(device)

    def sample(self, device: int) -> Sample | None:
        return Sample(sm_clock_mhz=1980, power_w=700.5, temperature_c=60)

    def sizes(self, level: int) -> Sizes:
        return self._reference.sizes(level)

    def words(self, place: int, count: int) -> Array:
        return super().words(0 if place == HOST else place, count)

    def precisions(self, device: int) -> tuple[str, ...]:
        return PRECISIONS

    def multiply(self, device: int, a: Array, b: Array, precision: str) -> Array:
        if precision == "fp8":
            assert b.stride() == (1, len(b)), "cuBLAS multiplies fp8 only by a second operand in columns"
        return super().multiply(device, a, b, precision)

    def _on(self, device: int) -> str:
        return "cpu"

    def _wait(self, devices: Sequence[int]) -> None:
        pass


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    monkeypatch.setattr(nvidia, "Nvml", lambda: None)
    return OnHost()


@pytest.mark.parametrize("test", TESTS)
def test_a_healthy_device_passes_and_its_figures_are_plain_numbers(
    backend: Backend, test: Callable[[Context], Any]
) -> None:
    bench = Bench(backend).run(test)
    assert bench.failed == set()
    measured = [event for event in bench.events if isinstance(event, Measured)]
    assert measured
    assert {type(event.value) for event in measured} == {float}
    for event in bench.events:
        assert msgspec.json.decode(msgspec.json.encode(event), type=type(event)) == event


@pytest.mark.parametrize(
    ("test", "found"),
    [
        (memory.run, {Code.WRONG_WORD}),
        (transfers.run, {Code.WRONG_COPY}),
        (matmul.run, {Code.WRONG_PRODUCT, Code.NOT_REPEATABLE}),
        (sustained.run, {Code.NOT_REPEATABLE}),
    ],
)
def test_a_wrong_bit_is_found(backend: Backend, test: Callable[[Context], Any], found: set[Code]) -> None:
    bench = Bench(FAULTS["wrong-result"](backend)).run(test)
    assert found <= {code for code, _ in bench.failed}
    assert {gpu for _, gpu in bench.failed} == {LAST}
