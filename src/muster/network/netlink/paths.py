"""Routes of all tables with their MTU, learned exceptions of paths, and policy rules (linux/rtnetlink.h, fib_rules.h).

All of it can be read without capabilities.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import Final, NamedTuple

from muster.network.netlink import attributes as att
from muster.network.netlink.route import GETROUTE, NEWROUTE
from muster.network.netlink.socket import NetlinkSocket

NEWRULE: Final = 32
GETRULE: Final = 34

_INFO: Final = struct.Struct("=BBBBBBBBI")  # family, lengths, tos, table, protocol, scope, type, flags
_RULE: Final = struct.Struct("=BBBBBBBBI")  # family, lengths, tos, table, two reserved ones, action, flags
_DST, _OIF, _METRICS, _MULTIPATH, _TABLE = 1, 4, 8, 9, 15
_METRIC_MTU: Final = 2
_CLONED: Final = 0x200
_UNICAST: Final = 1
_RULE_TABLE: Final = 15
_TO_TABLE: Final = 1
_KERNEL_TABLES: Final = frozenset({253, 254, 255})
_FAMILIES: Final = {4: 2, 6: 10}
_HOP: Final = struct.Struct("=HBBi")


class PathRoute(NamedTuple):
    """A unicast route.

    Attributes:
        destination: a CIDR.
        table: number of its routing table; 254 is the main one.
        links: numbers of the links through which it leads; several for several next hops.
        mtu: bytes that the route allows; 0 if it does not say.
    """

    destination: str
    table: int
    links: tuple[int, ...]
    mtu: int


def routes(netlink: NetlinkSocket, version: int) -> list[PathRoute]:
    """Return the unicast routes of all tables for IP version 4 or 6."""
    return _dump(netlink, version, 0)


def exceptions(netlink: NetlinkSocket, version: int) -> list[PathRoute]:
    """Return what the kernel has learned about single destinations that has an MTU (path MTU discovery).

    The socket must be strict (Linux 5.3): otherwise the kernel lists routes instead.
    """
    return [each for each in _dump(netlink, version, _CLONED) if each.mtu]


def policy_rules(netlink: NetlinkSocket, version: int) -> int:
    """Return the number of policy rules that lead to other tables than local, main and default."""
    header = _RULE.pack(_FAMILIES[version], 0, 0, 0, 0, 0, 0, 0, 0)
    found = 0
    for type_, payload in netlink.dump(GETRULE, header, "list policy rules"):
        if type_ != NEWRULE:
            continue
        table = _number(att.by_type(payload, _RULE.size), _RULE_TABLE) or payload[4]
        found += payload[7] == _TO_TABLE and table not in _KERNEL_TABLES
    return found


def _dump(netlink: NetlinkSocket, version: int, flags: int) -> list[PathRoute]:
    header = _INFO.pack(_FAMILIES[version], 0, 0, 0, 0, 0, 0, 0, flags)
    answers = netlink.dump(GETROUTE, header, "list routes of all tables")
    return [_route(payload, version) for type_, payload in answers if type_ == NEWROUTE and payload[7] == _UNICAST]


def _route(payload: memoryview, version: int) -> PathRoute:
    fields = att.by_type(payload, _INFO.size)
    zero = "0.0.0.0" if version == 4 else "::"
    destination = str(ipaddress.ip_address(bytes(fields[_DST]))) if _DST in fields else zero
    metrics = att.by_type(fields[_METRICS]) if _METRICS in fields else {}
    links = [_number(fields, _OIF)] if _OIF in fields else _hops(fields.get(_MULTIPATH, memoryview(b"")))
    return PathRoute(
        f"{destination}/{payload[1]}",
        _number(fields, _TABLE) or payload[4],
        tuple(links),
        _number(metrics, _METRIC_MTU),
    )


def _hops(data: memoryview) -> list[int]:
    links, offset = [], 0
    while offset + _HOP.size <= len(data):
        length, _, _, link = _HOP.unpack_from(data, offset)
        if length < _HOP.size:
            break
        links.append(link)
        offset += length + (-length % 4)
    return links


def _number(fields: dict[int, memoryview], type_: int) -> int:
    return int(struct.unpack_from("=I", fields[type_])[0]) if type_ in fields else 0
