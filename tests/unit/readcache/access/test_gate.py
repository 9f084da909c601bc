"""Issue 15 A3: unknown tokens are rate-limited per peer and in all, and known callers do not notice."""

from __future__ import annotations

import asyncio

from muster.kube.reviewgate import Budget, GateLimits
from muster.readcache.access.access import Access
from muster.readcache.access.settings import AccessSettings
from muster.readcache.request import Refusal
from muster.sim.virtual.loop import VirtualLoop
from tests.unit.readcache.access.reviewserver import ReviewServer, reading, request

TIGHT = AccessSettings(
    decision_max_age_s=0,
    rejection_max_age_s=0,
    gate=GateLimits(
        peer_rejections_per_s=0.001,
        peer_rejections_burst=5,
        rejections_per_s=0.001,
        rejections_burst=20,
        admission_wait_s=0.01,
    ),
)


async def code(access: Access, token: str, peer: str) -> int:
    try:
        await access.admit(reading(), request(token, peer))
    except Refusal as refusal:
        return refusal.code
    return 200


def reviews(known: int = 0) -> ReviewServer:
    server = ReviewServer()
    server.users = {f"valid-{index}": f"user-{index}" for index in range(known)}
    server.allowed = {(name, "list", "a") for name in server.users.values()}
    return server


async def test_one_peer_may_present_only_so_many_invalid_tokens() -> None:
    server = reviews(known=1)
    access = Access(server.client(), TIGHT)
    assert await code(access, "valid-0", "10.0.0.1") == 200
    codes = [await code(access, f"bad-{index}", "10.0.0.1") for index in range(8)]
    assert codes == [401] * 5 + [429] * 3
    assert server.asked["tokenreviews"] == 6
    assert access.counters.limited == 3
    assert await code(access, "valid-0", "10.0.0.1") == 200  # known, also at this peer
    assert await code(access, "bad", "10.0.0.2") == 401


async def test_all_peers_together_may_present_only_so_many_invalid_tokens() -> None:
    server = reviews(known=1)
    access = Access(server.client(), TIGHT)
    assert await code(access, "valid-0", "10.0.0.1") == 200
    codes = [await code(access, "bad", f"10.1.0.{index}") for index in range(30)]
    assert codes == [401] * 20 + [429] * 10
    assert await code(access, "valid-0", "10.1.0.29") == 200
    assert [await code(access, "valid-0", f"10.2.0.{index}") for index in range(30)] == [200] * 30


async def test_known_token_that_became_invalid_is_limited_from_then_on() -> None:
    server = reviews(known=1)
    access = Access(server.client(), TIGHT)
    assert await code(access, "valid-0", "10.0.0.1") == 200
    server.users.clear()
    assert [await code(access, "valid-0", "10.0.0.1") for _ in range(8)] == [401] * 6 + [429] * 2


async def test_many_new_callers_at_once_are_all_admitted() -> None:
    """As after a restart of the cache, also if all of them come from one address."""
    server = reviews(known=300)
    access = Access(server.client(), AccessSettings(gate=GateLimits(admission_wait_s=60.0, peer_rejections_burst=5)))
    assert set(await asyncio.gather(*(code(access, token, "10.0.0.1") for token in server.users))) == {200}
    assert server.asked["tokenreviews"] == 300


async def test_review_that_failed_takes_nothing_from_the_budget() -> None:
    server = reviews()
    access = Access(server.client(), TIGHT)
    server.status = 500
    assert [await code(access, f"bad-{index}", "10.0.0.1") for index in range(8)] == [503] * 8
    server.status = None
    assert await code(access, "bad", "10.0.0.1") == 401


async def test_host_with_many_ipv6_addresses_is_one_peer() -> None:
    access = Access(reviews().client(), TIGHT)
    codes = [await code(access, "bad", f"2001:db8:0:1::{index:x}") for index in range(8)]
    assert codes == [401] * 5 + [429] * 3
    assert await code(access, "bad", "2001:db8:0:2::1") == 401
    mapped = [await code(access, "bad", address) for address in ("::ffff:10.0.0.1",) * 3 + ("10.0.0.1",) * 3]
    assert mapped == [401] * 5 + [429]


async def test_invalid_token_is_remembered_for_a_moment() -> None:
    server = reviews()
    access = Access(server.client(), AccessSettings(), clock=lambda: 0.0)
    assert [await code(access, "bad", "10.0.0.1") for _ in range(3)] == [401] * 3
    assert server.asked["tokenreviews"] == 1


def test_budget_refills_and_serves_its_queue_in_order() -> None:
    async def scenario() -> None:
        budget = Budget(per_s=100.0, burst=1, waiting_max=3)
        order: list[int] = []

        async def take(index: int) -> bool:
            taken = await budget.take(30.0)
            order.append(index)
            return taken

        results = await asyncio.gather(*map(take, range(5)))
        assert results == [True, True, True, True, False]
        assert order == [0, 4, 1, 2, 3]

    VirtualLoop.new().run(scenario())


async def test_budget_that_is_given_back_serves_the_next_at_once() -> None:
    budget = Budget(per_s=1e-6, burst=1, waiting_max=3)
    assert await budget.take(0.01)
    assert not await budget.take(0.01)
    waiting = asyncio.create_task(budget.take(30.0))
    cancelled = asyncio.create_task(budget.take(30.0))
    last = asyncio.create_task(budget.take(30.0))
    await asyncio.sleep(0)
    cancelled.cancel()
    budget.give_back()
    assert await waiting
    budget.give_back()
    assert await last
    assert not await budget.take(0.01)
