"""The interfaces of a node that lead out of it, and their counters."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from muster.network.netlink.attributes import by_type, decoded
from muster.network.netlink.socket import ROUTE, NetlinkSocket
from muster.network.traffic.ledger.state import Interface

_GET_LINK, _GET_ROUTE = 18, 26
_LINK: Final = struct.Struct("=BxHiII")
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_IFLA_IFNAME, _IFLA_STATS64 = 3, 23
_RTA_OIF, _RTA_MULTIPATH = 4, 9
_NEXT_HOP: Final = struct.Struct("=HBBi")
_COUNTERS: Final = struct.Struct("=4Q")
_UNICAST: Final = 1


def read_interfaces(names: Iterable[str] = (), sys_root: Path = Path("/sys")) -> tuple[Interface, ...]:
    """Return the counters of the named interfaces; without names, of the network cards of this namespace.

    These are the interfaces with a device. A node that is a container has none: there, those with a default route.
    Named ones that do not exist are left out.

    Raises:
        OSError: the kernel did not answer.
    """
    wanted = set(names)
    with NetlinkSocket(ROUTE) as kernel:
        found: dict[int, Interface] = {}
        for _, body in kernel.dump(_GET_LINK, _LINK.pack(0, 0, 0, 0, 0), "links cannot be listed"):
            has = by_type(body, _LINK.size)
            called = decoded(has[_IFLA_IFNAME])
            if _IFLA_STATS64 in has and (not wanted or called in wanted):
                in_packets, out_packets, in_bytes, out_bytes = _COUNTERS.unpack_from(has[_IFLA_STATS64])
                number = _LINK.unpack_from(body)[2]
                found[number] = Interface(called, in_bytes, out_bytes, in_packets, out_packets)
        if wanted:
            return tuple(found.values())
        cards = [each for each in found.values() if (sys_root / "class/net" / each.name / "device").exists()]
        return tuple(cards or (found[number] for number in sorted(_with_default_route(kernel) & found.keys())))


def _with_default_route(kernel: NetlinkSocket) -> set[int]:
    """The interfaces of default routes in all tables: AWS has one for each further network card."""
    found: set[int] = set()
    for family in (socket.AF_INET, socket.AF_INET6):
        for _, body in kernel.dump(_GET_ROUTE, _ROUTE.pack(family, 0, 0, 0, 0, 0, 0, 0, 0), "routes cannot be listed"):
            head = _ROUTE.unpack_from(body)
            if head[0] != family or head[1] != 0 or head[7] != _UNICAST:
                continue
            has = by_type(body, _ROUTE.size)
            if _RTA_OIF in has:
                found.add(struct.unpack("=i", has[_RTA_OIF])[0])
            hops, offset = has.get(_RTA_MULTIPATH, memoryview(b"")), 0
            while offset + _NEXT_HOP.size <= len(hops):
                length, _, _, index = _NEXT_HOP.unpack_from(hops, offset)
                found.add(index)
                offset += max(length, _NEXT_HOP.size)
    return found
