"""The node's interface towards everything else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.network.netlink import link, route
from muster.network.netlink.link import Link
from muster.network.netlink.socket import NetlinkSocket

_FAR: Final = ("203.0.113.1", "2001:db8:ffff::1")
"""Addresses for documentation (RFC 5737, RFC 3849): the kernel is asked for the route to them, nothing is sent."""
_MTU_DEFAULT: Final = 1500


def uplink(host: NetlinkSocket) -> Link | None:
    """Return the interface of the default route; None if there is none."""
    for number in _numbers(host):
        found = link.by_index(host, number)
        if found is not None:
            return found
    return None


def uplink_mtu(host: NetlinkSocket) -> int:
    """Return the MTU of the interface of the default route, in bytes; that of Ethernet if there is none."""
    for number in _numbers(host):
        mtu = host.link_mtu(number)
        if mtu:
            return mtu
    return _MTU_DEFAULT


def _numbers(host: NetlinkSocket) -> Iterator[int]:
    """Yield the numbers of the interfaces of the default routes, IPv4 first."""
    for ip in _FAR:
        number = route.link_towards(host, ip)
        if number:
            yield number
