"""The check `nic` on files as the kernel's: InfiniBand ports and Ethernet interfaces."""

from __future__ import annotations

import json
import os
import shutil

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.check import Host, Setup
from muster.agent.checks.nic import NicCheck, make
from muster.agent.checks.ports import CODES
from muster.fleet.health.finding import Finding
from muster.kube.counters import rise
from tests.unit.agent.checks.conftest import write


class Node:
    def __init__(self, host: Host) -> None:
        self.host = host
        self.now_s = 1000.0

    def infiniband(self, name: str = "mlx5_0", **values: object) -> None:
        """Make or change a port: counters by name, or state, phys_state and rate."""
        folder = self.host.sys / f"class/infiniband/{name}"
        pci = self.host.sys / f"devices/pci0000:00/{name}"
        write(pci / "driver/bind", "")
        port = folder / "ports/1"
        if not folder.exists():
            write(folder / "board_id", "MT_0000000838\n")
            (folder / "device").symlink_to(pci)
            usual = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
            counters = ("link_downed", "symbol_error", "excessive_buffer_overrun_errors", "local_link_integrity_errors")
            values = {**usual, **dict.fromkeys((*counters, "rnr_nak_retry_err"), 0), **values}
        for key, value in values.items():
            place = {"state": ".", "phys_state": ".", "rate": ".", "rnr_nak_retry_err": "hw_counters"}
            write(port / place.get(key, "counters") / key, f"{value}\n")

    def ethernet(self, name: str = "eth0", *, bus: str = "pci0000:00", **values: object) -> None:
        folder = self.host.sys / f"class/net/{name}"
        device = self.host.sys / f"devices/{bus}/{name}"
        write(device / "driver/bind", "")
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / "device").symlink_to(device)
            usual = {"flags": "0x1003", "operstate": "up", "speed": 100000, "carrier_changes": 1}
            values = {**usual, "rx_errors": 0, "tx_errors": 0, **values}
        for key, value in values.items():
            write(folder / ("statistics" if key.endswith("errors") else ".") / key, f"{value}\n")

    def check(self, **options: object) -> NicCheck:
        return make(Setup(node="n", host=self.host, options=msgspec.Raw(json.dumps(options).encode())))

    async def look(self, check: NicCheck) -> list[Finding]:
        self.now_s += 30
        found = list(await check.look(self.now_s))
        assert {(each.check, each.code) for each in found} <= CODES
        return found


@pytest.fixture
def node(host: Host) -> Node:
    return Node(host)


def said(findings: list[Finding]) -> list[tuple[str, str, int]]:
    return [(each.component, each.code, each.count) for each in findings]


@pytest.mark.parametrize(
    "code",
    ["link_downed", "excessive_buffer_overrun_errors", "local_link_integrity_errors", "rnr_nak_retry_err",
     "symbol_error"],
)  # fmt: skip
async def test_counters_of_infiniband_that_change(node: Node, code: str) -> None:
    node.infiniband(**{code: 3})
    node.infiniband("mlx5_1")
    check = node.check()
    assert await node.look(check) == []  # before the agent began: links are trained at boot
    node.infiniband(**{code: 5})
    assert said(await node.look(check)) == [("mlx5_0/1", code, 2)]
    assert await node.look(check) == []


async def test_a_counter_that_stands_at_its_end_hides_errors(node: Node) -> None:
    node.infiniband(excessive_buffer_overrun_errors=15)
    found = [each for _ in range(5) for each in await node.look(node.check())]
    assert {(each.component, each.code) for each in found} == {("mlx5_0/1", "saturated")}


async def test_a_port_that_goes_down_is_one_incident_until_it_is_up(node: Node) -> None:
    node.infiniband()
    check = node.check()
    await node.look(check)
    node.infiniband(state="1: DOWN", phys_state="2: Polling")
    found = [each for _ in range(60) for each in await node.look(check)]
    assert {(each.component, each.code, each.first_s) for each in found} == {("mlx5_0/1", "down", found[0].first_s)}
    node.infiniband(state="4: ACTIVE", phys_state="5: LinkUp")
    for _ in range(5):
        assert await node.look(check) == []
    node.infiniband(state="1: DOWN", phys_state="2: Polling")
    again = [each for _ in range(2) for each in await node.look(check)]
    assert [each.code for each in again] == ["down"]
    assert again[0].first_s > found[-1].last_s


async def test_a_port_without_a_cable_is_missed_only_where_one_is_expected(node: Node) -> None:
    node.infiniband(state="1: DOWN", phys_state="2: Polling")
    plain, wanting = node.check(), node.check(expect={"mlx5_*/1": 400})
    assert [await node.look(plain) for _ in range(3)] == [[]] * 3
    found = [each for _ in range(3) for each in await node.look(wanting)]
    assert said(found) == [("mlx5_0/1", "down", 1)]


async def test_disabled_port_does_not_count_as_down(node: Node) -> None:
    node.infiniband()
    node.ethernet()
    check = node.check()
    await node.look(check)
    node.infiniband(state="1: DOWN", phys_state="3: Disabled")
    node.ethernet(flags="0x1002", operstate="down")
    assert [await node.look(check) for _ in range(3)] == [[]] * 3


async def test_a_link_that_came_back_slower(node: Node) -> None:
    node.infiniband()
    node.ethernet()
    check = node.check()
    await node.look(check)
    node.infiniband(rate="200 Gb/sec (4X HDR)")
    node.ethernet(speed=25000)
    found = [each for _ in range(3) for each in await node.look(check)]
    assert said(found) == [("mlx5_0/1", "speed", 1), ("eth0", "speed", 1)]
    assert found[0].message == "200 Gbit/s instead of 400"


async def test_a_link_that_is_slower_than_its_siblings_from_the_start(node: Node) -> None:
    for index in range(8):
        node.infiniband(f"mlx5_{index}", rate="100 Gb/sec (4X EDR)" if index == 5 else "400 Gb/sec (4X NDR)")
    check = node.check()
    found = [each for _ in range(3) for each in await node.look(check)]
    assert said(found) == [("mlx5_5/1", "speed", 1)]


async def test_ethernet_flaps_and_errors(node: Node) -> None:
    node.ethernet(carrier_changes=1)
    node.ethernet("eth1", carrier_down_count=0)
    check = node.check()
    await node.look(check)
    node.ethernet(carrier_changes=7, rx_errors=4, tx_errors=1)
    node.ethernet("eth1", carrier_down_count=1, carrier_changes=3)
    assert sorted(said(await node.look(check))) == [("eth0", "errors", 5), ("eth0", "flap", 3), ("eth1", "flap", 1)]


async def test_a_card_that_is_gone(node: Node) -> None:
    node.infiniband()
    node.infiniband("mlx5_1")
    check = node.check()
    await node.look(check)
    for place in ("class/infiniband/mlx5_0", "devices/pci0000:00/mlx5_0"):
        shutil.rmtree(node.host.sys / place)
    found = [each for _ in range(3) for each in await node.look(check)]
    assert said(found) == [("mlx5_0/1", "gone", 1)]


async def test_an_interface_that_moved_into_a_pod_is_not_gone(node: Node) -> None:
    node.ethernet()
    node.ethernet("eth1")
    check = node.check()
    await node.look(check)
    shutil.rmtree(node.host.sys / "class/net/eth1")
    assert [await node.look(check) for _ in range(4)] == [[]] * 4
    node.ethernet("eth1", carrier_changes=9)
    assert said(await node.look(check)) == [("eth1", "flap", 4)]


async def test_other_devices_are_not_checked(node: Node) -> None:
    (node.host.sys / "class/net/lo").mkdir(parents=True)
    node.ethernet("usb0", bus="pci0000:00/usb1")
    node.ethernet("eth0v3")
    write(node.host.sys / "devices/pci0000:00/eth0v3/physfn/vendor", "")
    plain, ignoring = node.check(), node.check(ignore=["eth*"])
    node.ethernet()
    for check in (plain, ignoring):
        await node.look(check)
    for name, bus in (("eth0", "pci0000:00"), ("eth0v3", "pci0000:00"), ("usb0", "pci0000:00/usb1")):
        node.ethernet(name, bus=bus, operstate="down")
    assert [await node.look(ignoring) for _ in range(3)] == [[]] * 3
    found = [each for _ in range(3) for each in await node.look(plain)]
    assert said(found) == [("eth0", "down", 1)]


async def test_ports_that_come_after_the_agent_are_seen(node: Node) -> None:
    check = node.check()
    assert await node.look(check) == []
    node.infiniband(link_downed=1)
    assert await node.look(check) == []
    node.infiniband(link_downed=2)
    assert said(await node.look(check)) == [("mlx5_0/1", "link_downed", 1)]


@pytest.mark.parametrize("text", ["", "garbage", "-1", "99999999999999999999999", "0x10", "١٢", "\x00\xff", "256"])
async def test_garbage_in_counters_counts_as_no_sample(node: Node, text: str) -> None:
    node.infiniband(link_downed=1)
    node.ethernet()
    check = node.check()
    await node.look(check)
    node.infiniband(link_downed=text, rate=text)
    node.ethernet(carrier_changes=text if text != "256" else "x", speed=-1)
    assert await node.look(check) == []
    node.infiniband(link_downed=1, rate="400 Gb/sec (4X NDR)")
    assert await node.look(check) == []


@pytest.mark.parametrize("text", ["", "garbage", "256"])
async def test_errors_that_came_while_a_counter_did_not_answer_are_not_lost(node: Node, text: str) -> None:
    check = node.check()
    for shown in (1, text):
        node.infiniband(link_downed=shown)
        assert await node.look(check) == []
    node.infiniband(link_downed=3)
    assert [(each.code, each.count) for each in await node.look(check)] == [("link_downed", 2)]


async def test_missing_files_cause_no_finding(node: Node) -> None:
    node.infiniband()
    node.ethernet()
    check = node.check()
    await node.look(check)
    for name in ("counters/link_downed", "hw_counters/rnr_nak_retry_err", "rate", "state"):
        os.remove(node.host.sys / "class/infiniband/mlx5_0/ports/1" / name)
    os.remove(node.host.sys / "class/net/eth0/operstate")
    assert [await node.look(check) for _ in range(3)] == [[]] * 3


@pytest.mark.parametrize("options", [{"expect": ["mlx5_0"]}, {"expect": {"mlx5_0": "fast"}}, {"ignore": 1}])
def test_settings_that_do_not_fit_are_refused(node: Node, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\$\."):
        node.check(**options)


@given(st.integers(0, 2**32 - 1) | st.integers(2**32 - 2**27, 2**32 - 1), st.integers(0, 2**27))
def test_a_counter_that_wraps_never_hides_what_came(old: int, more: int) -> None:
    assert rise(old, (old + more) % 2**32, 32) == more


@given(st.one_of(st.none(), st.integers()), st.one_of(st.none(), st.integers()), st.sampled_from([4, 8, 16, 32, 64]))
def test_a_rise_is_never_negative_or_more_than_there_is_room_for(old: int | None, new: int | None, bits: int) -> None:
    assert 0 <= rise(old, new, bits) < 1 << bits


def test_reset_counter_reports_only_the_increase_since() -> None:
    assert [rise(old, new, 32) for old, new in ((40, 0), (40, 3), (2**32 - 1, 2**31))] == [0, 3, 2**31]
