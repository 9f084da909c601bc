"""Limits of control groups on the real kernel: what passes, what is lost, and what remains of an agent."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.network.shaping.policing.policer import Policer
from muster.network.uplink.wire import Pair
from tests.support.bpfnames import BpfNames, bpf_names
from tests.support.flows import Flow, received_in
from tests.support.networknamespaces import Network, Node, need_namespaces
from tests.support.shaping import INTERNAL, MEGA
from tests.support.unifiedgroups import send_from_group, start_in_group, unified_group, unified_root

_PEER = """
import socket, sys
family, address, port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with socket.socket(family, socket.SOCK_STREAM) as peer:
    peer.connect((address, port))
    if sys.argv[4] == "send":
        while True:
            peer.send(bytes(65536))
    while True:
        peer.recv(1 << 18)
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    need_namespaces()
    with Network() as network:
        yield network.node()


@pytest.fixture
def names(tmp_path: Path) -> Iterator[BpfNames]:
    with bpf_names(tmp_path / "bpf") as made:
        yield made


@contextlib.contextmanager
def policer(names: BpfNames) -> Iterator[Policer]:
    root = unified_root()
    assert root is not None
    made = names.call(Policer, names.folder / "uplink", root, INTERNAL, (22, 53))
    try:
        yield made
    finally:
        names.call(made.close)


def below_root(group: Path) -> str:
    root = unified_root()
    assert root is not None
    return str(group.relative_to(root))


def counted(names: BpfNames, made: Policer, subject: str) -> tuple[int, int, int, int]:
    use = names.call(made.measure)[subject]
    return use.down.packets, use.down.drops, use.up.packets, use.up.drops


def send_more_than_a_burst(group: Path, node: Node) -> None:
    """Send 336 KB, although 1 bit/s would let only 256 KiB through. A lost one ends the test by a timeout."""
    for _ in range(4):
        send_from_group(group, node.host, node.outside, "192.0.2.2", 60, size=1400)


@contextlib.contextmanager
def member_flow(group: Path, node: Node, address: str, *, download: bool) -> Iterator[Flow | None]:
    """A TCP flow of a process in the group. The near end is the outside's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with node.outside.socket(family) as listening:
        listening.bind((address, 0))
        listening.listen(1)
        port = str(listening.getsockname()[1])
        way = "receive" if download else "send"
        process = start_in_group(group, node.host, sys.executable, "-c", _PEER, str(int(family)), address, port, way)
        accepted, _ = listening.accept()
        with accepted:
            flow = Flow(accepted, accepted)
            try:
                yield flow
            finally:
                flow.stop()
                process.kill()
                process.wait(10)


@pytest.mark.parametrize(("address", "download"), [("192.0.2.2", True), ("2001:db8::2", False)])
def test_group_is_held_to_its_rate(node: Node, names: BpfNames, address: str, download: bool) -> None:
    with unified_group() as group, policer(names) as made:
        names.call(made.apply, {"pod": Pair(20 * MEGA, 20 * MEGA)}, {"pod": (below_root(group),)})
        with member_flow(group, node, address, download=download) as flow:
            assert flow is not None
            received_in([flow], 0.5)
            before = names.call(made.measure)["pod"]
            received_in([flow], 1.2)
            after = names.call(made.measure)["pod"]
        way = 0 if download else 1
        bits = 8 * (after[way].bytes - before[way].bytes)
        assert 0.3 * 1.2 * 20 * MEGA <= bits <= 1.15 * 1.2 * 20 * MEGA
        names.call(made.teardown)


def test_internal_and_reserved_packets_are_neither_counted_nor_dropped(node: Node, names: BpfNames) -> None:
    inside = node.outside_address("10.9.0.1"), node.outside_address("fd00:9::1")
    with unified_group() as group, policer(names) as made:
        names.call(made.apply, {"pod": Pair(1, 1)}, {"pod": (below_root(group),)})
        for address in inside:
            send_from_group(group, node.host, node.outside, address, 50)
        with node.outside.socket(kind=socket.SOCK_DGRAM) as far:
            far.bind(("192.0.2.2", 53))
            command = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            command += "for _ in range(50): s.sendto(bytes(900), ('192.0.2.2', 53))"
            assert start_in_group(group, node.host, sys.executable, "-c", command).wait(30) == 0
            assert [len(far.recv(2000)) for _ in range(50)] == [900] * 50
        assert counted(names, made, "pod") == (0, 0, 0, 0)
        names.call(made.teardown)


def test_count_only_drops_nothing(node: Node, names: BpfNames) -> None:
    with unified_group() as group, policer(names) as made:
        names.call(made.apply, {"pod": None}, {"pod": (below_root(group),)})
        send_from_group(group, node.host, node.outside, "192.0.2.2", 60)
        assert counted(names, made, "pod") == (0, 0, 60, 0)
        use = names.call(made.measure)["pod"]
        assert use.up.bytes == 60 * (1000 + 28 + 14)
        names.call(made.teardown)


def test_limit_outlives_the_agent_and_the_next_one_continues_its_counts(node: Node, names: BpfNames) -> None:
    with unified_group() as group:
        with policer(names) as first:
            names.call(first.apply, {"pod": Pair(0, 8_000)}, {"pod": (below_root(group),)})
        flood = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        flood += "for _ in range(1000): s.sendto(bytes(1000), ('192.0.2.2', 9))"
        assert start_in_group(group, node.host, sys.executable, "-c", flood).wait(30) == 0
        with policer(names) as second:
            names.call(second.apply, {"pod": Pair(0, 8_000)}, {"pod": (below_root(group),)})
            _, _, passed, dropped = counted(names, second, "pod")
            assert passed + dropped == 1000
            assert 250 <= passed <= 300  # the burst is 256 KiB
            names.call(second.apply, {}, {})
        send_more_than_a_burst(group, node)
        assert names.call(lambda: list((names.folder / "uplink").iterdir())) == []


def test_teardown_releases_what_an_earlier_agent_left(node: Node, names: BpfNames) -> None:
    with unified_group() as group:
        with policer(names) as first:
            names.call(first.apply, {"pod": Pair(0, 1)}, {"pod": (below_root(group),)})
        with policer(names) as second:
            names.call(second.teardown)
            names.call(second.teardown)
        send_more_than_a_burst(group, node)


def test_group_that_is_gone_is_not_an_error(names: BpfNames) -> None:
    with unified_group() as group, policer(names) as made:
        gone = group / "gone"
        gone.mkdir()
        limits, folders = {"pod": Pair(1, 1)}, {"pod": (below_root(gone), f"{below_root(group)}/never")}
        names.call(made.apply, limits, folders)
        gone.rmdir()
        names.call(made.apply, limits, folders)
        names.call(made.apply, {}, {})
        assert names.call(made.measure) == {}
