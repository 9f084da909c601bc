"""Limits of pods on the real kernel, with real flows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.network.shaping.linkwatch import open_watch, watch_links
from muster.network.shaping.queues import FIRST_MINOR, LEND_MIN_BPS, ROOT_MINOR
from muster.network.shaping.shaper import RESERVED, REST
from muster.network.uplink.wire import Pair
from tests.support.flows import received_in, tcp_flow, udp_flow
from tests.support.networknamespaces import Network, Node, connected, need_namespaces, transfer
from tests.support.shaping import MEGA, ShapedNode

OUTSIDE = ("192.0.2.2", "2001:db8::2")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    need_namespaces("tc")
    with Network() as network:
        yield network.node(pods=3)


@pytest.fixture
def shaped(node: Node, tmp_path: Path) -> Iterator[ShapedNode]:
    made = ShapedNode(node, tmp_path / "classes.json")
    try:
        yield made
    finally:
        made.shaper.teardown()
        made.close()


@pytest.mark.parametrize(("address", "download"), [(OUTSIDE[0], True), (OUTSIDE[1], False)])
def test_limits_of_3_to_1_hold(shaped: ShapedNode, address: str, download: bool) -> None:
    shaped.limit((30, 30), (10, 10))
    node = shaped.node
    with contextlib.ExitStack() as stack:
        flows = [
            stack.enter_context(tcp_flow(node.outside, address, node.pods[pod], download=download)) for pod in (0, 1)
        ]
        received_in(flows, 0.5)
        large, small = (8 * each for each in received_in(flows, 1.5))
    assert large / small == pytest.approx(3, rel=0.15)
    assert 0.85 * 60 * MEGA <= large + small <= 1.02 * 60 * MEGA


def test_kubernetes_31876_internal_packets_never_enter_a_queue(shaped: ShapedNode) -> None:
    """The kubelet's limit was for all destinations; users wanted one for the internet alone, and an account of it."""
    shaped.limit((1, 1))
    node = shaped.node
    for address in (node.outside_address("10.9.0.1"), node.outside_address("fd00:9::1")):
        with connected(node.outside, address, node.pods[0]) as (server, client):
            transfer(server, client, 4 * MEGA)
            transfer(client, server, 4 * MEGA)
    with connected(node.pods[1], node.addresses(1)[0], node.pods[0]) as (server, client):
        transfer(server, client, 4 * MEGA)
    use = shaped.use("pod0")
    assert (use.down.bytes, use.up.bytes) == (0, 0)
    assert "qdisc noqueue 0: root" in node.host.run("tc", "qdisc", "show", "dev", "pod0")
    assert "muster" not in node.host.run("tc", "filter", "show", "dev", "eth0", "ingress")
    with tcp_flow(node.outside, OUTSIDE[0], node.pods[0], download=False) as flow:
        received_in([flow], 0.3)
        received = received_in([flow], 1.0)[0]
    assert 0 < 8 * received <= 1.3 * MEGA
    assert shaped.use("pod0").up.bytes >= received


def test_budget_holds_over_5_s_while_limits_move_and_a_pod_does_not_slow_down(shaped: ShapedNode) -> None:
    total = shaped.limit((0.3, 20), (0.3, 10), (0.3, 5))
    assert total.out_bps == 36 * MEGA
    node = shaped.node
    with contextlib.ExitStack() as stack:
        for pod in (0, 1):
            stack.enter_context(tcp_flow(node.outside, OUTSIDE[0], node.pods[pod], download=False))
        stack.enter_context(udp_flow(node.outside, OUTSIDE[1], node.pods[2]))
        samples = [(time.monotonic(), node.host.counters("eth0")["tx_bytes"])]
        for step in range(22):
            time.sleep(0.25)
            wide = step % 4 * 5
            shaped.limit((0.3, 25 - wide), (0.3, 5 + wide), (0.3, 5))
            samples.append((time.monotonic(), node.host.counters("eth0")["tx_bytes"]))
        flood = shaped.use("pod2")
    windows = [8 * (sent - was) / (at - since) for since, was in samples for at, sent in samples if at - since >= 5]
    assert windows
    assert max(windows) <= 1.02 * 36 * MEGA
    assert min(windows) >= 0.75 * 35 * MEGA
    assert flood.up.drops > 0


def test_changed_limits_lose_no_packet(shaped: ShapedNode) -> None:
    shaped.limit((60, 60))
    node = shaped.node
    with node.outside.socket(kind=socket.SOCK_DGRAM) as far, node.pods[0].socket(kind=socket.SOCK_DGRAM) as near:
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * MEGA)
        far.bind((OUTSIDE[0], 0))
        near.connect(far.getsockname())
        for number in range(264):
            near.send(number.to_bytes(2, "big") + bytes(1000))
            near.send(number.to_bytes(2, "big") + bytes(1000))
            shaped.limit((60, 3 + number % 7 * 9))
        got = [int.from_bytes(far.recv(2000)[:2], "big") for _ in range(2 * 264)]
    assert got == [number for number in range(264) for _ in range(2)]
    assert shaped.use("pod0").up.drops == 0


def test_raised_limit_is_used_within_3_s(shaped: ShapedNode) -> None:
    shaped.limit((2, 2), (20, 20))
    with tcp_flow(shaped.node.outside, OUTSIDE[0], shaped.node.pods[0], download=True) as flow:
        before = 8 * received_in([flow], 0.5)[0]
        shaped.limit((22, 2), (0.3, 20))
        received_in([flow], 1.5)
        after = 8 * received_in([flow], 0.5)[0]
    assert before <= 1.3 * 0.5 * 2 * MEGA
    assert after >= 0.8 * 0.5 * 22 * MEGA


def test_link_of_an_unknown_pod_shares_the_rest(shaped: ShapedNode) -> None:
    shaped.limit(rest=3)
    with tcp_flow(shaped.node.outside, OUTSIDE[1], shaped.node.pods[2], download=False) as flow:
        received_in([flow], 0.5)
        bits = 8 * received_in([flow], 1.0)[0]
    assert 0.5 * 3 * MEGA <= bits <= 1.2 * 3 * MEGA
    assert shaped.use(REST).up.bytes > 0


def test_pods_without_a_limit_borrow_within_the_sum_of_the_node(shaped: ShapedNode) -> None:
    total = shaped.limit((0.5, 10), None, None, rest=4)
    assert total == Pair(4_500_000, 14 * MEGA)
    node = shaped.node
    with contextlib.ExitStack() as stack:
        flows = [
            stack.enter_context(tcp_flow(node.outside, OUTSIDE[0], node.pods[pod], download=False)) for pod in range(3)
        ]
        received_in(flows, 0.5)
        bits = [8 * each for each in received_in(flows, 1.0)]
    assert bits[0] >= 0.85 * 10 * MEGA
    assert 0.6 * 4 * MEGA <= bits[1] + bits[2] <= 1.15 * 4 * MEGA


def test_node_with_a_small_sum_of_limits_lends_nothing_so_it_gets_no_debt(shaped: ShapedNode) -> None:
    """htb keeps a debt in units of time. What many first packets owe at 1 Mbit/s would stop borrowing for seconds."""

    def shown(minor: int) -> str:
        classes = shaped.node.host.run("tc", "class", "show", "dev", "muster-out").splitlines()
        return next(each for each in classes if f"4d55:{minor:x} " in each.split("parent")[0])

    pod1 = FIRST_MINOR + 1
    total = shaped.limit((0.3, 0.5), None, rest=1)
    assert total.out_bps < LEND_MIN_BPS
    assert "rate 500Kbit ceil 500Kbit" in shown(pod1)
    assert "rate 1Tbit" in shown(ROOT_MINOR)
    shaped.limit((0.3, 20), None, rest=1)
    assert "rate 500Kbit ceil 21Mbit" in shown(pod1)
    assert "rate 21Mbit ceil 21Mbit" in shown(ROOT_MINOR)


def test_reserved_ports_get_through_while_the_rest_is_flooded(shaped: ShapedNode) -> None:
    shaped.limit(rest=1)
    node = shaped.node
    with contextlib.ExitStack() as stack:
        flood = stack.enter_context(udp_flow(node.outside, OUTSIDE[0], node.pods[0]))
        until = time.monotonic() + 10
        while not shaped.use(REST).up.drops and time.monotonic() < until:
            received_in([flood], 0.1)
        assert shaped.use(REST).up.drops
        far = stack.enter_context(node.outside.socket(kind=socket.SOCK_DGRAM))
        far.bind((OUTSIDE[0], 53))
        near = stack.enter_context(node.pods[0].socket(kind=socket.SOCK_DGRAM))
        for number in range(20):
            near.sendto(bytes([number]), (OUTSIDE[0], 53))
            assert far.recv(10) == bytes([number])
    assert shaped.use(RESERVED).up.packets == 20


def test_recreated_link_is_limited_again(shaped: ShapedNode) -> None:
    node = shaped.node
    shaped.limit((1, 1))
    old = shaped.shaper.attached
    node.host.run("ip", "link", "add", "gone", "type", "veth", "peer", "name", "eth9", "netns", node.pods[0].path)
    shaped.shaper.refresh(only_new=True)
    assert shaped.shaper.attached == old | {"gone"}
    node.host.run("ip", "link", "delete", "gone")
    node.host.run("ip", "link", "add", "gone", "type", "veth", "peer", "name", "eth9", "netns", node.pods[0].path)
    shaped.shaper.refresh(only_new=True)
    assert "mirred" in node.host.run("tc", "filter", "show", "dev", "gone", "ingress")
    node.host.run("ip", "link", "delete", "gone")
    shaped.shaper.refresh()
    assert shaped.shaper.attached == old


def test_pair_with_both_ends_on_the_host_and_the_uplink_are_left_alone(shaped: ShapedNode) -> None:
    host = shaped.node.host
    host.run("ip", "link", "add", "both0", "type", "veth", "peer", "name", "both1")
    shaped.shaper.refresh()
    host.run("ip", "link", "delete", "both0")
    assert shaped.shaper.attached == {"pod0", "pod1", "pod2"}


def test_killed_agent_leaves_limits_and_the_next_one_adopts_them(node: Node, tmp_path: Path) -> None:
    program = (
        "import sys, time, pathlib, ipaddress, json\n"
        "from muster.network.netlink.socket import ROUTE, NetlinkSocket\n"
        "from muster.network.shaping.shaper import Reserved, Shaper\n"
        "from muster.network.uplink.wire import Pair\n"
        "shaper = Shaper(NetlinkSocket(ROUTE), classes={ipaddress.ip_network('10.0.0.0/8'): False},\n"
        "    reserved=Reserved(), state=pathlib.Path(sys.argv[1]))\n"
        "shaper.setup(Pair(10**6, 10**6))\n"
        "shaper.apply({'pod1': Pair(4 * 10**6, 4 * 10**6), 'pod0': Pair(8 * 10**6, 8 * 10**6)},\n"
        "    Pair(10**6, 10**6), json.loads(sys.argv[2]))\n"
        "print('limited', flush=True)\n"
        "time.sleep(60)\n"
    )
    state = tmp_path / "classes.json"
    addresses = json.dumps({f"pod{number}": node.addresses(number) for number in (0, 1)})
    agent = node.host.start(sys.executable, "-c", program, str(state), addresses)
    assert agent.stdout is not None
    assert agent.stdout.readline() == b"limited\n"
    with tcp_flow(node.outside, OUTSIDE[0], node.pods[0], download=False) as flow:
        agent.send_signal(signal.SIGKILL)
        agent.wait(10)
        received_in([flow], 0.5)
        assert 0.75 * 8 * MEGA <= 8 * received_in([flow], 1.0)[0] <= 1.15 * 8 * MEGA
        shaped = ShapedNode(node, state)
        try:
            assert shaped.adopted
            sent = shaped.use("pod0").up.bytes
            assert sent > MEGA
            shaped.limit((8, 8), (4, 4))
            assert shaped.use("pod0").up.bytes >= sent
        finally:
            shaped.shaper.teardown()
            shaped.close()


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"pod0": "x"}', '{"pod0": 16, "pod9": 4000}'])
def test_lost_or_bad_state_leaves_no_class_behind(node: Node, tmp_path: Path, text: str) -> None:
    state = tmp_path / "classes.json"
    first = ShapedNode(node, state)
    first.limit((1, 1), (2, 2))
    first.close()
    state.write_text(text)
    second = ShapedNode(node, state)
    try:
        assert second.adopted
        second.limit((3, 3))
        shown = node.host.run("tc", "class", "show", "dev", "muster-out")
        assert shown.count("3Mbit ceil 3Mbit") == 1
        assert "2Mbit" not in shown
        assert "rate 1Mbit ceil 1Mbit" not in shown
    finally:
        second.shaper.teardown()
        second.close()


def test_teardown_restores_the_node_and_may_be_repeated(node: Node, tmp_path: Path) -> None:
    before = ShapedNode.tc(node_only(node))
    shaped = ShapedNode(node, tmp_path / "classes.json")
    shaped.limit((1, 1), (2, 2))
    assert ShapedNode.tc(node_only(node)) != before
    shaped.shaper.teardown()
    shaped.shaper.teardown()
    shaped.close()
    assert ShapedNode.tc(node_only(node)) == before


def test_deleted_queues_are_made_again(shaped: ShapedNode) -> None:
    node = shaped.node
    node.host.run("ip", "link", "delete", "muster-out")
    shaped.shaper.setup(Pair(5 * MEGA, 5 * MEGA))
    shaped.limit((6, 6))
    with connected(node.outside, OUTSIDE[0], node.pods[0]) as (server, client):
        transfer(client, server, 200_000)
    assert shaped.use("pod0").up.bytes >= 200_000


def test_link_of_that_name_of_another_program_is_an_error(node: Node, tmp_path: Path) -> None:
    node.host.run("ip", "link", "add", "muster-in", "type", "bridge")
    try:
        with pytest.raises(OSError, match="the link muster-in is a bridge; rename it"):
            ShapedNode(node, tmp_path / "classes.json")
        assert "muster-in" in node.host.run("ip", "link", "show", "muster-in")
    finally:
        node.host.run("ip", "link", "delete", "muster-in")


def test_60_pods_are_limited_by_one_pass(tmp_path: Path) -> None:
    need_namespaces("tc")
    with Network() as network:
        node = network.node()
        pods = network.namespace("pods")
        node.host.run(
            *("ip", "-batch", "-"),
            input="".join(f"link add pod{n} type veth peer name eth{n} netns {pods.path}\n" for n in range(60)),
        )
        shaped = ShapedNode(node, tmp_path / "classes.json")
        assert len(shaped.shaper.attached) == 60
        total = shaped.limit(*((1, 2),) * 60)
        assert total == Pair(61 * MEGA, 121 * MEGA)
        shaped.limit(*((2, 1),) * 60)
        shown = node.host.run("tc", "class", "show", "dev", "muster-in")
        assert shown.count("rate 2Mbit ceil 2Mbit") == 60
        assert len(shaped.shaper.measure()) == 62
        many = {f"pod{n}": Pair(MEGA, MEGA) for n in range(300)}  # more than one batch of messages
        shaped.shaper.apply(many, Pair(MEGA, MEGA), {})
        assert node.host.run("tc", "class", "show", "dev", "muster-out").count("rate 1Mbit ceil 1Mbit") >= 300
        shaped.limit()
        assert len(shaped.shaper.measure()) == 2
        assert node.host.run("tc", "class", "show", "dev", "muster-in").count("class htb") == 3
        shaped.close()


async def test_news_of_a_new_link_limit_it_before_its_first_packet(shaped: ShapedNode) -> None:
    host = shaped.node.host
    limited = asyncio.Event()

    async def changed() -> None:
        shaped.shaper.refresh(only_new=True)
        if "late" in shaped.shaper.attached:
            limited.set()

    with host.call(open_watch) as watch:
        watching = asyncio.create_task(watch_links(watch, changed))
        add = ("ip", "link", "add", "late", "type", "veth", "peer", "name", "eth8", "netns", shaped.node.pods[0].path)
        try:
            await asyncio.to_thread(host.run, *add)
            async with asyncio.timeout(10):
                await limited.wait()
        finally:
            watching.cancel()
            host.run("ip", "link", "delete", "late")


def test_next_agent_with_other_classes_replaces_the_filters(node: Node, tmp_path: Path) -> None:
    first = ShapedNode(node, tmp_path / "classes.json")
    first.limit((4, 4))
    first.close()
    second = ShapedNode(node, tmp_path / "classes.json", internal={})
    try:
        second.limit((4, 4))
        inside = node.outside_address("10.9.0.7")
        with connected(node.outside, inside, node.pods[0]) as (server, client):
            transfer(client, server, 100_000)
        assert second.use("pod0").up.bytes >= 100_000
        assert node.host.run("tc", "filter", "show", "dev", "pod0", "ingress").count("mirred") == 1
    finally:
        second.shaper.teardown()
        second.close()


def node_only(node: Node) -> ShapedNode:
    """For `tc()` without a Shaper."""
    made = ShapedNode.__new__(ShapedNode)
    made.node = node
    return made
