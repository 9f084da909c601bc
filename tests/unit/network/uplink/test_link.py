"""Issue 16 B: the agent's connection to the hub, in virtual time, against a hub that does what a test says."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable

import pytest

from fuzz.uplink.wires import Side, Weather
from muster.network.uplink.link import AHEAD_S, CHANGE, REPORT_S, URGENT_S, Link, Streams, token_file
from muster.network.uplink.streams import encode, receive_from_agent
from muster.network.uplink.wire import (
    HEARTBEAT_S,
    PODS_MAX,
    Applied,
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
from muster.sim.virtual.loop import VirtualLoop
from muster.sim.virtual.sealed import sealed

LINE = Pair(1000, 1000)
RATES = Rates(1, "e", 1, 30.0, 60.0, {"a": Pair(5, 5)}, Pair(1, 1), Pair(2, 2))
CALM_S = 0.1
"""More than two messages take."""


class FakeHub:
    """Accepts connections and records what agents send."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.weather = Weather(random.Random(1), lost=0.0)
        self.answers: list[FromHub | None] = []
        """The answers to the next hellos; a Welcome if there are no more, silence for None."""
        self.dials: list[float] = []
        self.got: list[tuple[float, object]] = []
        self.side: Side | None = None
        self.open = True

    async def dial(self) -> Streams:
        self.dials.append(self.loop.now)
        if not self.open:
            raise ConnectionRefusedError("connection refused")
        agent, ours = Side(self.loop, self.weather), Side(self.loop, self.weather)
        agent.peer, ours.peer = ours, agent
        self.side = ours
        asyncio.get_running_loop().create_task(self._serve(ours))
        return agent.reader, agent

    async def _serve(self, side: Side) -> None:
        try:
            while True:
                message = await receive_from_agent(side.reader)
                self.got.append((self.loop.now, message))
                if isinstance(message, Hello):
                    answer = self.answers.pop(0) if self.answers else Welcome("e", HEARTBEAT_S, 1.0)
                    if answer is not None:
                        side.write(encode(answer))
        except asyncio.IncompleteReadError:
            pass

    def send(self, *messages: FromHub) -> None:
        assert self.side is not None
        for message in messages:
            self.side.write(encode(message))

    def reports(self) -> list[tuple[float, Report]]:
        return [(at, each) for at, each in self.got if isinstance(each, Report)]


def run(test: Callable[[FakeHub, Link], Awaitable[None]]) -> None:
    loop = VirtualLoop.new()
    with sealed(loop):
        hub = FakeHub(loop)
        link = Link("n1", hub.dial, lambda: "token", clock=loop.time, rng=random.Random(2))

        async def main() -> None:
            running = asyncio.create_task(link.run())
            try:
                await test(hub, link)
            finally:
                running.cancel()

        try:
            loop.run(main())
        finally:
            loop.wind_up()


async def connected(hub: FakeHub, link: Link) -> None:
    async with asyncio.timeout(600):
        while not (link.connected and hub.reports()):  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(CALM_S)


def demand(used: int, subject: str = "a") -> dict[str, PodDemand]:
    return {subject: PodDemand(used, 0, used, 0)}


def test_agent_begins_with_its_node_its_token_and_what_it_enforces() -> None:
    async def test(hub: FakeHub, link: Link) -> None:
        link.applied(None, Pair(7, 8))
        link.report(LINE, demand(3))
        await connected(hub, link)
        hello, applied, report = (each for _, each in hub.got[:3])
        assert (hello, applied) == (Hello(1, "n1", "token"), Applied("", 0, Pair(7, 8)))
        assert report == Report(1, LINE, demand(3))

    run(test)


def test_unchanged_demand_is_reported_with_each_heartbeat_only() -> None:
    async def test(hub: FakeHub, link: Link) -> None:
        await connected(hub, link)
        began = hub.reports()[0][0]
        for _ in range(18):
            link.report(LINE, {})
            hub.send(Renewal(0, 0))
            await asyncio.sleep(1.0)
        times = [round(at - began) for at, _ in hub.reports()]
        assert times == [0, 5, 10, 15]

    run(test)


@pytest.mark.parametrize("step", [1, 100])
def test_changed_demand_is_reported_once_a_second_on_average(step: int) -> None:
    """Also if each change is urgent: reports ahead of time make later ones wait."""

    async def test(hub: FakeHub, link: Link) -> None:
        await connected(hub, link)
        hub.send(RATES)
        before = len(hub.reports())
        for number in range(100):
            link.report(LINE, demand(step * (1 + number % 2)))
            await asyncio.sleep(0.1)
        times = [at for at, _ in hub.reports()]
        assert 9 <= len(times) - before <= 11 + AHEAD_S / REPORT_S
        assert min(b - a for a, b in itertools.pairwise(times)) > 0.9 * URGENT_S

    run(test)


@pytest.mark.parametrize(
    ("before", "after", "soon"),
    [
        (demand(1000), {}, True),
        ({}, demand(1000), True),
        (demand(1000), demand(500), False),  # both are above the limit
        (demand(1000) | demand(0, "new"), demand(1000) | demand(200, "new"), True),
        (demand(5), demand(3), True),
        ({"a": PodDemand(1, 0, 1000, 0)}, {"a": PodDemand(5, 0, 1000, 0)}, False),  # it uses more, and wants the same
    ],
)
def test_share_that_became_idle_or_is_needed_is_reported_ahead_of_time(
    before: dict[str, PodDemand], after: dict[str, PodDemand], soon: bool
) -> None:
    async def test(hub: FakeHub, link: Link) -> None:
        await connected(hub, link)
        hub.send(RATES)
        link.report(LINE, before)
        await asyncio.sleep(4.0)
        link.report(LINE, after)
        await asyncio.sleep(0.3)  # the report of `after` is due, and also sent if it is not urgent
        count = len(hub.reports())
        link.report(LINE, before)
        await asyncio.sleep(0.3)
        assert (len(hub.reports()) > count) == soon

    run(test)


@pytest.mark.parametrize(("used", "sent"), [(1000 + int(1000 * CHANGE) // 2, False), (1100, True), (0, True)])
def test_small_changes_wait_for_the_heartbeat(used: int, sent: bool) -> None:
    async def test(hub: FakeHub, link: Link) -> None:
        link.report(LINE, demand(1000))
        await connected(hub, link)
        before = len(hub.reports())
        link.report(LINE, demand(used))
        await asyncio.sleep(2.0)
        assert (len(hub.reports()) > before) == sent

    run(test)


def test_lease_counts_from_when_the_answered_report_was_sent() -> None:
    async def test(hub: FakeHub, link: Link) -> None:
        await connected(hub, link)
        sent_s = hub.loop.now
        await asyncio.sleep(3.0)
        hub.send(RATES)
        await asyncio.sleep(CALM_S)
        assert link.rates == RATES
        assert link.changed.is_set()
        assert sent_s - 1.0 < link.lease_end_s - RATES.valid_s <= sent_s
        end = link.lease_end_s
        hub.send(Renewal(1, 99))
        await asyncio.sleep(CALM_S)
        assert link.lease_end_s == end, "a report that was never sent renews nothing"
        await asyncio.sleep(3.0)
        hub.send(Renewal(7, 2))
        await asyncio.sleep(CALM_S)
        assert link.lease_end_s == end, "other rates are not renewed"
        hub.send(Renewal(1, 2))
        await asyncio.sleep(CALM_S)
        assert link.lease_end_s > end + 3.0

    run(test)


def test_rates_of_an_earlier_leader_are_not_renewed_by_a_new_one() -> None:
    async def test(hub: FakeHub, link: Link) -> None:
        await connected(hub, link)
        hub.send(RATES)
        await asyncio.sleep(CALM_S)
        end = link.lease_end_s
        assert hub.side is not None
        hub.side.close()
        await asyncio.sleep(CALM_S)
        hub.answers = [Welcome("new", HEARTBEAT_S, 1.0)]
        await connected(hub, link)
        hub.send(Renewal(1, 1))
        await asyncio.sleep(CALM_S)
        assert link.lease_end_s == end

    run(test)


def test_confirmation_is_sent_at_once() -> None:
    async def test(hub: FakeHub, link: Link) -> None:
        await connected(hub, link)
        hub.send(RATES)
        await link.changed.wait()
        link.applied(link.rates, Pair(6, 6))
        await asyncio.sleep(CALM_S)
        assert hub.got[-1][1] == Applied("e", 1, Pair(6, 6))

    run(test)


def test_silent_hub_is_left_and_the_last_rates_stay() -> None:
    async def test(hub: FakeHub, link: Link) -> None:
        await connected(hub, link)
        hub.send(RATES)
        await asyncio.sleep(3 * HEARTBEAT_S + 1.0)
        assert not link.connected
        assert link.problem == "the hub does not answer"
        assert link.rates == RATES

    run(test)


def test_hub_that_accepts_but_does_not_answer_the_hello_is_left() -> None:
    async def test(hub: FakeHub, link: Link) -> None:
        hub.answers = [None]
        await connected(hub, link)
        assert len(hub.dials) == 2

    run(test)


def test_agent_waits_as_long_as_the_hub_asks_for_and_says_why() -> None:
    async def test(hub: FakeHub, link: Link) -> None:
        hub.answers = [Refused(Reason.WRONG_NODE, "the token is bound to another node", 60.0)]
        await connected(hub, link)
        assert hub.dials[1] - hub.dials[0] >= 30.0

    run(test)


def test_refused_agent_reports_the_reason() -> None:
    async def test(hub: FakeHub, link: Link) -> None:
        hub.answers = [Refused(Reason.UNAUTHENTICATED, "the token is not one of an agent", 60.0)]
        await asyncio.sleep(10.0)
        assert link.problem == "Unauthenticated: the token is not one of an agent"

    run(test)


def test_agents_of_a_large_fleet_return_at_different_times() -> None:
    waits: list[float] = []

    async def test(hub: FakeHub, link: Link) -> None:
        hub.answers = [Welcome("e", HEARTBEAT_S, 15.0)]
        await connected(hub, link)
        assert hub.side is not None
        hub.side.close()
        while len(hub.dials) < 2:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(CALM_S)
        waits.append(hub.dials[1] - hub.dials[0])

    run(test)
    assert 7.5 <= waits[0] <= 23.5


def test_hub_that_is_away_is_tried_less_and_less_often() -> None:
    async def test(hub: FakeHub, link: Link) -> None:
        hub.open = False
        await asyncio.sleep(3600.0)
        assert 200 <= len(hub.dials) <= 330
        hub.open = True
        await connected(hub, link)

    run(test)


def test_only_the_largest_subjects_are_reported() -> None:
    async def test(hub: FakeHub, link: Link) -> None:
        link.report(LINE, {f"uid-{i}": PodDemand(i, 0, i, 0) for i in range(PODS_MAX + 10)})
        await connected(hub, link)
        pods = hub.reports()[0][1].pods
        assert len(pods) == PODS_MAX
        assert "uid-9" not in pods
        assert f"uid-{PODS_MAX + 9}" in pods

    run(test)


def test_token_that_cannot_be_read_is_retried(tmp_path: object) -> None:
    async def test(hub: FakeHub, link: Link) -> None:
        link._token = token_file(tmp_path / "token")  # type: ignore[operator]
        await asyncio.sleep(20.0)
        assert "No such file" in link.problem
        (tmp_path / "token").write_text("fresh\n")  # type: ignore[operator]
        await connected(hub, link)
        assert Hello(1, "n1", "fresh") in [each for _, each in hub.got]

    run(test)


def test_malformed_message_ends_the_connection() -> None:
    async def test(hub: FakeHub, link: Link) -> None:
        await connected(hub, link)
        assert hub.side is not None
        hub.side.write(b"\x00\x00\x00\x01\xc1")
        await asyncio.sleep(CALM_S)
        assert not link.connected
        await asyncio.sleep(5.0)
        assert link.connected

    run(test)
