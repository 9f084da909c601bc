"""The eBPF backend on the kernel: sockets below a control group that the test makes, in any network namespace."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.api.socket_marks import BASE
from muster.network.traffic.backend import HOST, CounterKey, CountersGone, Subject, mark_subject
from muster.network.traffic.backends.ebpf import EbpfBackend
from muster.network.traffic.classes import Classes
from tests.support.networknamespaces import Network, Node
from tests.support.trafficbackends import CLASSES, INTERNAL, INTERNET4, INTERNET6, STORE, counted
from tests.support.unifiedgroups import send_from_group, send_to_group, start_in_group, unified_group, unified_root
from tests.system.network.test_bpf import need_bpf

_FSOPEN, _FSCONFIG, _FSMOUNT, _CREATE = 430, 431, 432, 6


@pytest.fixture
def groups() -> Iterator[Path]:
    """The group whose sockets are counted."""
    need_bpf()
    with unified_group() as made:
        yield made


@pytest.fixture
def pins() -> Iterator[Path]:
    """A bpf file system that is mounted nowhere: it ends with the descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    kind = libc.syscall(_FSOPEN, b"bpf", 1)
    assert kind >= 0, os.strerror(ctypes.get_errno())
    try:
        assert libc.syscall(_FSCONFIG, kind, _CREATE, None, None, 0) == 0
        mounted = libc.syscall(_FSMOUNT, kind, 1, 0)
        assert mounted >= 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(kind)
    yield Path(f"/proc/self/fd/{mounted}/traffic")
    os.close(mounted)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A host with two pods."""
    need_bpf()
    with Network() as network:
        made = network.node(pods=2)
        for address in (INTERNET4, INTERNET6, STORE, INTERNAL):
            made.outside_address(address)
        yield made


def fresh(groups: Path, pins: Path) -> EbpfBackend:
    """Return a backend as a new agent has it."""
    root = unified_root()
    assert root is not None
    return EbpfBackend(pins=pins, cgroup_root=root, attach_to=groups)


@pytest.fixture
def backend(node: Node, groups: Path, pins: Path) -> Iterator[EbpfBackend]:
    """A backend that was set up, with nothing counted yet."""
    made = fresh(groups, pins)
    node.host.call(made.setup, CLASSES)
    yield made
    node.host.call(made.teardown)


def group(groups: Path, name: str) -> Path:
    """Return a new group."""
    made = groups / name
    made.mkdir(parents=True)
    return made


def test_pods_of_host_and_own_namespaces_are_counted_by_group(node: Node, groups: Path, backend: EbpfBackend) -> None:
    """All classes, both families and directions; the rest is the host's."""
    one, two, other = (group(groups, name) for name in ("one", "burstable/two", "other"))
    inside = group(groups, "one/container")
    subjects = [Subject("uid-1", cgroup=str(one)), Subject("uid-2", node.addresses(0), cgroup=str(two))]
    node.host.call(backend.put, subjects)
    four = send_from_group(inside, node.host, node.outside, INTERNET4, 5)
    six = send_from_group(inside, node.host, node.outside, INTERNET6, 6)
    store = send_from_group(two, node.pods[0], node.outside, STORE, 7)
    internal = send_from_group(two, node.pods[0], node.outside, INTERNAL, 8)
    down = send_to_group(two, node.outside, node.pods[0], node.addresses(0)[0], 9)
    down6 = send_to_group(inside, node.outside, node.host, "2001:db8::1", 3)
    host = send_from_group(other, node.host, node.outside, INTERNET4, 2)
    assert counted(node.host.call(backend.read)) == {
        CounterKey("uid-1", "internet", "out"): four + six,
        CounterKey("uid-1", "internet", "in"): down6,
        CounterKey("uid-2", "object-store", "out"): store,
        CounterKey("uid-2", "internal", "out"): internal,
        CounterKey("uid-2", "internet", "in"): down,
        CounterKey(HOST, "internet", "out"): host,
    }


def test_packets_that_stay_on_the_node_are_not_counted(node: Node, groups: Path, backend: EbpfBackend) -> None:
    """To another pod, to the host, and over loopback."""
    one = group(groups, "one")
    subjects = [Subject("uid-1", node.addresses(0), cgroup=str(one)), Subject("uid-2", node.addresses(1))]
    node.host.call(backend.put, subjects)
    send_from_group(one, node.pods[0], node.pods[1], node.addresses(1)[1], 3)
    send_from_group(one, node.pods[0], node.host, "192.0.2.1", 3)
    send_from_group(one, node.host, node.host, "127.0.0.9", 3)  # no link has this address
    assert {key: size for key, size in counted(node.host.call(backend.read)).items() if key.subject != HOST} == {}


def test_marked_sockets_are_the_jobs_that_they_serve(node: Node, groups: Path, backend: EbpfBackend) -> None:
    """Mark before group, both directions of a connection."""
    cache, mark = group(groups, "cache"), BASE + 7
    node.host.call(backend.put, [Subject("uid-1", cgroup=str(cache)), Subject(mark_subject(mark), mark=mark)])
    program = (
        "import socket, sys\ns = socket.socket()\n"
        f"s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, {mark | 0x4000})\n"
        "s.connect((sys.argv[1], int(sys.argv[2])))\nwhile s.recv(65536): pass\n"
    )
    with node.outside.socket() as server:
        server.bind((INTERNET4, 0))
        server.listen(1)
        port = str(server.getsockname()[1])
        process = start_in_group(cache, node.host, sys.executable, "-c", program, INTERNET4, port)
        accepted, _ = server.accept()
        with accepted:
            accepted.sendall(bytes(100_000))
    assert process.wait(30) == 0
    counts = node.host.call(backend.read)
    assert counts[CounterKey(mark_subject(mark), "internet", "in")].bytes > 100_000
    assert counts[CounterKey(mark_subject(mark), "internet", "out")].packets >= 3
    assert counts[CounterKey("uid-1", "internet", "in")].packets == 0


def test_counters_survive_the_agent_and_a_new_program(
    node: Node, groups: Path, pins: Path, backend: EbpfBackend
) -> None:
    """A new agent replaces the programs; classes change; the former class keeps its count."""
    one = group(groups, "one")
    subjects = [Subject("uid-1", cgroup=str(one))]
    node.host.call(backend.put, subjects)
    store = send_from_group(one, node.host, node.outside, STORE, 2)
    instance = node.host.call(backend.instance)
    other = fresh(groups, pins)
    node.host.call(other.setup, Classes(lists={"partner": ["203.0.113.0/24"]}))
    assert node.host.call(other.put, subjects) == {}
    partner = send_from_group(one, node.host, node.outside, STORE, 3)
    expected = {
        CounterKey("uid-1", "object-store", "out"): store,
        CounterKey("uid-1", "partner", "out"): partner,
    }
    assert counted(node.host.call(other.read)) == expected
    assert node.host.call(other.instance) == instance
    assert counted(node.host.call(other.remove, ["uid-1"])) == expected


def test_freed_slot_begins_at_zero(node: Node, groups: Path, backend: EbpfBackend) -> None:
    """The group of an ended pod counts for its next subject from 0."""
    one = group(groups, "one")
    node.host.call(backend.put, [Subject("uid-1", cgroup=str(one))])
    first = send_from_group(one, node.host, node.outside, INTERNET4, 2)
    ended = node.host.call(backend.put, [Subject("uid-2", cgroup=str(one))])
    second = send_from_group(one, node.host, node.outside, INTERNET4, 3)
    assert counted(ended) == {CounterKey("uid-1", "internet", "out"): first}
    assert counted(node.host.call(backend.read)) == {CounterKey("uid-2", "internet", "out"): second}


def test_teardown_leaves_nothing_and_lost_maps_are_noticed(
    node: Node, groups: Path, pins: Path, backend: EbpfBackend
) -> None:
    """After the second teardown too."""
    (pins / "counts").unlink()
    with pytest.raises(CountersGone, match="removed maps"):
        node.host.call(backend.read)
    node.host.call(backend.setup, CLASSES)
    one = group(groups, "one")
    node.host.call(backend.put, [Subject("uid-1", cgroup=str(one))])
    sent = send_from_group(one, node.host, node.outside, INTERNET4, 1)
    assert counted(node.host.call(backend.read)) == {CounterKey("uid-1", "internet", "out"): sent}
    for _ in range(2):
        node.host.call(backend.teardown)
        assert not pins.exists()
    with pytest.raises(CountersGone):
        node.host.call(backend.instance)
