"""A block: consecutive addresses that a provider gave to this node."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from enum import StrEnum
from functools import cached_property
from itertools import islice
from typing import Final

import msgspec

ADDRESSES_MAX: Final = 4096
"""Addresses of one block that pods can get. A /64 has more than a node can use, so the rest stays unused."""

_POINT_TO_POINT: Final = 31  # RFC 3021: both addresses are of hosts


class Family(StrEnum):
    """An address family, by Kubernetes' name (Service's ipFamilies)."""

    IPV4 = "IPv4"
    IPV6 = "IPv6"


class BlockState(StrEnum):
    """Whether new pods get addresses of a block."""

    ACTIVE = "Active"
    MISSING = "Missing"
    """The provider does not list it. Its pods keep their addresses, and new pods get none."""
    RETURNING = "Returning"
    """It is being given back. It has no pod."""


class Block(msgspec.Struct, frozen=True, kw_only=True, dict=True, rename="camel"):
    """Consecutive addresses on this node.

    Attributes:
        cidr: the addresses. Blocks of one node do not overlap.
        prefix: length of the prefix that pods configure; 0 means the full length, so each pod is routed on its own.
        gateway: the next hop of pods, or empty if the node is.
        source: where the provider keeps it, such as the ID of a network interface or the name of an object.
        skipped: addresses that pods do not get, such as the gateway's.
        state: whether new pods get addresses of it.
    """

    cidr: str
    prefix: int = 0
    gateway: str = ""
    source: str = ""
    skipped: tuple[str, ...] = ()
    state: BlockState = BlockState.ACTIVE

    @cached_property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        """Its addresses. Raises ValueError if `cidr` is not a network."""
        return ipaddress.ip_network(self.cidr)

    @property
    def family(self) -> Family:
        """Its address family."""
        return family_of(self.network)

    @property
    def pod_prefix(self) -> int:
        """Length of the prefix that pods configure."""
        return self.prefix or self.network.max_prefixlen

    def usable(self) -> Iterator[str]:
        """Yield the addresses that pods can get, in order.

        The first address of an IPv6 block with more than two is the subnet-router anycast address (RFC 4291, 2.6.1).
        In an IPv4 subnet that pods share, the first and the last address are those of the subnet and of broadcasts.
        """
        skipped = set(self.skipped)
        if self.gateway:
            skipped.add(self.gateway)
        if self.network.version == 6 and self.network.num_addresses > 2:
            skipped.add(str(self.network.network_address))
        if self.network.version == 4 and 0 < self.prefix < _POINT_TO_POINT:
            subnet = ipaddress.ip_network(f"{self.network.network_address}/{self.prefix}", strict=False)
            skipped |= {str(subnet.network_address), str(subnet.broadcast_address)}
        for each in islice(self.network, ADDRESSES_MAX):
            text = str(each)
            if text not in skipped:
                yield text


def family_of(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> Family:
    """Return the family of a network."""
    return Family.IPV4 if network.version == 4 else Family.IPV6
