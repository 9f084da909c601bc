"""Addresses to which the cache does not connect for a reader, because services there trust the node itself."""

from __future__ import annotations

import ipaddress
from typing import Final

_METADATA: Final = frozenset(
    map(ipaddress.ip_address, ("168.63.129.16", "fd00:ec2::254", "100.100.100.200", "192.0.0.192"))
)
"""Services for machines that are not on link-local addresses: Azure, AWS (IPv6), Alibaba Cloud, Oracle Cloud."""


def may_connect(text: str, loopback: bool) -> bool:
    """Return whether a store may have this IP address. Raises ValueError if the text is not one.

    Args:
        text: the address.
        loopback: whether stores on this machine may be used.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_link_local or address.is_multicast or address.is_unspecified or address in _METADATA:
        return False
    return loopback or not address.is_loopback
