"""Figures that are too low fail the test that measured them."""

from __future__ import annotations

from muster.gputest.backend import Device
from muster.gputest.codes import REMEDIES, Code
from muster.gputest.floors import load
from muster.gputest.report import ProbeRun
from muster.gputest.verdict import below_floors, judged, slower_than_peers

H100 = tuple(
    Device(
        index=index,
        uuid=f"GPU-{index}",
        name="NVIDIA H100 80GB HBM3",
        pci_address=f"0000:{index:02x}:00.0",
        memory_bytes=85 << 30,
    )
    for index in range(8)
)
HEALTHY = {device.uuid: {"host_to_device_gb_per_s": 55.1 + device.index / 100} for device in H100}


def test_eight_healthy_gpus_pass() -> None:
    figures = {**HEALTHY, "": {"all_reduce_bus_gb_per_s": 471.0}}
    assert below_floors(H100, figures, load()) == []
    assert slower_than_peers(H100, figures, "n", 0) == []


def test_a_gpu_below_the_floor_and_slower_than_its_peers_is_both() -> None:
    figures = {**HEALTHY, "GPU-3": {"host_to_device_gb_per_s": 26.0}}
    (low,) = below_floors(H100, figures, load())
    (slow,) = slower_than_peers(H100, figures, "n", 0)
    assert (low.code, low.gpu, slow.code, slow.gpu) == ("below-floor", "GPU-3", "slower-than-peers", "GPU-3")


def test_a_slow_sum_is_the_nodes() -> None:
    (low,) = below_floors(H100, {"": {"all_reduce_bus_gb_per_s": 231.0}}, load())
    assert (low.test, low.gpu) == ("all-reduce", "")
    assert "460" in low.message
    passed = ProbeRun(name="all-reduce", outcome="passed", duration_s=1, deadline_s=2)
    other = ProbeRun(name="peers", outcome="passed", duration_s=1, deadline_s=2)
    assert [test.outcome for test in judged([passed, other], [low])] == ["failed", "passed"]


def test_every_code_has_a_remedy() -> None:
    assert set(REMEDIES) == set(Code)
