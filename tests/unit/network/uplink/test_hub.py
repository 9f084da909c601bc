"""Issue 16 B: who may report to the hub, and what it does with agents that are slow, silent or wrong."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from muster.kube.errors import Unavailable
from muster.kube.objects.auth import NODE_NAME, UserInfo
from muster.network.uplink import hub as hubs
from muster.network.uplink import streams, wire
from muster.network.uplink.cache import UplinkCache
from muster.network.uplink.hub import Hub, StreamSending, Term, agent_node
from muster.network.uplink.metrics import uplink_metrics
from muster.network.uplink.settings import Settings
from muster.network.uplink.wire import (
    Applied,
    FromAgent,
    FromHub,
    Hello,
    Pair,
    PodDemand,
    Rates,
    Reason,
    Refused,
    Renewal,
    Report,
    Welcome,
)
from tests.support.waiting import TIMEOUT_S, until

LINE = Pair(10**9, 10**9)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Tokens:
    """Tokens are `node NAME`; others are not those of an agent."""

    failing = False

    async def identify(self, token: str) -> str | None:
        if self.failing:
            raise Unavailable(0, "ConnectionLost", "connection lost")
        return token.removeprefix("node ") if token.startswith("node ") else None


class Agent:
    """The agent's end of a connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *messages: FromAgent) -> None:
        for message in messages:
            self.writer.write(streams.encode(message))

    async def receive(self) -> FromHub:
        async with asyncio.timeout(TIMEOUT_S):
            return await streams.receive_from_hub(self.reader)

    async def closed(self) -> bool:
        async with asyncio.timeout(TIMEOUT_S):
            try:
                return not await self.reader.read(1)
            except ConnectionError:
                return True


class World:
    def __init__(self) -> None:
        self.clock, self.tokens = Clock(), Tokens()
        registry = CollectorRegistry()
        self.registry = registry
        self.hub = Hub(self.tokens, uplink_metrics(registry), clock=self.clock)
        self.cache = UplinkCache(Settings(budget=Pair(10**9, 10**9)), self.clock())
        self.woken = 0

    def lead(self) -> None:
        self.hub.open(Term(self.cache, "e1", self.wake, lambda: None))

    def wake(self) -> None:
        self.woken += 1

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        hub_reader, hub_writer = await asyncio.open_connection(sock=theirs)
        serving = asyncio.create_task(self.hub.serve(hub_reader, StreamSending(hub_writer)))
        try:
            yield Agent(reader, writer)
        finally:
            writer.transport.abort()
            hub_writer.transport.abort()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"muster_uplink_{name}_total", labels) or 0.0


@pytest.fixture
def world() -> World:
    found = World()
    found.lead()
    return found


async def refused(world: World, hello: Hello) -> Refused:
    async with world.agent() as agent:
        agent.send(hello)
        answer = await agent.receive()
        assert isinstance(answer, Refused)
        assert await agent.closed()
        return answer


@asynccontextmanager
async def accepted(world: World, node: str = "n1") -> AsyncIterator[Agent]:
    async with world.agent() as agent:
        agent.send(Hello(wire.PROTOCOL, node, f"node {node}"))
        assert isinstance(await agent.receive(), Welcome)
        yield agent


async def test_agent_reports_for_its_own_node_only(world: World) -> None:
    answer = await refused(world, Hello(wire.PROTOCOL, "n1", "node n2"))
    assert answer.reason is Reason.WRONG_NODE
    assert not world.hub.sessions


async def test_token_of_others_is_refused(world: World) -> None:
    assert (await refused(world, Hello(wire.PROTOCOL, "n1", "stolen"))).reason is Reason.UNAUTHENTICATED


async def test_only_the_service_account_of_agents_is_a_node() -> None:
    """Any pod can ask for a token of any audience, and this token also names the pod's node."""
    node = agent_node("muster-system", "muster-network")
    extra = {NODE_NAME: ("n1",)}
    assert node(UserInfo(username="system:serviceaccount:muster-system:muster-network", extra=extra)) == "n1"
    assert node(UserInfo(username="system:serviceaccount:other:muster-network", extra=extra)) is None
    assert node(UserInfo(username="system:serviceaccount:muster-system:default", extra=extra)) is None
    assert node(UserInfo(username="system:serviceaccount:muster-system:muster-network")) is None


async def test_replica_that_does_not_lead_refuses_without_a_review(world: World) -> None:
    world.hub.close()
    world.tokens.failing = True
    assert (await refused(world, Hello(wire.PROTOCOL, "n1", "node n1"))).reason is Reason.NOT_LEADING


async def test_agent_is_sent_away_for_longer_while_there_is_no_budget(world: World) -> None:
    world.hub.close(off=True)
    answer = await refused(world, Hello(wire.PROTOCOL, "n1", "node n1"))
    assert (answer.reason, answer.retry_s) == (Reason.OFF, 60.0)


async def test_agent_returns_later_if_the_api_server_does_not_review(world: World) -> None:
    world.tokens.failing = True
    assert (await refused(world, Hello(wire.PROTOCOL, "n1", "node n1"))).reason is Reason.BUSY


async def test_other_protocol_is_refused_with_what_to_do(world: World) -> None:
    answer = await refused(world, Hello(99, "n1", "node n1"))
    assert answer.reason is Reason.PROTOCOL
    assert "update the agent or the controller" in answer.message


@pytest.mark.parametrize(
    "first",
    [
        struct.pack(">I", 2**31),
        struct.pack(">I", 4) + b"\xc1\xc1\xc1\xc1",
        streams.encode(Report(1, LINE, {})),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_connection_that_does_not_begin_with_a_hello_is_closed(world: World, first: bytes) -> None:
    async with world.agent() as agent:
        agent.writer.write(first)
        assert await agent.closed()
    assert world.count("refused", reason="NoHello") == 1


async def test_connection_without_a_hello_does_not_stay_open(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "HELLO_TIMEOUT_S", 0.05)
    async with world.agent() as agent:
        assert await agent.closed()


async def test_more_connections_than_can_be_authenticated_are_refused_for_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "HELLOS_MAX", 1)
    async with world.agent():
        await asyncio.sleep(0)
        async with world.agent() as second:
            answer = await second.receive()
            assert isinstance(answer, Refused)
            assert answer.reason is Reason.BUSY


async def test_report_is_recorded_and_renews_the_lease_of_sent_rates(world: World) -> None:
    async with accepted(world) as agent:
        agent.send(Applied("", 0, Pair(5, 5)), Report(1, LINE, {"uid": PodDemand(10**6, 0, 10**6, 0)}))
        await until("the report is there", lambda: world.cache.nodes["n1"].answers == 1)
        record = world.cache.nodes["n1"]
        assert (record.applied, record.heard_s, world.woken) == (Pair(5, 5), 1000.0, 1)
        rates = Rates(1, "e1", 1, 30.0, 60.0, {}, Pair(9, 9), Pair(9, 9))
        assert world.hub.send(record, rates)
        world.cache.sent(record, rates, 1000.0)
        assert await agent.receive() == rates
        agent.send(Report(2, LINE, {"uid": PodDemand(10**6, 0, 10**6, 0)}))
        assert await agent.receive() == Renewal(1, 2)


async def test_newer_connection_of_a_node_replaces_the_older_one(world: World) -> None:
    async with accepted(world) as old, accepted(world):
        assert await old.closed()
        assert len(world.hub.sessions) == 1
        assert world.cache.nodes["n1"].connected


async def test_rates_that_answer_a_report_of_an_older_connection_are_not_sent(world: World) -> None:
    async with accepted(world) as old:
        old.send(*(Report(seq, LINE, {}) for seq in (1, 2, 3)))
        await until("the reports are there", lambda: world.cache.nodes["n1"].answers == 3)
        async with accepted(world):
            rates = Rates(1, "e1", 3, 30.0, 60.0, {}, Pair(9, 9), Pair(9, 9))
            assert not world.hub.send(world.cache.nodes["n1"], rates)


@pytest.mark.parametrize(
    "bad", [struct.pack(">I", 2**31), struct.pack(">I", 1) + b"\xc1", streams.encode(Hello(1, "n1", "x"))]
)
async def test_malformed_frame_ends_only_its_own_connection(world: World, bad: bytes) -> None:
    async with accepted(world, "good") as good, accepted(world, "bad") as agent:
        agent.writer.write(bad)
        assert await agent.closed()
        await until("the node is away", lambda: not world.cache.nodes["bad"].connected)
        good.send(Report(1, LINE, {}))
        await until("the other one is heard", lambda: world.cache.nodes["good"].answers == 1)
    assert world.count("dropped", reason="malformed") == 1


async def test_agent_that_floods_the_hub_is_disconnected(world: World) -> None:
    async with accepted(world) as agent:
        agent.send(*(Report(seq, LINE, {}) for seq in range(1, hubs.FRAMES_MAX + 2)))
        assert await agent.closed()


async def test_silent_agent_is_disconnected(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "_SILENCE_S", 0.05)
    async with accepted(world) as agent:
        assert await agent.closed()
    assert world.count("dropped", reason="lost") == 1


async def test_agent_that_does_not_apply_its_rates_is_disconnected(world: World) -> None:
    async with accepted(world) as agent:
        agent.send(Report(1, LINE, {}))
        await until("the report is there", lambda: world.cache.nodes["n1"].answers == 1)
        rates = Rates(1, "e1", 1, 30.0, 60.0, {}, Pair(9, 9), Pair(9, 9))
        world.cache.sent(world.cache.nodes["n1"], rates, world.clock.now)
        world.clock.now += hubs.UNAPPLIED_S
        world.hub.drop_unresponsive()
        assert len(world.hub.sessions) == 1
        world.clock.now += 0.1
        world.hub.drop_unresponsive()
        assert await agent.closed()
        assert not world.cache.nodes["n1"].connected


async def test_agent_that_does_not_read_gets_no_more_rates_and_is_disconnected(world: World) -> None:
    rates = Rates(1, "e1", 0, 30.0, 60.0, {f"uid-{i}": Pair(1, 1) for i in range(1000)}, Pair(9, 9), Pair(9, 9))
    async with accepted(world):
        record = world.cache.nodes["n1"]
        sent = 0
        while world.hub.send(record, rates):
            sent += 1
            assert sent < 10_000
        world.clock.now += hubs.UNAPPLIED_S + 0.1
        assert not world.hub.send(record, rates)
        assert not world.hub.sessions
    assert world.count("dropped", reason="slow") == 1


async def test_connections_end_with_the_term(world: World) -> None:
    async with accepted(world) as agent:
        world.hub.close()
        assert await agent.closed()
        assert not world.hub.sessions


async def test_agents_of_a_large_fleet_return_over_a_longer_time(world: World) -> None:
    for index in range(7_500):
        world.cache.node_changed(f"node-{index}", True, 1000.0)
    async with world.agent() as agent:
        agent.send(Hello(wire.PROTOCOL, "n1", "node n1"))
        answer = await agent.receive()
    assert isinstance(answer, Welcome)
    assert answer.spread_s == pytest.approx(15.0, rel=0.01)
