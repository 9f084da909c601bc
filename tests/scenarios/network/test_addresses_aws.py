"""Prefixes of network interfaces through boto3, against a server that speaks EC2's API."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.kube.connection.awscalls import AwsCalls
from muster.network.addresses.addresses import Addresses
from muster.network.addresses.attachment import AttachmentKey, PodRef
from muster.network.addresses.block import BlockState, Family
from muster.network.addresses.errors import Exhausted, Reason
from muster.network.addresses.providers.aws import AwsBlocks
from muster.network.addresses.providers.base import ProviderError
from muster.network.addresses.targets import Targets
from muster.network.addresses.warmpool import WarmPool
from tests.support.awsserver import CREDENTIALS
from tests.support.ec2network import Ec2Network, Interface, ec2_network


class Time:
    boot_id = "boot"
    at_s = 0.0

    def now_s(self) -> float:
        return self.at_s


@pytest.fixture(scope="module")
def server() -> Iterator[Ec2Network]:
    """One server for all tests, because boto3 takes half a second to make a client."""
    with pytest.MonkeyPatch.context() as patch, ec2_network() as made:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": made.address}.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture(scope="module")
def calls(server: Ec2Network) -> Iterator[AwsCalls]:
    made = AwsCalls("ec2")
    yield made
    made.close()


@pytest.fixture
def cloud(server: Ec2Network) -> Ec2Network:
    server.reset()
    return server


@pytest.fixture
def blocks(cloud: Ec2Network, calls: AwsCalls) -> AwsBlocks:
    return AwsBlocks(calls, metadata_address=cloud.address)


def scatter(cloud: Ec2Network) -> None:
    """One address of each /28 is used, as after years of single addresses."""
    cloud.taken |= {str(each[5]) for each in cloud.subnet.subnets(new_prefix=28)}


async def test_prefixes_of_both_families_are_assigned_listed_and_given_back(
    cloud: Ec2Network, blocks: AwsBlocks
) -> None:
    four = (await blocks.add(Family.IPV4, 17, ())).blocks
    six = (await blocks.add(Family.IPV6, 16, four)).blocks
    assert [block.cidr for block in four] == cloud.interfaces["eni-1"].prefixes == ["10.0.0.16/28", "10.0.0.32/28"]
    assert [block.cidr for block in six] == cloud.interfaces["eni-1"].six
    assert six[0].network.prefixlen == 80
    assert set(await blocks.look(())) == {*four, *six}
    for block in (*four, *six):
        await blocks.give_back(block)
        await blocks.give_back(block)  # an answer was lost
    assert await blocks.look(()) == []


async def test_fragmented_subnet_gives_secondary_addresses_and_a_notice_amazon_vpc_cni_k8s_2749(
    cloud: Ec2Network, blocks: AwsBlocks
) -> None:
    scatter(cloud)
    added = await blocks.add(Family.IPV4, 3, ())
    assert [block.cidr for block in added.blocks] == ["10.0.0.6/32", "10.0.0.7/32", "10.0.0.8/32"]
    assert added.short is None
    assert "create-subnet-cidr-reservation" in blocks.notice
    assert set(await blocks.look(())) == set(added.blocks)
    before = len(cloud.calls)
    more = await blocks.add(Family.IPV4, 3, added.blocks)
    assert cloud.calls[before:] == ["AssignPrivateIpAddresses"]  # no second request for a prefix
    assert len(more.blocks) == 1
    assert more.short is not None
    assert more.short.reason is Reason.NODE_LIMIT
    await blocks.give_back(more.blocks[0])
    assert more.blocks[0] not in await blocks.look(())


async def test_last_prefix_is_taken_before_secondary_addresses(cloud: Ec2Network, blocks: AwsBlocks) -> None:
    scatter(cloud)
    cloud.taken -= {"10.0.0.117"}
    added = await blocks.add(Family.IPV4, 32, ())
    assert [block.cidr for block in added.blocks] == ["10.0.0.112/28"]
    assert blocks.notice == ""


async def test_full_subnet_is_named(cloud: Ec2Network, blocks: AwsBlocks) -> None:
    cloud.taken |= {str(each) for each in cloud.subnet}
    added = await blocks.add(Family.IPV4, 1, ())
    assert added.short is not None
    assert added.short.reason is Reason.SUBNET_FULL
    assert "sufficient free Ipv4 addresses" in added.short.message


async def test_limit_of_the_instance_type_is_kept_without_asking_again(cloud: Ec2Network, blocks: AwsBlocks) -> None:
    first = await blocks.add(Family.IPV4, 200, ())
    assert len(first.blocks) == 4
    assert first.short is not None
    before = len(cloud.calls)
    second = await blocks.add(Family.IPV4, 1, first.blocks)
    assert len(cloud.calls) == before
    assert second.short is not None
    assert second.short.reason is Reason.NODE_LIMIT
    assert "an interface of p5.48xlarge has 4 slots" in second.short.message


async def test_refusals_have_their_reason(cloud: Ec2Network, blocks: AwsBlocks, tmp_path: Path) -> None:
    cloud.throttled = 1
    with pytest.raises(ProviderError, match="RequestLimitExceeded") as refused:
        await blocks.look(())
    assert refused.value.reason is Reason.THROTTLED
    cloud.denied = True
    with pytest.raises(ProviderError, match="not authorized") as refused:
        await blocks.look(())
    assert refused.value.reason is Reason.DENIED
    cloud.denied = False
    cloud.interfaces = {"eni-2": Interface("10.0.0.4")}
    with pytest.raises(ProviderError, match="'eni-1' does not exist") as refused:
        await blocks.look(())
    assert refused.value.reason is Reason.MISCONFIGURED


async def test_metadata_that_cannot_be_reached_is_named(cloud: Ec2Network) -> None:
    provider = AwsBlocks(AwsCalls("ec2"), metadata_address="http://127.0.0.1:9")
    with pytest.raises(ProviderError, match="needs the node's network") as refused:
        await provider.look(())
    assert refused.value.reason is Reason.UNREACHABLE
    await provider.close()


async def settle(pool: WarmPool, time: Time, for_s: float) -> None:
    end_s = time.at_s + for_s
    while (due_s := await pool.step(time.at_s)) <= end_s:
        time.at_s = due_s
    time.at_s = end_s


def reserve(store: Addresses, number: int) -> str:
    key = AttachmentKey(f"sandbox-{number}", "eth0")
    return store.reserve(key, PodRef("n", f"pod-{number}", f"uid-{number}"), "").addresses[0].ip


async def test_node_life_with_throttling_lost_answers_and_stale_views_amazon_vpc_cni_k8s_3887(
    cloud: Ec2Network, blocks: AwsBlocks, tmp_path: Path
) -> None:
    time = Time()
    store = Addresses(tmp_path, time)
    pool = WarmPool(store, blocks, Targets(), spread=lambda: 0.5)
    cloud.throttled = 3
    await settle(pool, time, 60)
    assert store.status().free == 16
    for number in range(14):
        reserve(store, number)
    cloud.lose_answer = True
    await settle(pool, time, 1)
    assert store.status().reason is Reason.UNREACHABLE
    await settle(pool, time, 1300)
    assert [block.cidr for block in store.blocks()] == sorted(cloud.interfaces["eni-1"].prefixes)
    for number in range(14):
        store.release(AttachmentKey(f"sandbox-{number}", "eth0"))
    cloud.hidden = True  # views show the blocks that are given back
    await settle(pool, time, 600)
    assert len(cloud.interfaces["eni-1"].prefixes) == 1
    active = [block.cidr for block in store.blocks() if block.state is BlockState.ACTIVE]
    assert active == cloud.interfaces["eni-1"].prefixes
    store.close()
    again = Addresses(tmp_path, time)
    await settle(WarmPool(again, blocks, Targets(), spread=lambda: 0.5), time, 300)
    assert [block.cidr for block in again.blocks() if block.state is BlockState.ACTIVE] == active
    again.close()


async def test_pods_wait_with_the_reason_of_the_subnet(cloud: Ec2Network, blocks: AwsBlocks, tmp_path: Path) -> None:
    cloud.taken |= {str(each) for each in cloud.subnet}
    time = Time()
    store = Addresses(tmp_path, time)
    pool = WarmPool(store, blocks, Targets(), spread=lambda: 0.5)
    await settle(pool, time, 1)
    with pytest.raises(Exhausted) as refused:
        reserve(store, 1)
    assert refused.value.reason is Reason.SUBNET_FULL
    cloud.taken.clear()
    await settle(pool, time, 1000)
    reserve(store, 1)
    store.close()


async def test_no_interface_is_created_or_detached_so_none_dangles_amazon_vpc_cni_k8s_608(
    cloud: Ec2Network, blocks: AwsBlocks, tmp_path: Path
) -> None:
    """A node can end at any time, so what it holds must end with its own interface."""
    time = Time()
    store = Addresses(tmp_path, time)
    pool = WarmPool(store, blocks, Targets(maximum=4096), spread=lambda: 0.5)
    for number in range(80):
        with contextlib.suppress(Exhausted):
            reserve(store, number)
        await settle(pool, time, 10)
    assert store.status().reason is Reason.NODE_LIMIT
    for number in range(80):
        store.release(AttachmentKey(f"sandbox-{number}", "eth0"))
    await settle(pool, time, 3000)
    assert len(cloud.interfaces["eni-1"].prefixes) == 1
    changes = {call for call in cloud.calls if not call.startswith("Describe")}
    assert changes == {"AssignPrivateIpAddresses", "UnassignPrivateIpAddresses"}
    store.close()
