"""Permanent entries of the neighbour table (linux/neighbour.h): no ARP, no neighbour discovery, never collected."""

from __future__ import annotations

import struct
from typing import Final

from muster.network.netlink import attributes as att
from muster.network.netlink.ip import address_of
from muster.network.netlink.socket import CREATE, REPLACE, Message, NetlinkSocket

NEWNEIGH: Final = 28
GETNEIGH: Final = 30

_INFO: Final = struct.Struct("=BxxxiHBB")  # family, link, state, flags, type
_DST, _LLADDR = 1, 2
_PERMANENT: Final = 0x80
_FAMILIES: Final = {4: 2, 6: 10}


def add(link: int, ip: str, mac: str) -> Message:
    """Set the hardware address of a neighbour on the link with this number, for good."""
    address = address_of(ip)
    payload = _INFO.pack(_FAMILIES[address.version], link, _PERMANENT, 0, 0)
    payload += att.attribute(_DST, address.packed) + att.attribute(_LLADDR, bytes.fromhex(mac.replace(":", "")))
    return Message(NEWNEIGH, CREATE | REPLACE, payload)


def count_permanent(netlink: NetlinkSocket, version: int) -> int:
    """Return the number of permanent entries of this namespace for IP version 4 or 6."""
    header = _INFO.pack(_FAMILIES[version], 0, 0, 0, 0)
    answers = netlink.dump(GETNEIGH, header, "list neighbours")
    return sum(type_ == NEWNEIGH and bool(_INFO.unpack_from(payload)[2] & _PERMANENT) for type_, payload in answers)
