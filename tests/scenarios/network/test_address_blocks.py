"""Blocks of AddressPools on both API servers: nodes take them by creating objects."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import msgspec
import pytest

from muster.api.address_block import AddressBlock, AddressPool
from muster.embedded.readiness import install_kinds
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.errors import Invalid
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.network.addresses.block import Block, Family
from muster.network.addresses.errors import Reason
from muster.network.addresses.providers.base import ProviderError
from muster.network.addresses.providers.static import StaticBlocks, block_name


@dataclass
class Site:
    """An API server with pools and nodes, which the test removes."""

    client: Client
    pools: list[str]
    nodes: list[str]

    async def pool(self, name: str, cidr: str, block_prefix: int = 28, **more: object) -> AddressPool:
        spec = {"cidr": cidr, "blockPrefix": block_prefix, **more}
        body = {
            "apiVersion": AddressPool.RESOURCE.api_version,
            "kind": "AddressPool",
            "metadata": {"name": name},
            "spec": spec,
        }
        created = await self.client.create(body, kind=AddressPool)
        self.pools.append(name)
        return created

    async def node(self, name: str, **labels: str) -> StaticBlocks:
        await self.client.create(Node(metadata=ObjectMeta(name=name, labels=labels)))
        self.nodes.append(name)
        return StaticBlocks(self.client, name)

    async def blocks(self) -> list[AddressBlock]:
        return (await self.client.list(AddressBlock)).items


@pytest.fixture
async def site(cluster_config: ClusterConfig) -> AsyncIterator[Site]:
    async with Client(cluster_config) as client:
        await install_kinds(client)
        made = Site(client, [], [])
        try:
            yield made
        finally:
            held = [block.name for block in await made.blocks()]
            await _each(held, lambda name: client.delete(AddressBlock, name))
            await _each(made.pools, lambda name: client.delete(AddressPool, name))
            await _each(made.nodes, lambda name: client.delete(Node, name))


async def _each(names: list[str], delete: Callable[[str], Awaitable[None]]) -> None:
    await asyncio.gather(*(delete(name) for name in names))


async def test_150_nodes_at_once_get_different_blocks(site: Site) -> None:
    await site.pool("rack-a", "10.0.0.0/20")  # 256 blocks
    names = [f"node-{number:03}.site.example.com" for number in range(150)]
    nodes = await asyncio.gather(*(site.node(name) for name in names))
    first = await asyncio.gather(*(node.add(Family.IPV4, 16, ()) for node in nodes))
    second = await asyncio.gather(*(node.add(Family.IPV4, 16, first[at].blocks) for at, node in enumerate(nodes[:40])))
    given = [block.cidr for added in (*first, *second) for block in added.blocks]
    assert len(given) == len(set(given)) == 190
    held = {block.spec.cidr: block.spec.node_name for block in await site.blocks()}
    assert {block.cidr: names[at] for at, added in enumerate(first) for block in added.blocks}.items() <= held.items()
    assert {block.cidr for block in await nodes[3].look(())} == {
        cidr for cidr, name in held.items() if name == names[3]
    }


async def test_nodes_that_race_for_the_last_blocks_take_each_one_once_and_the_others_see_why_not(site: Site) -> None:
    await site.pool("small", "10.0.32.0/26")  # 4 blocks
    nodes = await asyncio.gather(*(site.node(f"racer-{number}") for number in range(12)))
    added = await asyncio.gather(*(node.add(Family.IPV4, 16, ()) for node in nodes))
    given = [block.cidr for each in added for block in each.blocks]
    assert len(given) == len(set(given)) == 4
    refused = [each.short for each in added if each.short is not None]
    assert len(refused) == 8
    assert {error.reason for error in refused} == {Reason.SUBNET_FULL}
    assert "add a pool" in refused[0].message


async def test_pool_sets_what_pods_configure_and_which_nodes_take_blocks(site: Site) -> None:
    await site.pool(
        "macvlan",
        "10.1.0.0/24",
        26,
        podPrefix=24,
        gateway="10.1.0.1",
        skipped=["10.1.0.0"],
        nodeSelector={"rack": "a"},
    )
    await site.pool("six", "fd00:1::/48", 64)
    inside, outside = await site.node("inside", rack="a"), await site.node("outside", rack="b")
    added = (await inside.add(Family.IPV4, 200, ())).blocks
    assert len(added) == 4
    assert {(block.pod_prefix, block.gateway, block.source) for block in added} == {(24, "10.1.0.1", "macvlan")}
    assert not {"10.1.0.0", "10.1.0.1"} & {ip for block in added for ip in block.usable()}
    with pytest.raises(ProviderError, match="no AddressPool of IPv4 selects node outside") as refused:
        await outside.add(Family.IPV4, 1, ())
    assert refused.value.reason is Reason.MISCONFIGURED
    six = (await outside.add(Family.IPV6, 16, ())).blocks[0]
    assert six.network.subnet_of(ipaddress.IPv6Network("fd00:1::/48"))
    assert {block.cidr for block in await outside.look(())} == {six.cidr}


async def test_blocks_given_back_can_be_taken_by_another_node_and_only_the_holder_gives_back(site: Site) -> None:
    await site.pool("small", "10.2.0.0/28")
    one, other = await site.node("one"), await site.node("other")
    (block,) = (await one.add(Family.IPV4, 1, ())).blocks
    full = await other.add(Family.IPV4, 1, ())
    assert full.short is not None
    assert full.short.reason is Reason.SUBNET_FULL
    await other.give_back(block)
    assert [each.spec.node_name for each in await site.blocks()] == ["one"]
    await one.give_back(block)
    await one.give_back(block)
    assert (await other.add(Family.IPV4, 1, ())).blocks == (block,)


async def test_block_whose_object_was_deleted_is_taken_again_unless_another_node_has_it(site: Site) -> None:
    await site.pool("small", "10.3.0.0/27")
    one, other = await site.node("one"), await site.node("other")
    first, second = (await one.add(Family.IPV4, 32, ())).blocks
    for block in (first, second):
        await site.client.delete(AddressBlock, block_name(block.network))
    assert (await other.add(Family.IPV4, 1, (first,))).blocks == (second,)
    assert [block.cidr for block in await one.look((first, second))] == [first.cidr]


async def test_block_belongs_to_its_node_object(site: Site) -> None:
    await site.pool("small", "10.4.0.0/28")
    one = await site.node("one")
    await one.add(Family.IPV4, 1, ())
    node = await site.client.get(Node, "one")
    (held,) = await site.blocks()
    assert [(owner.kind, owner.uid) for owner in held.metadata.owner_references] == [("Node", node.uid)]
    assert held.spec.node_uid == node.uid


async def test_new_machine_with_the_name_of_an_earlier_node_does_not_use_its_blocks(site: Site) -> None:
    await site.pool("small", "10.11.0.0/27")
    one = await site.node("one")
    (block,) = (await one.add(Family.IPV4, 1, ())).blocks
    (held,) = await site.blocks()
    await site.client.delete(AddressBlock, held.name)
    spec = msgspec.structs.replace(held.spec, node_uid="of-the-earlier-node")  # which the cluster deletes later
    left = AddressBlock(metadata=ObjectMeta(name=held.name, labels=held.metadata.labels), spec=spec)
    await site.client.create(left)
    assert await one.look(()) == []
    assert (await one.add(Family.IPV4, 1, ())).blocks != (block,)
    assert block in await one.look((block,))  # the machine that has pods with these addresses keeps them


async def test_overlapping_pools_are_refused_before_a_block_is_taken(site: Site) -> None:
    await site.pool("large", "10.5.0.0/16")
    await site.pool("part", "10.5.8.0/24", 26)
    one = await site.node("one")
    with pytest.raises(ProviderError, match="AddressPools large and part overlap: delete one"):
        await one.add(Family.IPV4, 1, ())
    assert await site.blocks() == []


async def test_gateway_that_is_not_an_address_is_refused(site: Site) -> None:
    with pytest.raises(Invalid, match="gateway must be an IP address"):
        await site.pool("wrong", "10.6.0.0/24", gateway="router")


@pytest.mark.parametrize(
    ("cidr", "block_prefix", "message"),
    [
        ("10.6.0.1/16", 28, "without host bits"),
        ("ten", 28, "without host bits"),
        ("10.6.0.0/16", 8, "blockPrefix must be at least"),
        ("10.6.0.0/16", 64, "blockPrefix must be at least"),
    ],
)
async def test_pool_that_makes_no_sense_is_refused(site: Site, cidr: str, block_prefix: int, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        await site.pool("wrong", cidr, block_prefix)


async def test_range_of_a_pool_and_all_of_a_block_are_fixed(site: Site) -> None:
    await site.pool("fixed", "10.7.0.0/28")
    with pytest.raises(Invalid, match="never change"):
        await site.client.patch(AddressPool, "fixed", {"spec": {"blockPrefix": 30}})
    await site.client.patch(AddressPool, "fixed", {"spec": {"gateway": "10.7.0.1"}})
    one = await site.node("one")
    (block,) = (await one.add(Family.IPV4, 1, ())).blocks
    with pytest.raises(Invalid, match="an AddressBlock never changes"):
        await site.client.patch(AddressBlock, block_name(block.network), {"spec": {"nodeName": "other"}})


async def test_pool_that_was_deleted_leaves_its_blocks_to_their_nodes(site: Site) -> None:
    await site.pool("short-lived", "10.8.0.0/28", gateway="10.8.0.1")
    one = await site.node("one")
    (block,) = (await one.add(Family.IPV4, 1, ())).blocks
    await site.client.delete(AddressPool, "short-lived")
    site.pools.remove("short-lived")
    assert await one.look((block,)) == [block]


def test_names_of_blocks_differ_and_are_names_of_objects() -> None:
    networks = ["10.0.0.0/28", "10.0.0.0/24", "fd00::/64", "fd00::/80", "fd00:0:0:1::/64"]
    names = [block_name(Block(cidr=each).network) for each in networks]
    assert len(set(names)) == len(names)
    assert names[0] == "v4-10-0-0-0-28"
    assert names[2] == "v6-fd000000000000000000000000000000-64"
