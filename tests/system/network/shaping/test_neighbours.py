"""Other programs on the same links: their qdiscs and filters stay, and named reports do not repeat here."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.network.bpf.syscall import PROG_LOAD, BpfError, bpf, packed
from muster.network.shaping import program
from muster.network.shaping.attachments import Attachments, Side
from muster.network.shaping.links import links
from muster.network.shaping.tcx import programs_before
from muster.network.uplink.wire import Pair
from tests.support.flows import received_in, tcp_flow, udp_flow
from tests.support.networknamespaces import Network, Node, connected, need_namespaces, transfer
from tests.support.shaping import INTERNAL, MEGA, ShapedNode

ALL_PACKETS = "1,6 0 0 4294967295"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    need_namespaces("tc")
    with Network() as network:
        yield network.node(pods=3)


@contextlib.contextmanager
def shaped(node: Node, tmp_path: Path, internal: dict[str, bool] | None = None) -> Iterator[ShapedNode]:
    classes = INTERNAL if internal is None else {ipaddress.ip_network(net): each for net, each in internal.items()}
    made = ShapedNode(node, tmp_path / "classes.json", internal=classes)
    try:
        yield made
    finally:
        made.shaper.teardown()
        made.close()


@contextlib.contextmanager
def commands(node: Node, *lines: str) -> Iterator[None]:
    """Run tc commands on pod0's link, and take everything off it at the end."""
    try:
        for line in lines:
            node.host.run("tc", *split(line))
        yield
    finally:
        for place in ("root", "clsact", "ingress"):
            with contextlib.suppress(AssertionError):
                node.host.run("tc", "qdisc", "delete", "dev", "pod0", place)


def of_pod0(node: Node) -> str:
    host = node.host
    return "".join(
        (
            host.run("tc", "qdisc", "show", "dev", "pod0"),
            host.run("tc", "filter", "show", "dev", "pod0", "ingress"),
            host.run("tc", "filter", "show", "dev", "pod0", "egress"),
        )
    )


FOREIGN = {
    "a filter to the pod": (
        ("qdisc add dev pod0 clsact", f"filter add dev pod0 egress pref 1 bpf bytecode {ALL_PACKETS!r}"),
        "another program has filters (bpf, preference 1) to the pod",
    ),
    "a filter from the pod": (
        (
            "qdisc add dev pod0 clsact",
            "filter add dev pod0 ingress pref 9 protocol ip u32 match u32 0 0 flowid 1:1",
        ),
        "another program has filters (u32, preference 9) from the pod",
    ),
    "an ingress qdisc": (
        ("qdisc add dev pod0 handle ffff: ingress",),
        "another program, such as the bandwidth plugin, has the qdisc ingress on it",
    ),
    "a shared block": (
        ("qdisc add dev pod0 ingress_block 7 clsact",),
        "its filters are in a block that other links share",
    ),
}


def split(line: str) -> list[str]:
    """Words of a command, with the program of a filter as one word."""
    head, _, code = line.partition(" bytecode ")
    return [*head.split(), *(["bytecode", code.strip("'")] if code else [])]


@pytest.mark.parametrize("name", FOREIGN)
def test_link_with_filters_of_another_program_is_refused_and_left_alone(node: Node, tmp_path: Path, name: str) -> None:
    lines, why = FOREIGN[name]
    with commands(node, *lines):
        foreign = of_pod0(node)
        with shaped(node, tmp_path) as made:
            assert made.shaper.refused == {"pod0": why}
            assert made.shaper.attached == {"pod1", "pod2"}
            made.limit((1, 1), (1, 1))
            made.shaper.refresh()
            assert of_pod0(node) == foreign
        assert of_pod0(node) == foreign


@pytest.mark.parametrize("name", ["a filter to the pod", "a filter from the pod"])
def test_link_is_released_to_another_program_that_comes_later(node: Node, tmp_path: Path, name: str) -> None:
    (_, line), why = FOREIGN[name]
    with shaped(node, tmp_path) as made, commands(node, line):  # it finds the qdisc there
        made.shaper.refresh()
        foreign = of_pod0(node)
        assert made.shaper.refused == {"pod0": why}
        assert "mirred" not in foreign
        made.shaper.teardown()
        assert of_pod0(node) == foreign


def test_link_is_limited_once_the_other_program_is_gone(node: Node, tmp_path: Path) -> None:
    with shaped(node, tmp_path) as made:
        node.host.run("tc", *split(f"filter add dev pod0 egress pref 1 bpf bytecode {ALL_PACKETS!r}"))
        made.shaper.refresh()
        assert "pod0" in made.shaper.refused
        node.host.run("tc", "qdisc", "delete", "dev", "pod0", "clsact")
        made.shaper.refresh()
        assert not made.shaper.refused
        assert of_pod0(node).count("mirred") == 2


def attach_tcx(link: int) -> int:
    """Attach a program that lets all packets pass, as Cilium does; return the descriptor that keeps it there."""
    code = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0))
    license = ctypes.create_string_buffer(b"GPL")
    load = struct.pack("=IIQQ", 3, 2, ctypes.addressof(code), ctypes.addressof(license))
    program = bpf(PROG_LOAD, packed(load), "load a program")
    try:
        return bpf(28, packed(struct.pack("=IIII", program, link, 46, 0)), "attach a program")
    finally:
        os.close(program)


def test_link_with_programs_of_cilium_before_its_filters_is_refused(node: Node, tmp_path: Path) -> None:
    with shaped(node, tmp_path) as made:
        number = next(each.number for each in links(made.socket) if each.name == "pod0")
        try:
            held = node.host.call(attach_tcx, number)
        except BpfError as error:
            if os.environ.get("MUSTER_REQUIRE_REAL") == "1":
                raise
            pytest.skip(f"no tcx here: {error}")
        try:
            attachments = Attachments(made.socket, programs_before=programs_before)
            side = Side(program.budgeted({}, upload=True), number)
            node.host.call(attachments.refresh, side, side)
            assert attachments.refused == {
                "pod0": "another program, such as Cilium, has BPF programs (tcx) from the pod"
            }
            assert attachments.attached == {"pod1", "pod2"}
            assert "mirred" not in of_pod0(node)
        finally:
            os.close(held)
            node.host.call(attachments.teardown)


def test_containernetworking_plugins_609_burst_is_bounded(node: Node, tmp_path: Path) -> None:
    """The plugin's default burst let 248 MB through under a limit of 15 Mbit/s (2021); ours lets 10 ms of rate."""
    size = 16 * MEGA
    with (
        commands(node, "qdisc add dev pod0 root tbf rate 15mbit burst 256mb latency 25ms"),
        connected(node.outside, "192.0.2.2", node.pods[0]) as (server, client),
    ):
        transfer(server, client, size)  # at once: it would take 8.5 s
        shown = node.host.run("tc", "-s", "qdisc", "show", "dev", "pod0")
        assert "overlimits 0" in shown
    with shaped(node, tmp_path) as made:
        made.limit((15, 15))
        with tcp_flow(node.outside, "192.0.2.2", node.pods[0], download=True) as flow:
            bits = 8 * received_in([flow], 1.0)[0]
        assert bits <= 1.1 * 15 * MEGA
        assert "burst 18750b" in node.host.run("tc", "-d", "class", "show", "dev", "muster-in")


def test_containernetworking_plugins_609_bandwidth_plugin_stays_and_both_limits_hold(
    node: Node, tmp_path: Path
) -> None:
    """A pod with the plugin's limit for downloads only: its tbf is the root qdisc, which we do not touch."""
    with (
        commands(node, "qdisc add dev pod0 root handle 1: tbf rate 4mbit burst 32kb latency 25ms"),
        shaped(node, tmp_path) as made,
    ):
        assert "pod0" in made.shaper.attached
        for mega, least, most in ((40, 2.5, 4.3), (2, 1.4, 2.2)):
            made.limit((mega, mega))
            with tcp_flow(node.outside, "192.0.2.2", node.pods[0], download=True) as flow:
                received_in([flow], 0.3)
                assert least * MEGA <= 8 * received_in([flow], 1.0)[0] <= most * MEGA
        assert "qdisc tbf 1: root" in of_pod0(node)


def test_cilium_cilium_15824_limit_holds_between_pods_of_one_node(node: Node, tmp_path: Path) -> None:
    """Limits on the node's NIC do not see packets between its pods; ours are on the pods' own links."""
    with shaped(node, tmp_path, {"10.1.0.12/32": False, "10.1.0.10/32": False}) as made:
        made.limit((4, 4), (4, 4), (4, 4))
        with tcp_flow(node.pods[1], node.addresses(1)[0], node.pods[0], download=False) as flow:
            received_in([flow], 0.3)
            assert 8 * received_in([flow], 1.0)[0] <= 1.2 * 4 * MEGA
        with connected(node.pods[2], node.addresses(2)[0], node.pods[0]) as (server, client):
            transfer(client, server, 2 * MEGA)  # internal, to this pod; at 4 Mbit/s it would take 4 s
        sent = made.use("pod0").up.bytes
        assert sent < 2 * MEGA


def test_cilium_cilium_22203_limit_holds_for_packets_that_leave_through_a_tunnel(node: Node, tmp_path: Path) -> None:
    """Behind encryption the NIC sees packets of the node alone; on the pod's link they still have its addresses."""
    for here, there, mine in (("192.0.2.1", "192.0.2.2", node.host), ("192.0.2.2", "192.0.2.1", node.outside)):
        link = f"link add vx type vxlan id 7 dstport 4789 local {here} remote {there} dev eth0"
        mine.run("ip", *link.split())
        mine.run("ip", "link", "set", "vx", "up")
    node.outside.run("ip", "address", "add", "198.51.100.2/24", "dev", "vx")
    node.host.run("ip", "address", "add", "198.51.100.1/24", "dev", "vx")
    try:
        with shaped(node, tmp_path) as made:
            made.limit((4, 4))
            for download in (True, False):
                with tcp_flow(node.outside, "198.51.100.2", node.pods[0], download=download) as flow:
                    received_in([flow], 0.3)
                    assert 0.6 * 2 * MEGA <= 8 * received_in([flow], 0.5)[0] <= 1.3 * 2 * MEGA
    finally:
        for mine in (node.host, node.outside):
            mine.run("ip", "link", "delete", "vx")


def test_cilium_cilium_41478_limited_download_is_queued_not_dropped(node: Node, tmp_path: Path) -> None:
    """A policer for downloads at 20 Mbit/s caused 2,471 retransmissions; a queue makes TCP wait instead."""
    with shaped(node, tmp_path) as made:
        made.limit((20, 20))
        with tcp_flow(node.outside, "192.0.2.2", node.pods[0], download=True) as flow:
            received_in([flow], 0.5)
            before = flow.retransmits
            bits = 8 * received_in([flow], 1.0)[0]
            segments = bits / 8 / 1448
            assert flow.retransmits - before <= 0.03 * segments
        assert 0.85 * 20 * MEGA <= bits <= 1.05 * 20 * MEGA


def test_pod_behind_a_bridge_is_limited(tmp_path: Path) -> None:
    """Flannel and the bridge plugin: the pod's link is a port of a bridge."""
    with Network() as network:
        node = network.node()
        pod = network.namespace("pod")
        node.host.run("ip", "link", "add", "cni0", "type", "bridge")
        node.host.run("ip", "link", "set", "cni0", "up")
        node.host.run("ip", "address", "add", "10.1.0.1/24", "dev", "cni0")
        network.veth(node.host, "vethp", pod, "eth0")
        node.host.run("ip", "link", "set", "vethp", "master", "cni0")
        pod.run("ip", "address", "add", "10.1.0.10/24", "dev", "eth0")
        pod.run("ip", "route", "add", "default", "via", "10.1.0.1")
        with shaped(node, tmp_path) as made:
            made.shaper.apply({"p": Pair(4 * MEGA, 4 * MEGA)}, Pair(MEGA, MEGA), {"p": ("10.1.0.10",)})
            with udp_flow(node.outside, "192.0.2.2", pod) as flow:
                received_in([flow], 0.3)
                assert 0.8 * 4 * MEGA <= 8 * received_in([flow], 1.0)[0] <= 1.1 * 4 * MEGA
