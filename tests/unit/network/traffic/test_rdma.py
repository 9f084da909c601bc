"""RDMA ports by files as the kernel shows them, and processes with open devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.network.traffic.backend import Count, CounterKey
from muster.network.traffic.rdma import RDMA, RdmaPort, charged, device_users, port_counts, read_ports


def device(sys: Path, name: str, number: int, files: dict[str, str]) -> None:
    """Write the files of a device with one port."""
    port = sys / "class/infiniband" / name / "ports/1"
    for path, value in files.items():
        file = port / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")
    verbs = sys / f"class/infiniband_verbs/uverbs{number}"
    verbs.mkdir(parents=True)
    (verbs / "ibdev").write_text(f"{name}\n")


def words(received: int, sent: int) -> dict[str, str]:
    """Return counters of data in words, and of packets."""
    return {
        "counters/port_rcv_data": str(received),
        "counters/port_xmit_data": str(sent),
        "counters/port_rcv_packets": "7",
        "counters/port_xmit_packets": "9",
    }


def test_data_of_ports_is_counted_in_words_of_four_bytes(tmp_path: Path) -> None:
    """InfiniBand and RoCE."""
    device(tmp_path, "mlx5_0", 0, words(1000, 2**40))
    assert read_ports(tmp_path) == [RdmaPort("mlx5_0", "1", Count(7, 4000), Count(9, 2**42))]


def test_efa_counts_bytes_in_its_hardware_counters(tmp_path: Path) -> None:
    """AWS's adapter has no folder `counters`."""
    files = {"hw_counters/rx_bytes": "10", "hw_counters/tx_bytes": "20", "hw_counters/tx_pkts": "2"}
    device(tmp_path, "rdmap0s6", 0, files)
    assert read_ports(tmp_path) == [RdmaPort("rdmap0s6", "1", Count(0, 10), Count(2, 20))]


@pytest.mark.parametrize("value", ["N/A", ""])
def test_ports_without_counters_are_left_out(tmp_path: Path, value: str) -> None:
    """A driver may not know a counter; a node may have no RDMA."""
    assert read_ports(tmp_path) == []
    device(tmp_path, "bnxt_re0", 0, {"counters/port_rcv_data": value, "counters/port_xmit_data": "1"})
    assert read_ports(tmp_path) == []


def test_counter_of_32_bits_that_has_stopped_is_reported(tmp_path: Path) -> None:
    """It stays at its largest value."""
    device(tmp_path, "mthca0", 0, words(0xFFFFFFFF, 5))
    device(tmp_path, "mlx5_0", 1, words(0xFFFFFFFF + 1, 5))
    assert [(each.device, each.saturated) for each in read_ports(tmp_path)] == [("mlx5_0", False), ("mthca0", True)]


def test_users_of_a_device_are_the_jobs_whose_processes_hold_it_open(tmp_path: Path) -> None:
    """Other files are ignored, and so is a process that has ended."""
    sys, proc = tmp_path / "sys", tmp_path / "proc"
    device(sys, "mlx5_0", 0, words(0, 0))
    device(sys, "mlx5_1", 1, words(0, 0))
    for process, paths in ((10, ["/dev/infiniband/uverbs0", "/dev/null"]), (20, ["/dev/infiniband/uverbs1"])):
        (proc / str(process) / "fd").mkdir(parents=True)
        for number, path in enumerate(paths):
            (proc / str(process) / "fd" / str(number)).symlink_to(path)
    found = device_users({"one": [10, 99], "two": [20], "idle": []}, proc_root=proc, sys_root=sys)
    assert found == {"mlx5_0": {"one"}, "mlx5_1": {"two"}}


def test_bytes_of_a_port_are_charged_to_its_only_user_or_to_none() -> None:
    """In use by one job at either look; by two; by one after the other; by none."""
    ports = [RdmaPort(name, "1", Count(0, 0), Count(0, 0)) for name in ("a", "b", "c", "d", "e")]
    one, two = frozenset({"one"}), frozenset({"two"})
    before = {"a": one, "b": one, "c": one | two, "d": one}
    now = {"a": one, "c": one | two, "d": two}
    assert charged(before, now, ports) == {"rdma:a/1": "one", "rdma:b/1": "one", "rdma:c/1": None, "rdma:d/1": None}


def test_counts_of_ports_have_the_form_of_subjects() -> None:
    """So the ledger keeps them as it keeps those of pods."""
    assert port_counts([RdmaPort("mlx5_0", "1", Count(1, 4), Count(2, 8))]) == {
        CounterKey("rdma:mlx5_0/1", RDMA, "in"): Count(1, 4),
        CounterKey("rdma:mlx5_0/1", RDMA, "out"): Count(2, 8),
    }
