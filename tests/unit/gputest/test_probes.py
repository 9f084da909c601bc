"""What each test is there to find, on a back end that has just that."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from muster.gputest.backend import HOST, Array, Condition, Device, Sample
from muster.gputest.codes import Code
from muster.gputest.context import Context
from muster.gputest.drill import FAULTS
from muster.gputest.patterns import Pattern
from muster.gputest.probes import allreduce, matmul, memory, peers, sustained, transfers, visibility
from muster.gputest.reference import ReferenceBackend
from muster.gputest.wire import Measured, RankPlan, RankResult, Setup
from muster.gputest.wrapper import Wrapper
from tests.unit.gputest.runs import Bench

LAST = "CPU-0002"
HEALTHY = Condition(memory_free_bytes=1 << 20, ecc_enabled=True, ecc_pending=True)


def is_last(device: int) -> bool:
    return device == 2


class Ailing(Wrapper):
    """The last of three devices is in a given condition."""

    def __init__(self, condition: Condition, sample: Sample | None = None):
        super().__init__(ReferenceBackend(3))
        self._condition, self._sample = condition, sample

    def condition(self, device: int) -> Condition:
        return self._condition if is_last(device) else HEALTHY

    def sample(self, device: int) -> Sample | None:
        cool = Sample(sm_clock_mhz=1980, power_w=500, temperature_c=60)
        return self._sample if is_last(device) else cool


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"processes": (4711,)}, Code.LEFTOVER_PROCESS),
        ({"memory_free_bytes": 1 << 19}, Code.MEMORY_TAKEN),
        ({"ecc_enabled": False, "ecc_pending": False}, Code.ECC_OFF),
        ({"ecc_pending": False}, Code.ECC_PENDING),
        ({"remap_pending": True}, Code.ROW_REMAP_PENDING),
        ({"remap_failed": True}, Code.ROW_REMAP_FAILED),
        ({"retirement_pending": True}, Code.PAGE_RETIREMENT_PENDING),
    ],
)
def test_driver_errors_of_a_gpu_count(change: dict[str, Any], code: Code) -> None:
    bench = Bench(Ailing(msgspec.structs.replace(HEALTHY, **change))).run(visibility.run)
    assert bench.failed == {(code, LAST)}


def test_a_model_without_ecc_is_not_blamed_for_it() -> None:
    none = msgspec.structs.replace(HEALTHY, ecc_enabled=None, ecc_pending=None)
    assert Bench(Ailing(none)).run(visibility.run).failed == set()


def test_a_kernel_module_of_another_version_is_a_mismatch() -> None:
    class Mixed(Wrapper):
        def versions(self) -> dict[str, str]:
            return {"driver": "580.159.04", "kernel_module": "580.95.05"}

    assert Bench(Mixed(ReferenceBackend(1))).run(visibility.run).failed == {(Code.DRIVER_MISMATCH, "")}


def test_two_gpus_with_one_identity_are_found() -> None:
    class Twins(Wrapper):
        def devices(self) -> tuple[Device, ...]:
            return tuple(msgspec.structs.replace(device, uuid="CPU-0000") for device in super().devices())

        def computing_uuids(self) -> tuple[str, ...]:
            return ("CPU-0000", "CPU-0000")

    assert Bench(Twins(ReferenceBackend(2))).run(visibility.run).failed == {(Code.DUPLICATE_GPU, "")}


def test_a_gpu_that_the_driver_shows_and_cuda_does_not_is_missing() -> None:
    class Shy(Wrapper):
        def computing_uuids(self) -> tuple[str, ...]:
            return super().computing_uuids()[:-1]

    assert Bench(Shy(ReferenceBackend(2))).run(visibility.run).failed == {(Code.GPU_COUNT, "")}


class Memory(Wrapper):
    """Three devices; the memory of the last one has a fault that `spoil` works on each array that is written."""

    def __init__(self, spoil: Callable[[Array], None]):
        super().__init__(ReferenceBackend(3))
        self._spoil = spoil

    def fill(self, device: int, words: Array, pattern: Pattern, first: int = 0) -> None:
        super().fill(device, words, pattern, first)
        if is_last(device):
            self._spoil(words)


def stuck_at_one(words: Array) -> None:
    words[100] |= 1 << 40


def stuck_at_zero(words: Array) -> None:
    words[100] &= ~(1 << 40)


def aliased(words: Array) -> None:
    words[100] = words[1124]


def coupled(words: Array) -> None:
    words[100] |= (words[100] & 1 << 16) << 1


@pytest.mark.parametrize("spoil", [stuck_at_one, stuck_at_zero, aliased, coupled])
def test_no_fault_of_memory_goes_unseen(spoil: Callable[[Array], None]) -> None:
    assert Bench(Memory(spoil)).run(memory.run).failed == {(Code.WRONG_WORD, LAST)}


class Products(Wrapper):
    """The last of three devices changes its products in a way of its own."""

    def __init__(self, spoil: Callable[[Array, int], None]):
        super().__init__(ReferenceBackend(3))
        self._spoil, self._count = spoil, 0

    def multiply(self, device: int, a: Array, b: Array, precision: str) -> Array:
        product = super().multiply(device, a, b, precision)
        if is_last(device):
            self._count += 1
            self._spoil(product, self._count)
        return product


def flip(product: Array, bit: int) -> None:
    product.reshape(-1).view(f"u{product.itemsize}")[17] ^= 1 << bit


def of_integers(product: Array) -> bool:
    return bool((product == np.round(product)).all())


def test_one_wrong_bit_in_any_product_shows_against_the_known_one() -> None:
    found = Bench(Products(lambda product, _: flip(product, 0) if of_integers(product) else None)).run(matmul.run)
    assert found.failed == {(Code.WRONG_PRODUCT, LAST)}


def test_a_gross_error_in_full_precision_shows_in_the_projection() -> None:
    def spoil(product: Array, _: int) -> None:
        if not of_integers(product):
            product[3, 5] *= 64

    found = Bench(Products(spoil)).run(matmul.run)
    assert (Code.WRONG_PRODUCT, LAST) in found.failed


def test_a_product_that_is_not_a_number_is_wrong() -> None:
    def spoil(product: Array, _: int) -> None:
        if not of_integers(product):
            product[3, 5] = np.nan

    assert (Code.WRONG_PRODUCT, LAST) in Bench(Products(spoil)).run(matmul.run).failed


def test_a_lowest_bit_that_is_wrong_each_time_shows_between_gpus() -> None:
    found = Bench(Products(lambda product, _: None if of_integers(product) else flip(product, 0))).run(matmul.run)
    assert found.failed == {(Code.GPUS_DISAGREE, LAST)}


def test_a_lowest_bit_that_is_wrong_now_and_then_shows_between_runs() -> None:
    def spoil(product: Array, count: int) -> None:
        if not of_integers(product) and count % 4 == 0:
            flip(product, 0)

    found = Bench(Products(spoil)).run(matmul.run)
    assert (Code.NOT_REPEATABLE, LAST) in found.failed


def test_disagreement_of_two_gpus_blames_neither() -> None:
    class Pair(Wrapper):
        def multiply(self, device: int, a: Array, b: Array, precision: str) -> Array:
            product = super().multiply(device, a, b, precision)
            if device == 1 and not of_integers(product):
                flip(product, 0)
            return product

    assert Bench(Pair(ReferenceBackend(2))).run(matmul.run).failed == {(Code.GPUS_DISAGREE, "")}


class ByColumns(ReferenceBackend):
    """Multiplies only by second operands in columns, as scaled products of fp8 do."""

    def operands(self, device: int, a: Any, b: Any, precision: str) -> tuple[Array, Array]:
        first, second = super().operands(device, a, b, precision)
        return first, np.asfortranarray(second)

    def multiply(self, device: int, a: Array, b: Array, precision: str) -> Array:
        assert b.flags.f_contiguous
        return super().multiply(device, a, b, precision)


@pytest.mark.parametrize("test", [matmul.run, sustained.run])
def test_operands_get_their_layout_before_products_are_timed(test: Callable[[Context], Any]) -> None:
    assert Bench(Wrapper(ByColumns(2))).run(test).failed == set()


def test_clocks_that_hardware_holds_down_under_load_fail() -> None:
    hot = Sample(sm_clock_mhz=900, power_w=300, temperature_c=92, slowdowns=("hardware thermal slowdown",))
    bench = Bench(Ailing(HEALTHY, hot)).run(sustained.run)
    assert bench.failed == {(Code.THROTTLED, LAST)}
    assert sorted(bench.figures("temperature_max_c")) == [60, 60, 92]


def test_a_product_that_changes_under_load_is_found() -> None:
    bench = Bench(FAULTS["wrong-result"](ReferenceBackend(3))).run(sustained.run)
    assert bench.failed == {(Code.NOT_REPEATABLE, LAST)}


def test_node_without_peers_reports_it_and_does_not_hang() -> None:
    with allreduce.held_port() as port:
        bench = Bench(ReferenceBackend(1), deadline_s=0.1, meeting=("127.0.0.1", port))
        assert bench.run(allreduce.run_between_nodes).failed == {(Code.RANK_FAILED, "CPU-0000")}


def test_port_of_ranks_is_theirs_until_they_have_met() -> None:
    with allreduce.held_port() as port:
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port), 20):
            pass


def test_output_of_libraries_is_not_taken_for_the_result_of_a_rank() -> None:
    """With NCCL_DEBUG set, NCCL's lines may leave their buffer when the process exits, after the result."""
    setup = Setup(backend="cpu:1", level=1, scratch=".")
    plan = RankPlan(
        setup=setup, device=0, rank=0, ranks=1, address="127.0.0.1", port=0, count=251, rounds=1, timeout_s=20
    )
    program = (
        "import atexit, os\natexit.register(os.write, 1, b'NCCL INFO\\n')\n"
        "from muster.gputest.rank import main\nmain()\n"
    )
    command = [sys.executable, "-c", program, msgspec.json.encode(plan).decode()]
    ended = subprocess.run(command, capture_output=True, check=True, timeout=60)
    result = msgspec.json.decode(ended.stdout, type=RankResult)
    assert (result.error, result.wrong, len(result.seconds)) == ("", "", 1)
    assert ended.stderr == b"NCCL INFO\n"


@pytest.mark.parametrize("value", [np.float32(3.5), np.int64(3), 3])
def test_figures_are_sent_as_plain_numbers(value: float) -> None:
    bench = Bench(ReferenceBackend(1))
    bench.figure(None, "disk_read_mb_per_s", value)
    (event,) = bench.events
    assert msgspec.json.decode(msgspec.json.encode(event), type=Measured) == Measured("", "disk_read_mb_per_s", value)
    assert [type(each) for each in bench.figures("disk_read_mb_per_s")] == [float]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_figure_that_is_not_a_number_is_an_error_of_its_test(value: float) -> None:
    with pytest.raises(ValueError, match="disk_read_mb_per_s is"):
        Bench(ReferenceBackend(1)).figure(None, "disk_read_mb_per_s", value)


def test_one_gpu_has_no_peers() -> None:
    assert Bench(ReferenceBackend(1)).run(peers.run).skipped


class Busy(Wrapper):
    """Keeps who asked how long something takes, and where the host's memory lay."""

    round_s = 0.002

    def __init__(self) -> None:
        super().__init__(ReferenceBackend(3))
        self.asking: set[threading.Thread] = set()
        self.host: list[weakref.ref[Array]] = []
        self.multiplied = 0

    def timed(self, devices: Sequence[int], work: Callable[[], object]) -> float:
        self.asking.add(threading.current_thread())
        return super().timed(devices, work)

    def words(self, place: int, count: int) -> Array:
        if place == HOST:
            assert all(each() is not None for each in self.host), "it is handed out again, where the one before lay"
        made = super().words(place, count)
        if place == HOST:
            self.host.append(weakref.ref(made))
        return made

    def multiply(self, device: int, a: Array, b: Array, precision: str) -> Array:
        self.multiplied += 1
        return super().multiply(device, a, b, precision)


@pytest.mark.parametrize("test", [memory.run, matmul.run])
def test_no_gpu_seems_slow_because_threads_of_ours_wait_for_each_other(test: Callable[[Context], None]) -> None:
    backend = Busy()
    assert Bench(backend).run(test).failed == set()
    assert backend.asking == {threading.current_thread()}


def test_short_measurements_are_repeated() -> None:
    class Timed(Busy):
        """A product takes 10 microseconds, whatever this machine does."""

        def timed(self, devices: Sequence[int], work: Callable[[], object]) -> float:
            before = self.multiplied
            work()
            return (self.multiplied - before) * 1e-5

    backend = Timed()
    bench = Bench(backend)
    a = backend.upload(0, np.ones((8, 8)), "fp32")
    bench.rate([0], 1.0, lambda: backend.multiply(0, a, a, "fp32"))
    assert backend.multiplied > 100


def test_each_gpu_is_copied_to_from_memory_of_its_own() -> None:
    """Memory near one GPU is far from another, and copies from there are below its floor."""
    backend = Busy()
    assert Bench(backend).run(transfers.run).failed == set()
    assert len(backend.host) == 3
