"""Links: create, find, change and delete (linux/if_link.h, linux/rtnetlink.h)."""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from muster.network.netlink import attributes as att
from muster.network.netlink.socket import CREATE, EXCL, Message, NetlinkError, NetlinkSocket

NEWLINK: Final = 16
DELLINK: Final = 17
GETLINK: Final = 18

UP: Final = 0x1
"""IFF_UP."""

_INFO: Final = struct.Struct("=BxHiII")  # family, type, index, flags, change mask
_ADDRESS, _IFNAME, _MTU, _LINK, _MASTER, _LINKINFO = 1, 3, 4, 5, 10, 18
_IFALIAS, _AF_SPEC, _NET_NS_FD, _LINK_NETNSID, _TARGET_NETNSID = 20, 26, 28, 37, 46
_INFO_KIND, _INFO_DATA = 1, 2
_VETH_INFO_PEER: Final = 1
_MACVLAN_MODE, _MACVLAN_BRIDGE = 1, 4
_IPVLAN_MODE, _IPVLAN_L2 = 1, 0
_AF_INET6: Final = 10
_INET6_ADDR_GEN_MODE, _GEN_NONE = 8, 1


class Link(NamedTuple):
    """A link.

    Attributes:
        number: its number in its network namespace.
        name: its name.
        kind: of virtual links, such as `veth`; otherwise empty.
        up: whether it is set up.
        mtu: bytes of the largest packet.
        mac: hardware address, such as `02:00:00:00:00:01`; empty if it has none.
        alias: text that describes it.
        peer: the number of a veth's other end, or of the link below; 0 if there is none.
        peer_elsewhere: whether `peer` counts in another network namespace.
        master: the number of the bridge or bond to which it belongs; 0 if there is none.
    """

    number: int
    name: str
    kind: str
    up: bool
    mtu: int
    mac: str
    alias: str
    peer: int
    peer_elsewhere: bool
    master: int


def find(netlink: NetlinkSocket, name: str, *, elsewhere: int | None = None) -> Link | None:
    """Return the link with this name; None if there is none.

    `elsewhere` is the number of another network namespace in which to look (`namespaceid`).
    """
    payload = _header() + att.text(_IFNAME, name) + _elsewhere(elsewhere)
    try:
        return _link(netlink.get(GETLINK, payload, f"find the link {name}"))
    except NetlinkError as error:
        if error.errno in (errno.ENODEV, errno.EINVAL if elsewhere is not None else errno.ENODEV):
            return None  # EINVAL: the namespace ended
        raise


def by_index(netlink: NetlinkSocket, index: int) -> Link | None:
    """Return the link with this number; None if there is none."""
    try:
        return _link(netlink.get(GETLINK, _header(index), f"find link {index}"))
    except NetlinkError as error:
        if error.errno == errno.ENODEV:
            return None
        raise


def all_links(netlink: NetlinkSocket) -> list[Link]:
    """Return all links of the namespace."""
    return [_link(payload) for type_, payload in netlink.dump(GETLINK, _header(), "list links") if type_ == NEWLINK]


def new_veth(name: str, mac: str, mtu: int, peer_name: str, peer_mac: str, peer_namespace: int) -> Message:
    """Create a veth here, and its other end in the network namespace of an open file.

    Both hardware addresses are given: udev replaces those that the kernel chose (systemd.link, MACAddressPolicy).
    """
    peer = (
        _header()
        + att.text(_IFNAME, peer_name)
        + att.attribute(_ADDRESS, _octets(peer_mac))
        + att.u32(_MTU, mtu)
        + att.u32(_NET_NS_FD, peer_namespace)
    )
    return _new(name, mac, mtu, "veth", att.nested(_INFO_DATA, (att.attribute(_VETH_INFO_PEER, peer),)))


def new_macvlan(name: str, mac: str, mtu: int, below: int, namespace: int) -> Message:
    """Create a macvlan in mode bridge on link `below`, in the network namespace of an open file."""
    data = att.nested(_INFO_DATA, (att.u32(_MACVLAN_MODE, _MACVLAN_BRIDGE),))
    return _new(name, mac, mtu, "macvlan", data, att.u32(_LINK, below) + att.u32(_NET_NS_FD, namespace))


def new_ipvlan(name: str, mtu: int, below: int, namespace: int) -> Message:
    """Create an ipvlan in mode L2 on link `below`, with the MAC of that, in the network namespace of an open file."""
    data = att.nested(_INFO_DATA, (att.attribute(_IPVLAN_MODE, struct.pack("=H", _IPVLAN_L2)),))
    return _new(name, "", mtu, "ipvlan", data, att.u32(_LINK, below) + att.u32(_NET_NS_FD, namespace))


def set_up(name: str, *, alias: str = "", link_local: bool = True) -> Message:
    """Set a link up, in one step with a text that describes it.

    Args:
        name: of the link.
        alias: the text; empty: it stays as it is.
        link_local: whether it gets an IPv6 link-local address.
    """
    payload = _header(flags=UP) + att.text(_IFNAME, name)
    if alias:
        payload += att.attribute(_IFALIAS, alias.encode())
    if not link_local:
        mode = att.attribute(_INET6_ADDR_GEN_MODE, bytes((_GEN_NONE,)))
        payload += att.nested(_AF_SPEC, (att.nested(_AF_INET6, (mode,)),))
    return Message(NEWLINK, 0, payload)


def set_mtu(name: str, mtu: int) -> Message:
    """Change the MTU of a link."""
    return Message(NEWLINK, 0, _header() + att.text(_IFNAME, name) + att.u32(_MTU, mtu))


def delete(name: str, *, elsewhere: int | None = None) -> Message:
    """Delete a link. The other end of a veth disappears with it. `elsewhere` is as in `find`."""
    return Message(DELLINK, 0, _header() + att.text(_IFNAME, name) + _elsewhere(elsewhere))


def _new(name: str, mac: str, mtu: int, kind: str, data: bytes, more: bytes = b"") -> Message:
    info = att.nested(_LINKINFO, (att.text(_INFO_KIND, kind), data))
    address = att.attribute(_ADDRESS, _octets(mac)) if mac else b""
    payload = _header() + att.text(_IFNAME, name) + address + att.u32(_MTU, mtu) + more + info
    return Message(NEWLINK, CREATE | EXCL, payload)


def _elsewhere(number: int | None) -> bytes:
    return att.attribute(_TARGET_NETNSID, struct.pack("=i", number)) if number is not None else b""


def _header(index: int = 0, flags: int = 0) -> bytes:
    return _INFO.pack(0, 0, index, flags, flags)


def _link(payload: memoryview) -> Link:
    _, _, index, flags, _ = _INFO.unpack_from(payload)
    found = att.by_type(payload, _INFO.size)
    info = att.by_type(found[_LINKINFO]) if _LINKINFO in found else {}
    return Link(
        number=index,
        name=_text(found, _IFNAME),
        kind=_text(info, _INFO_KIND),
        up=bool(flags & UP),
        mtu=_number(found, _MTU),
        mac=bytes(found.get(_ADDRESS, b"")).hex(":"),
        alias=_text(found, _IFALIAS),
        peer=_number(found, _LINK),
        peer_elsewhere=_LINK_NETNSID in found,
        master=_number(found, _MASTER),
    )


def _text(found: Mapping[int, memoryview], type_: int) -> str:
    return bytes(found.get(type_, b"")).rstrip(b"\0").decode(errors="replace")


def _number(found: Mapping[int, memoryview], type_: int) -> int:
    return int(struct.unpack_from("=I", found[type_])[0]) if type_ in found else 0


def _octets(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))
