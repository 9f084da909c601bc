"""IP addresses of links (linux/if_addr.h)."""

from __future__ import annotations

import ipaddress
import struct
from typing import Final, NamedTuple

from muster.network.netlink import attributes as att
from muster.network.netlink.ip import address_of
from muster.network.netlink.socket import CREATE, EXCL, Message, NetlinkSocket

NEWADDR: Final = 20
GETADDR: Final = 22

_INFO: Final = struct.Struct("=BBBBI")  # family, prefix, flags, scope, link
_ADDRESS, _LOCAL, _FLAGS = 1, 2, 8
_NO_DAD: Final = 0x02
_FAMILIES: Final = {4: 2, 6: 10}


class LinkAddress(NamedTuple):
    """An address of a link."""

    link: int
    ip: str
    prefix: int


def add(link: int, ip: str, prefix: int) -> Message:
    """Add an address to the link with this number.

    IPv6 does not look for duplicates (RFC 4862, section 5.4): the address is usable at once, and the node knows that
    it is unique.
    """
    address = address_of(ip)
    flags = _NO_DAD if address.version == 6 else 0
    payload = _INFO.pack(_FAMILIES[address.version], prefix, flags, 0, link)
    payload += att.attribute(_LOCAL, address.packed) + att.attribute(_ADDRESS, address.packed)
    return Message(NEWADDR, CREATE | EXCL, payload)


def all_addresses(netlink: NetlinkSocket) -> list[LinkAddress]:
    """Return all addresses of the namespace."""
    found = []
    for type_, payload in netlink.dump(GETADDR, _INFO.pack(0, 0, 0, 0, 0), "list addresses"):
        _, prefix, _, _, link = _INFO.unpack_from(payload)
        fields = att.by_type(payload, _INFO.size)
        octets = fields.get(_LOCAL, fields.get(_ADDRESS))  # IPv6 has IFA_LOCAL only on point-to-point links
        if type_ == NEWADDR and octets is not None:
            found.append(LinkAddress(link, str(ipaddress.ip_address(bytes(octets))), prefix))
    return found
