"""Blocks of AddressPools: ranges that the site routes to nodes itself.

A node takes a block by creating the AddressBlock that is named after its addresses. The API server accepts only the
first one, so no controller and no lock is needed. Nodes try blocks at random and list the pool only if several are
taken: a list of 7,500 blocks for each of 7,500 nodes at once would be gigabytes.

Blocks are owned by their Node, so that those of removed nodes are deleted. If a Node object is deleted while the
machine works, its agent takes the same blocks again.
"""

from __future__ import annotations

import hashlib
import ipaddress
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from muster.api.address_block import AddressBlock, AddressBlockSpec, AddressPool
from muster.api.names import LABEL_MANAGED_BY, MANAGED_BY
from muster.kube.client import Client
from muster.kube.errors import AlreadyExists, ApiError, Forbidden, Invalid, NotFound, TooManyRequests, Unauthorized
from muster.kube.objects.meta import ObjectMeta, OwnerReference
from muster.kube.objects.node import Node
from muster.network.addresses.block import Block, Family, family_of
from muster.network.addresses.errors import Reason
from muster.network.addresses.providers.base import Added, ProviderError

LABEL_NODE: Final = "muster.dev/address-node"
"""On AddressBlocks: a hash of the node's name, which can be longer than a label."""
LABEL_ADDRESS_POOL: Final = "muster.dev/address-pool"
"""On AddressBlocks: a hash of the pool's name."""
_PROBES: Final = 8
"""Blocks that are tried at random before the pool's blocks are listed."""
_LISTS: Final = 3
_CHOICE: Final = 65536
"""Most blocks of a pool that are looked at for a free one."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class StaticBlocks:
    """Blocks of AddressPools.

    Args:
        client: the API server itself, not a cache: `look` must show what was created.
        node: name of this node.
        choose: returns a number below its argument.
    """

    notice = ""
    confirm_s = 0.0  # the API server answers from the newest state

    def __init__(self, client: Client, node: str, choose: Callable[[int], int] = random.randrange) -> None:
        self._client = client
        self._node = node
        self._choose = choose

    async def look(self, known: Sequence[Block]) -> list[Block]:
        """Return the blocks of this node. Known ones whose object is gone are taken again."""
        try:
            pools = {pool.name: pool for pool in (await self._client.list(AddressPool)).items}
            held = await self._client.list(AddressBlock, label_selector=f"{LABEL_NODE}={_hashed(self._node)}")
            before = {block.cidr: block for block in known}
            ours = [block.spec for block in held.items if block.spec.node_name == self._node]
            found = {spec.cidr: spec.pool for spec in ours if spec.cidr in before}
            unknown = [spec for spec in ours if spec.cidr not in before]
            lost = [block for block in known if block.cidr not in found and block.source in pools]
            owner = await self._owner() if unknown or lost else None
            if owner is not None:
                # Those of an earlier Node of this name are about to be deleted, and then other nodes take them.
                found |= {spec.cidr: spec.pool for spec in unknown if spec.node_uid == owner.uid}
                for block in lost:
                    if await self._create(pools[block.source], block.network, owner):
                        found[block.cidr] = block.source
        except ApiError as error:
            raise _failed(error) from error
        # A pool that was deleted gives no new blocks, and its blocks keep working as they were.
        return [
            _block(cidr, pools[name]) if name in pools else before.get(cidr, Block(cidr=cidr, source=name))
            for cidr, name in found.items()
        ]

    async def add(self, family: Family, count: int, known: Sequence[Block]) -> Added:
        """Take blocks of the pools whose selector matches this node, in order of their names."""
        added: list[Block] = []
        have = {block.cidr for block in known}
        try:
            node = await self._client.get(Node, self._node)
            pools = sorted((await self._client.list(AddressPool)).items, key=lambda pool: pool.name)
            _check_overlaps(pools)
            ours = [pool for pool in pools if _matches(pool, node) and _family(pool) is family]
            if not ours:
                message = f"no AddressPool of {family} selects node {self._node}: create one, or label the node"
                raise ProviderError(Reason.MISCONFIGURED, message)
            owner = _reference(node)
            for pool in ours:
                while count > 0:
                    taken = await self._take(pool, owner, have)
                    if taken is None:
                        break
                    added.append(taken)
                    have.add(taken.cidr)
                    count -= sum(1 for _ in taken.usable())
        except ApiError as error:
            return Added(tuple(added), _failed(error))
        if count > 0:
            names = ", ".join(pool.name for pool in ours)
            message = f"AddressPool {names}: all blocks are taken; add a pool, or remove nodes that are gone"
            return Added(tuple(added), ProviderError(Reason.SUBNET_FULL, message))
        return Added(tuple(added))

    async def give_back(self, block: Block) -> None:
        """Delete the object, if it is this node's."""
        try:
            held = await self._client.get(AddressBlock, block_name(block.network))
            if held.spec.node_name == self._node:
                await self._client.delete(AddressBlock, held.name, uid=held.uid)
        except NotFound:
            return
        except ApiError as error:
            raise _failed(error) from error

    async def close(self) -> None:
        """Nothing to release: the client belongs to the agent."""

    async def _owner(self) -> OwnerReference:
        return _reference(await self._client.get(Node, self._node))

    async def _take(self, pool: AddressPool, owner: OwnerReference, have: set[str]) -> Block | None:
        network = ipaddress.ip_network(pool.spec.cidr)
        bits = pool.spec.block_prefix - network.prefixlen
        for _ in range(_PROBES):
            candidate = _nth(network, pool.spec.block_prefix, self._choose(1 << bits))
            if str(candidate) not in have and await self._create(pool, candidate, owner):
                return _block(str(candidate), pool)
        for _ in range(_LISTS):
            free = await self._free(pool, network, bits)
            if not free:
                return None
            for _ in range(_PROBES):
                candidate = free[self._choose(len(free))]
                if await self._create(pool, candidate, owner):
                    return _block(str(candidate), pool)
        raise ProviderError(Reason.THROTTLED, f"AddressPool {pool.name}: other nodes took each block that was tried")

    async def _free(self, pool: AddressPool, network: Network, bits: int) -> list[Network]:
        selector = f"{LABEL_ADDRESS_POOL}={_hashed(pool.name)}"
        held = await self._client.list_all(AddressBlock, label_selector=selector)
        taken = {block.spec.cidr for block in held.items}
        indexes = range(min(1 << bits, _CHOICE))
        candidates = (_nth(network, pool.spec.block_prefix, index) for index in indexes)
        return [candidate for candidate in candidates if str(candidate) not in taken]

    async def _create(self, pool: AddressPool, network: Network, owner: OwnerReference) -> bool:
        labels = {
            LABEL_NODE: _hashed(self._node),
            LABEL_ADDRESS_POOL: _hashed(pool.name),
            LABEL_MANAGED_BY: MANAGED_BY,
        }
        meta = ObjectMeta(name=block_name(network), labels=labels, owner_references=(owner,))
        spec = AddressBlockSpec(cidr=str(network), pool=pool.name, node_name=self._node, node_uid=owner.uid)
        try:
            await self._client.create(AddressBlock(metadata=meta, spec=spec))
        except AlreadyExists:
            return False
        return True


def block_name(network: Network) -> str:
    """Return the name of the object for a block: one name for each network."""
    if network.version == 4:
        return f"v4-{str(network.network_address).replace('.', '-')}-{network.prefixlen}"
    return f"v6-{int(network.network_address):032x}-{network.prefixlen}"


def _block(cidr: str, pool: AddressPool) -> Block:
    network = ipaddress.ip_network(cidr)
    try:
        inside = tuple(each for each in pool.spec.skipped if ipaddress.ip_address(each) in network)
    except ValueError as error:
        raise ProviderError(Reason.MISCONFIGURED, f"AddressPool {pool.name}, skipped: {error}") from None
    return Block(cidr=cidr, prefix=pool.spec.pod_prefix, gateway=pool.spec.gateway, source=pool.name, skipped=inside)


def _nth(network: Network, prefix: int, index: int) -> Network:
    address = int(network.network_address) + (index << (network.max_prefixlen - prefix))
    return ipaddress.ip_network((address, prefix)) if network.version == 4 else ipaddress.IPv6Network((address, prefix))


def _family(pool: AddressPool) -> Family:
    return family_of(ipaddress.ip_network(pool.spec.cidr))


def _matches(pool: AddressPool, node: Node) -> bool:
    labels = node.metadata.labels
    return all(labels.get(key) == value for key, value in pool.spec.node_selector.items())


def _check_overlaps(pools: Sequence[AddressPool]) -> None:
    """Raise ProviderError if two pools overlap: then two nodes could hold one address in blocks of two sizes."""
    for first, second in _pairs(pools):
        one, other = ipaddress.ip_network(first.spec.cidr), ipaddress.ip_network(second.spec.cidr)
        if one.version == other.version and one.overlaps(other):
            message = f"AddressPools {first.name} and {second.name} overlap: delete one of them"
            raise ProviderError(Reason.MISCONFIGURED, message)


def _pairs(pools: Sequence[AddressPool]) -> Iterator[tuple[AddressPool, AddressPool]]:
    for index, first in enumerate(pools):
        for second in pools[index + 1 :]:
            yield first, second


def _reference(node: Node) -> OwnerReference:
    return OwnerReference(api_version="v1", kind="Node", name=node.name, uid=node.uid)


def _hashed(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:40]


def _failed(error: ApiError) -> ProviderError:
    match error:
        case Forbidden() | Unauthorized():
            return ProviderError(Reason.DENIED, f"{error}; check the ClusterRole muster-network")
        case Invalid() | NotFound():
            return ProviderError(Reason.MISCONFIGURED, f"{error}; check the AddressPools and their kinds")
        case TooManyRequests():
            return ProviderError(Reason.THROTTLED, str(error))
    return ProviderError(Reason.UNREACHABLE, str(error))
