"""The warm pool against clouds whose views lag, that throttle, run full or lose answers."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import ipaddress
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from muster.network.addresses.addresses import Addresses
from muster.network.addresses.attachment import AttachmentKey, PodRef
from muster.network.addresses.block import Block, BlockState, Family
from muster.network.addresses.errors import Exhausted, Reason
from muster.network.addresses.pool import FamilyCount
from muster.network.addresses.providers.base import Added, ProviderError
from muster.network.addresses.targets import Targets, Want, decide
from muster.network.addresses.warmpool import GIVE_BACK_S, LOOK_S, WarmPool


class World:
    """One cloud, as its nodes see it. Time is set by the test."""

    def __init__(self) -> None:
        self.boot_id = "boot"
        self.at_s = 0.0
        self.next_block = 0
        self.requests = 0
        self.tokens = 1e9
        self.refill_s = 0.0
        self.refilled_s = 0.0

    def now_s(self) -> float:
        return self.at_s

    def request(self) -> None:
        self.requests += 1
        self.tokens += (self.at_s - self.refilled_s) * self.refill_s
        self.refilled_s = self.at_s
        if self.tokens < 1:
            raise ProviderError(Reason.THROTTLED, "RequestLimitExceeded")
        self.tokens -= 1


class Cloud:
    """A provider of /28 blocks whose `look` shows what `seen` holds if that is set."""

    notice = ""

    def __init__(self, world: World, confirm_s: float = 60.0) -> None:
        self.world = world
        self.confirm_s = confirm_s
        self.blocks: dict[str, Block] = {}
        self.seen: list[Block] | None = None
        self.failure: ProviderError | None = None
        self.lose_answer = False
        self.returned: list[str] = []

    async def look(self, known: Sequence[Block]) -> list[Block]:
        self.world.request()
        return list(self.blocks.values()) if self.seen is None else self.seen

    async def add(self, family: Family, count: int, known: Sequence[Block]) -> Added:
        self.world.request()
        if self.failure is not None:
            return Added((), self.failure)
        added = []
        while count > 0:
            number = self.world.next_block
            self.world.next_block += 1
            block = Block(cidr=f"10.{number >> 12}.{number >> 4 & 255}.{(number & 15) * 16}/28", source="eni-1")
            self.blocks[block.cidr] = block
            added.append(block)
            count -= 16
        if self.lose_answer:
            self.lose_answer = False
            raise ProviderError(Reason.UNREACHABLE, "no answer")
        return Added(tuple(added))

    async def give_back(self, block: Block) -> None:
        self.world.request()
        self.returned.append(block.cidr)
        self.blocks.pop(block.cidr, None)

    async def close(self) -> None:
        pass


def key(number: int) -> AttachmentKey:
    return AttachmentKey(f"sandbox-{number}", "eth0")


class OneNode:
    def __init__(self, folder: Path, targets: Targets | None = None, confirm_s: float = 60.0) -> None:
        self.folder = folder
        self.targets = targets or Targets()
        self.world = World()
        self.cloud = Cloud(self.world, confirm_s)
        self.start()

    def start(self) -> None:
        self.store = Addresses(self.folder, self.world)
        self.pool = WarmPool(self.store, self.cloud, self.targets, spread=lambda: 0.5)

    def restart(self) -> None:
        self.store.close()
        self.start()

    def run(self, for_s: float) -> None:
        """Step whenever the pool asks for it."""
        end_s = self.world.at_s + for_s
        while True:
            due_s = asyncio.run(self.pool.step(self.world.at_s))
            if due_s > end_s:
                break
            assert due_s > self.world.at_s
            self.world.at_s = due_s
        self.world.at_s = end_s

    def add(self, number: int) -> str:
        return self.store.reserve(key(number), PodRef("n", f"pod-{number}", f"uid-{number}"), "").addresses[0].ip

    def states(self) -> dict[str, BlockState]:
        return {block.cidr: block.state for block in self.store.blocks()}


@pytest.fixture
def node(tmp_path: Path) -> OneNode:
    return OneNode(tmp_path)


def test_new_node_gets_its_minimum_at_once_and_asks_for_no_more(node: OneNode) -> None:
    node.run(1)
    assert node.store.status().free == 16
    node.run(900)
    assert node.world.requests <= 5
    assert list(node.cloud.blocks) == ["10.0.0.0/28"]


def test_pods_that_wait_are_counted_so_one_request_is_enough_azure_container_networking_2999(node: OneNode) -> None:
    node.run(1)
    for number in range(60):
        with contextlib.suppress(Exhausted):
            node.add(number)
    before = node.world.requests
    asyncio.run(node.pool.step(node.world.at_s))
    assert node.world.requests == before + 1
    for number in range(60):
        node.add(number)
    assert node.store.status().free >= 8


def test_cooling_addresses_do_not_count_as_free_amazon_vpc_cni_k8s_2896(node: OneNode) -> None:
    node.run(1)
    for number in range(12):
        node.add(number)
        node.store.release(key(number))
    assert node.store.status().free == 4
    asyncio.run(node.pool.step(node.world.at_s))
    assert node.store.status().free == 20


def test_idle_block_is_given_back_after_a_while_and_not_before(node: OneNode) -> None:
    node.run(1)
    for number in range(20):
        try:
            node.add(number)
        except Exhausted:
            asyncio.run(node.pool.step(node.world.at_s))
            node.add(number)
    for number in range(20):
        node.store.release(key(number))
    node.run(200)
    assert node.cloud.returned == []
    node.run(GIVE_BACK_S + 200)
    assert len(node.cloud.returned) == 1
    assert len(node.store.blocks()) == 1
    node.run(3600)
    assert len(node.cloud.returned) == 1


@pytest.mark.parametrize(("pods", "blocks"), [(0, 1), (8, 1), (9, 2), (24, 2), (25, 3), (100, 7)])
def test_default_targets_leave_the_subnet_all_but_a_few_addresses_amazon_vpc_cni_k8s_2294(
    node: OneNode, pods: int, blocks: int
) -> None:
    """There, each node kept all addresses of one more interface, so subnets ran full of unused ones."""
    node.run(1)
    for number in range(pods):
        try:
            node.add(number)
        except Exhausted:
            node.run(LOOK_S)
            node.add(number)
    node.run(3600)
    assert len(node.cloud.blocks) == blocks  # /28, so 16 addresses each: the pods, 8 more, and none beyond that
    for number in range(pods):
        node.store.release(key(number))
    node.run(10 * (GIVE_BACK_S + LOOK_S))
    assert len(node.cloud.blocks) == 1


def test_short_surplus_gives_nothing_back(node: OneNode) -> None:
    node.run(1)
    for round_ in range(20):
        for number in range(12):
            node.add(round_ * 100 + number)
        node.run(20)
        for number in range(12):
            node.store.release(key(round_ * 100 + number))
        node.run(60)
    assert node.cloud.returned == []
    assert len(node.cloud.blocks) == 2


def test_given_back_block_that_a_stale_view_lists_is_not_used_again_amazon_vpc_cni_k8s_3887(node: OneNode) -> None:
    node.run(1)
    stale = list(node.cloud.blocks.values())
    node.store.retire_block("10.0.0.0/28")
    node.cloud.blocks.clear()
    node.cloud.seen = stale
    node.restart()
    node.run(120)
    assert "10.0.0.0/28" not in {block.cidr for block in node.store.blocks() if block.state is BlockState.ACTIVE}
    assert node.add(1) != "10.0.0.0"
    assert "10.0.0.0/28" in node.cloud.returned
    node.cloud.seen = None
    node.run(3 * LOOK_S)
    assert "10.0.0.0/28" not in node.states()


def test_unknown_block_of_one_view_is_not_used_amazon_vpc_cni_k8s_3887(node: OneNode) -> None:
    node.run(1)
    node.cloud.seen = [*node.cloud.blocks.values(), Block(cidr="10.9.9.0/28", source="eni-1")]
    node.run(LOOK_S)
    asyncio.run(node.pool.step(node.world.at_s))
    node.cloud.seen = None
    node.run(3 * LOOK_S)
    assert list(node.states()) == ["10.0.0.0/28"]


def test_block_whose_answer_was_lost_is_found_and_used_amazon_vpc_cni_k8s_66(node: OneNode) -> None:
    node.cloud.lose_answer = True
    node.run(1)
    assert node.store.status().reason is Reason.UNREACHABLE
    node.run(1200)
    assert node.states().keys() == node.cloud.blocks.keys()


def test_block_with_pods_that_a_view_lacks_keeps_its_pods_amazon_vpc_cni_k8s_1967(node: OneNode) -> None:
    node.run(1)
    first = node.add(1)
    node.cloud.seen = []
    node.restart()
    node.run(3 * LOOK_S)
    assert node.states()["10.0.0.0/28"] is BlockState.MISSING
    assert "10.0.0.0/28" in node.pool.problems
    assert node.add(1) == first
    assert ipaddress.ip_address(node.add(2)) not in ipaddress.ip_network("10.0.0.0/28")
    node.cloud.seen = None
    node.run(3 * LOOK_S)
    assert node.states()["10.0.0.0/28"] is BlockState.ACTIVE
    assert not node.pool.problems


def test_one_view_that_lacks_a_block_changes_nothing(node: OneNode) -> None:
    node.run(1)
    node.cloud.seen = []
    node.pool._look_at_s = node.world.at_s
    asyncio.run(node.pool.step(node.world.at_s))
    node.cloud.seen = None
    node.run(2 * LOOK_S)
    assert node.states() == {"10.0.0.0/28": BlockState.ACTIVE}


def test_new_block_that_views_do_not_list_yet_stays(node: OneNode) -> None:
    node.cloud.seen = []
    node.run(50)
    assert node.states() == {"10.0.0.0/28": BlockState.ACTIVE}
    node.cloud.seen = None
    node.run(1800)
    assert node.states() == {"10.0.0.0/28": BlockState.ACTIVE}
    assert list(node.cloud.blocks) == ["10.0.0.0/28"]


@pytest.mark.parametrize("reason", [Reason.SUBNET_FULL, Reason.FRAGMENTED, Reason.DENIED, Reason.THROTTLED])
def test_reason_of_the_provider_is_the_reason_of_the_refusal(node: OneNode, reason: Reason) -> None:
    node.cloud.failure = ProviderError(reason, "the provider's words; do this")
    node.run(1)
    with pytest.raises(Exhausted, match="the provider's words; do this") as refused:
        node.add(1)
    assert refused.value.reason is reason
    assert node.store.status().reason is reason
    node.cloud.failure = None
    node.run(150)
    node.add(1)
    assert node.store.status().reason is None


def test_wait_that_the_provider_asks_for_is_kept(node: OneNode) -> None:
    node.cloud.failure = ProviderError(Reason.THROTTLED, "slow down", wait_s=300.0)
    node.run(1)
    before = node.world.requests
    node.run(299)
    assert node.world.requests == before


def test_maximum_is_kept_and_reported(tmp_path: Path) -> None:
    node = OneNode(tmp_path, Targets(warm=8, minimum=16, maximum=32))
    node.run(1)
    for number in range(32):
        try:
            node.add(number)
        except Exhausted:
            asyncio.run(node.pool.step(node.world.at_s))
            node.add(number)
    node.run(60)
    with pytest.raises(Exhausted, match=r"its maximum: raise targets\.maximum") as refused:
        node.add(99)
    assert refused.value.reason is Reason.NODE_LIMIT
    assert node.store.status().families[Family.IPV4].total == 32


def test_block_that_overlaps_another_is_reported_and_not_used(node: OneNode) -> None:
    node.run(1)
    node.cloud.blocks["10.0.0.8/32"] = Block(cidr="10.0.0.8/32", source="eni-1")
    node.run(5 * LOOK_S)
    assert "overlaps block 10.0.0.0/28" in node.pool.problems["10.0.0.8/32"]
    assert list(node.states()) == ["10.0.0.0/28"]
    del node.cloud.blocks["10.0.0.8/32"]
    node.run(2 * LOOK_S)
    assert not node.pool.problems


def test_restart_with_a_warm_pool_asks_for_nothing_at_first_and_add_works_without_the_provider(node: OneNode) -> None:
    node.run(1)
    node.cloud.failure = ProviderError(Reason.UNREACHABLE, "away")
    before = node.world.requests
    node.restart()
    node.run(60)
    assert node.world.requests == before
    node.add(1)


async def test_150_nodes_that_start_at_once_get_addresses_from_a_throttling_cloud_amazon_vpc_cni_k8s_405(
    tmp_path: Path,
) -> None:
    """EC2 gives mutating calls a bucket of tokens; here 50, and 5 more each second, for calls of both kinds."""
    chance = random.Random(405)
    world = World()
    world.tokens, world.refill_s = 50, 5
    nodes = []
    for number in range(150):
        store = Addresses(tmp_path / str(number), world)
        nodes.append((store, WarmPool(store, Cloud(world), Targets(), spread=chance.random)))
    queue = [(0.0, number) for number in range(150)]
    missing = set(range(150))
    while missing:
        world.at_s, number = heapq.heappop(queue)
        assert world.at_s < 600
        heapq.heappush(queue, (await nodes[number][1].step(world.at_s), number))
        if nodes[number][0].status().can_add:
            missing.discard(number)
    held = [block.cidr for store, _ in nodes for block in store.blocks()]
    assert len(held) == len(set(held)) == 150
    ideal_s = (2 * 150 - 50) / 5
    assert world.at_s < 5 * ideal_s  # virtual time
    assert world.requests < 150 * 12
    for store, _ in nodes:
        store.close()


COUNTS = {Family.IPV4: FamilyCount(free=16), Family.IPV6: FamilyCount(free=2, assigned=100, cooling=10)}


def test_each_family_has_its_own_want() -> None:
    wants = decide(COUNTS, (), 3, Targets(warm=8, minimum=16, maximum=120))
    assert wants == {Family.IPV4: Want(), Family.IPV6: Want(add=8, limited=True)}


def test_nothing_is_given_back_that_a_waiting_pod_would_need() -> None:
    idle = (Block(cidr="10.0.0.0/28"),)
    counts = {Family.IPV4: FamilyCount(free=30, assigned=2)}
    assert decide(counts, idle, 0, Targets())[Family.IPV4].give_back == "10.0.0.0/28"
    assert decide(counts, idle, 7, Targets())[Family.IPV4].give_back is None
    assert decide(counts, idle, 0, Targets(minimum=17))[Family.IPV4].give_back is None


def test_block_that_a_pod_got_in_the_meantime_is_not_given_back(node: OneNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.run(1)
    node.store.put_block(Block(cidr="10.8.0.0/28"))
    node.cloud.blocks["10.8.0.0/28"] = Block(cidr="10.8.0.0/28")
    seen = node.store.idle_blocks()
    for number in range(17):
        node.add(number)
    monkeypatch.setattr(node.store, "idle_blocks", lambda: seen)  # as they were before these pods
    node.store.put_block(Block(cidr="10.8.1.0/24"))
    node.cloud.blocks["10.8.1.0/24"] = Block(cidr="10.8.1.0/24")
    node.run(3 * GIVE_BACK_S)
    assert node.cloud.returned == []
    assert set(node.states().values()) == {BlockState.ACTIVE}


def test_retired_block_gives_no_address_even_after_a_restart(node: OneNode) -> None:
    node.run(1)
    assert node.store.retire_block("10.0.0.0/28")
    node.restart()
    with pytest.raises(Exhausted):
        node.add(1)
    assert not node.store.retire_block("10.99.0.0/28")


def test_answer_that_was_not_foreseen_is_a_failure_of_the_provider_and_pods_get_addresses(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.run(1.0)

    async def strange(*args: object) -> Added:
        raise KeyError("AssignedIpv4Prefixes")

    monkeypatch.setattr(node.cloud, "add", strange)
    for number in range(12):
        node.add(number)
    node.run(120.0)
    status = node.store.status()
    assert status.reason is Reason.UNREACHABLE
    assert "AssignedIpv4Prefixes" in status.message
    monkeypatch.undo()
    node.run(120.0)
    assert node.store.status().free >= 8


def test_cloud_that_throttles_forever_is_asked_once_a_minute_and_running_pods_come_and_go(node: OneNode) -> None:
    node.run(1.0)
    node.cloud.failure = ProviderError(Reason.THROTTLED, "RequestLimitExceeded")
    for number in range(16):
        node.add(number)
    node.run(10.0)
    with pytest.raises(Exhausted, match="RequestLimitExceeded"):
        node.add(16)
    before = node.world.requests
    node.run(6 * 3600.0)
    assert node.world.requests - before <= 6 * 3600.0 / 30.0
    for number in range(16):
        node.store.release(key(number))
    node.world.at_s += 31.0
    assert {node.add(100 + number) for number in range(16)}
    node.cloud.failure = None
    node.run(120.0)
    assert node.store.status().free >= 8
    assert node.store.status().reason is None
