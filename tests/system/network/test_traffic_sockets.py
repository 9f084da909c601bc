"""Traffic of sockets in the host's network namespace: by control group, and by mark."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.api.socket_marks import BASE
from muster.network.traffic.backend import HOST, Backend, CounterKey, Subject, mark_subject
from tests.support.networknamespaces import Network, Node, connected, need_namespaces, transfer
from tests.support.trafficbackends import CLASSES, INTERNET4, INTERNET6, counted, datagrams, fresh, need_backend
from tests.support.unifiedgroups import send_from_group, send_to_group, start_in_group, unified_group


@pytest.fixture
def groups() -> Iterator[Path]:
    """A control group below which a test makes its own."""
    with unified_group() as made:
        yield made


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A host with one pod."""
    need_namespaces()
    with Network() as network:
        made = network.node(pods=1)
        for address in (INTERNET4, INTERNET6):
            made.outside_address(address)
        yield made


@pytest.fixture(params=["nftables", "iptables-legacy"])
def backend(node: Node, groups: Path, request: pytest.FixtureRequest) -> Iterator[Backend]:
    """A backend that was set up, with nothing counted yet."""
    need_backend(request.param)
    made = fresh(request.param)
    node.host.call(made.setup, CLASSES)
    yield made
    node.host.call(made.teardown)


def test_google_cadvisor_2615_opencost_335_host_network_pods_are_reported_one_to_three(
    node: Node, groups: Path, backend: Backend
) -> None:
    """Two pods send 1:3, from groups at different levels; neither shows what the other or the host does."""
    first, second = groups / "besteffort" / "pod1", groups / "pod2"
    container = first / "container"
    container.mkdir(parents=True)
    second.mkdir()
    node.host.call(backend.put, [Subject("uid-1", cgroup=str(first)), Subject("uid-2", cgroup=str(second))])
    out = send_from_group(container, node.host, node.outside, INTERNET4, 5)
    out6 = send_from_group(container, node.host, node.outside, INTERNET6, 5)
    other = send_from_group(second, node.host, node.outside, INTERNET4, 15)
    other6 = send_from_group(second, node.host, node.outside, INTERNET6, 15)
    assert (other, other6) == (3 * out, 3 * out6)
    received = send_to_group(container, node.outside, node.host, "192.0.2.1", 4)
    received6 = send_to_group(second, node.outside, node.host, "2001:db8::1", 12)
    counts = counted(node.host.call(backend.read))
    assert counts.pop(CounterKey("uid-1", "internet", "out")) == out + out6
    assert counts.pop(CounterKey("uid-2", "internet", "out")) == other + other6
    if backend.name == "iptables-legacy":  # it does not look for unconnected sockets of UDP
        assert counts == {CounterKey(HOST, "internet", "in"): received + received6}
    else:
        assert counts == {
            CounterKey("uid-1", "internet", "in"): received,
            CounterKey("uid-2", "internet", "in"): received6,
        }


def test_tcp_of_a_group_is_counted_with_its_handshake(node: Node, groups: Path, backend: Backend) -> None:
    """The whole connection of a process belongs to its group, and what the host does beside it to the host."""
    group = groups / "pod3"
    group.mkdir()
    node.host.call(backend.put, [Subject("uid-3", cgroup=str(group))])
    program = "import socket, sys\ns = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
    program += "while s.recv(65536): pass\n"
    with node.outside.socket() as server:
        server.bind((INTERNET4, 0))
        server.listen(1)
        process = start_in_group(
            group, node.host, sys.executable, "-c", program, INTERNET4, str(server.getsockname()[1])
        )
        accepted, _ = server.accept()
        with accepted:
            accepted.sendall(bytes(200_000))
            accepted.shutdown(socket.SHUT_WR)
            assert accepted.recv(1) == b""
    process.wait(30)
    counts = node.host.call(backend.read)
    down, up = counts[CounterKey("uid-3", "internet", "in")], counts[CounterKey("uid-3", "internet", "out")]
    assert down.bytes > 200_000
    assert up.packets >= 3
    # the last acknowledgement may find its socket gone
    assert counts[CounterKey(HOST, "internet", "in")].packets <= 2
    assert counts[CounterKey(HOST, "internet", "out")].packets <= 2


def test_marked_sockets_are_counted_by_mark_and_not_for_their_group(node: Node, groups: Path, backend: Backend) -> None:
    """The data cache serves a job: both directions of the connection are the job's, bits of others are ignored."""
    mark = BASE + 5
    node.host.call(backend.put, [Subject(mark_subject(mark), mark=mark)])
    with connected(node.outside, INTERNET4, node.host, mark=mark | 0x4000) as (server, client):
        transfer(client, server, 10_000)
        transfer(server, client, 300_000)
    sent = datagrams(node.host, node.outside, INTERNET4, 2)
    counts = node.host.call(backend.read)
    assert counts[CounterKey(mark_subject(mark), "internet", "out")].bytes > 10_000
    assert counts[CounterKey(mark_subject(mark), "internet", "in")].bytes > 300_000
    assert counts[CounterKey(HOST, "internet", "in")].bytes < 1000
    assert sent <= counts[CounterKey(HOST, "internet", "out")].bytes < sent + 1000


def test_group_that_was_made_again_continues_as_the_same_subject(node: Node, groups: Path, backend: Backend) -> None:
    """A restart of the container runtime makes its group again: the former count is returned, and a new one begins."""
    group = groups / "runtime.service"
    group.mkdir()
    subject = [Subject("pulls", cgroup=str(group))]
    node.host.call(backend.put, subject)
    first = send_from_group(group, node.host, node.outside, INTERNET4, 3)
    group.rmdir()
    group.mkdir()
    ended = counted(node.host.call(backend.put, subject))
    second = send_from_group(group, node.host, node.outside, INTERNET4, 4)
    key = CounterKey("pulls", "internet", "out")
    assert ended == {key: first}
    assert counted(node.host.call(backend.read)) == {key: second}


def test_group_that_is_gone_ends_its_subject(node: Node, groups: Path, backend: Backend) -> None:
    """A pod's group can vanish before the agent hears of it."""
    group = groups / "pod4"
    group.mkdir()
    subjects = [Subject("uid-4", cgroup=str(group))]
    node.host.call(backend.put, subjects)
    sent = send_from_group(group, node.host, node.outside, INTERNET4, 1)
    group.rmdir()
    assert counted(node.host.call(backend.put, subjects)) == {CounterKey("uid-4", "internet", "out"): sent}
    assert node.host.call(backend.put, []) == {}


def test_group_that_vanished_while_the_agent_was_away_keeps_its_count(
    node: Node, groups: Path, backend: Backend
) -> None:
    """A new agent sets up beside rules of a group that is gone, twice; then the subject ends with its count."""
    group = groups / "pod5"
    group.mkdir()
    node.host.call(backend.put, [Subject("uid-5", cgroup=str(group)), Subject("uid-p", node.addresses(0))])
    sent = send_from_group(group, node.host, node.outside, INTERNET4, 2)
    pod = datagrams(node.pods[0], node.outside, INTERNET4, 1)
    group.rmdir()
    for _ in range(2):
        backend = fresh(backend.name)
        node.host.call(backend.setup, CLASSES)
    pod += datagrams(node.pods[0], node.outside, INTERNET4, 1)
    key = CounterKey("uid-5", "internet", "out")
    assert counted(node.host.call(backend.put, [Subject("uid-p", node.addresses(0))])) == {key: sent}
    assert counted(node.host.call(backend.read)) == {CounterKey("uid-p", "internet", "out"): pod}


def test_subject_that_gets_another_mark_begins_again(node: Node, groups: Path, backend: Backend) -> None:
    """The rules about marks come with the first mark, and a freed mark counts for the host."""
    one, two = BASE + 1, BASE + 2
    node.host.call(backend.put, [Subject(mark_subject(one), mark=one)])
    first = datagrams(node.host, node.outside, INTERNET4, 1, mark=one)
    ended = node.host.call(backend.put, [Subject(mark_subject(two), mark=two)])
    assert counted(ended) == {CounterKey(mark_subject(one), "internet", "out"): first}
    second = datagrams(node.host, node.outside, INTERNET6, 2, mark=two)
    host = datagrams(node.host, node.outside, INTERNET6, 3, mark=one)
    assert counted(node.host.call(backend.read)) == {
        CounterKey(mark_subject(two), "internet", "out"): second,
        CounterKey(HOST, "internet", "out"): host,
    }
    assert counted(node.host.call(backend.put, [])) == {CounterKey(mark_subject(two), "internet", "out"): second}
