"""Routes (linux/rtnetlink.h, RTM_NEWROUTE)."""

from __future__ import annotations

import errno
import ipaddress
import struct
from typing import Final, NamedTuple

from muster.network.netlink import attributes as att
from muster.network.netlink.ip import address_of, network_of
from muster.network.netlink.socket import CREATE, REPLACE, Message, NetlinkError, NetlinkSocket

NEWROUTE: Final = 24
GETROUTE: Final = 26

_INFO: Final = struct.Struct("=BBBBBBBBI")  # family, lengths, tos, table, protocol, scope, type, flags
_DST, _OIF, _GATEWAY = 1, 4, 5
_TABLE_MAIN, _PROTOCOL_STATIC, _UNICAST = 254, 4, 1
_SCOPE_UNIVERSE, _SCOPE_LINK = 0, 253
_ON_LINK: Final = 0x4
_FAMILIES: Final = {4: 2, 6: 10}


class Route(NamedTuple):
    """A route of the main table.

    Attributes:
        destination: a CIDR.
        gateway: the next hop; empty if the destination is on the link.
        link: number of the link; 0 if there is none or several.
    """

    destination: str
    gateway: str
    link: int


def add(destination: str, link: int, gateway: str = "") -> Message:
    """Add or replace a route to a CIDR through the link with this number. The gateway need not be in a subnet of it."""
    network = network_of(destination)
    scope = _SCOPE_LINK if not gateway and network.version == 4 else _SCOPE_UNIVERSE
    flags = _ON_LINK if gateway else 0
    payload = _INFO.pack(
        _FAMILIES[network.version],
        network.prefixlen,
        0,
        0,
        _TABLE_MAIN,
        _PROTOCOL_STATIC,
        scope,
        _UNICAST,
        flags,
    )
    payload += att.attribute(_DST, network.network_address.packed) + att.u32(_OIF, link)
    if gateway:
        payload += att.attribute(_GATEWAY, address_of(gateway).packed)
    return Message(NEWROUTE, CREATE | REPLACE, payload)


def all_routes(netlink: NetlinkSocket, version: int) -> list[Route]:
    """Return the routes of the main table for IP version 4 or 6."""
    header = _INFO.pack(_FAMILIES[version], 0, 0, 0, 0, 0, 0, 0, 0)
    found = []
    for type_, payload in netlink.dump(GETROUTE, header, "list routes"):
        if type_ == NEWROUTE and payload[4] == _TABLE_MAIN:
            found.append(_route(payload, version))
    return found


def link_towards(netlink: NetlinkSocket, ip: str) -> int:
    """Return the number of the link through which packets to an address leave; 0 if there is no route."""
    address = address_of(ip)
    header = _INFO.pack(_FAMILIES[address.version], address.max_prefixlen, 0, 0, 0, 0, 0, 0, 0)
    payload = header + att.attribute(_DST, address.packed)
    try:
        answer = netlink.get(GETROUTE, payload, f"find the route to {ip}")
    except NetlinkError as error:
        if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EAFNOSUPPORT, errno.EOPNOTSUPP):
            return 0
        raise
    return next(
        (struct.unpack_from("=I", value)[0] for type_, value in att.attributes(answer, _INFO.size) if type_ == _OIF), 0
    )


def _route(payload: memoryview, version: int) -> Route:
    fields = att.by_type(payload, _INFO.size)
    any_address = "0.0.0.0" if version == 4 else "::"
    destination = ipaddress.ip_address(bytes(fields[_DST])) if _DST in fields else any_address
    gateway = str(ipaddress.ip_address(bytes(fields[_GATEWAY]))) if _GATEWAY in fields else ""
    link = struct.unpack_from("=I", fields[_OIF])[0] if _OIF in fields else 0
    return Route(f"{destination}/{payload[1]}", gateway, link)
