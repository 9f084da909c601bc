"""Finds the interface on the host that carries a pod's packets, with any CNI, by the pod's address.

1. The kernel lists the addresses of another network namespace to a process with CAP_NET_ADMIN (RTM_GETADDR with
   IFA_TARGET_NETNSID). The host's end of a veth or netkit pair names that namespace and the index of its other end
   (IFLA_LINK_NETNSID, IFLA_LINK). So no process of the pod is looked at, and no namespace is entered.
2. Some sandboxes take the address off the interface (gVisor). Then the route to the address names the interface.
3. If that is a bridge, the neighbour table and the bridge's forwarding table name its port.

An interface counts only if its other end is in another namespace, so a physical one never does.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from muster.network.netlink.attributes import attribute, by_type, decoded, u32
from muster.network.netlink.socket import ROUTE, NetlinkError, NetlinkSocket

_GET_LINK, _GET_ADDRESS, _GET_ROUTE, _GET_NEIGHBOUR = 18, 22, 26, 30
_LINK: Final = struct.Struct("=BxHiII")
_ADDRESS: Final = struct.Struct("=BBBBi")
_NEIGHBOUR: Final = struct.Struct("=BxxxiHBB")
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_IFLA_IFNAME, _IFLA_LINK, _IFLA_MASTER, _IFLA_LINK_NETNSID = 3, 5, 10, 37
_IFA_ADDRESS, _IFA_LOCAL, _IFA_TARGET_NETNSID = 1, 2, 10
_RTA_DST, _RTA_OIF, _RTA_GATEWAY = 1, 4, 5
_UNICAST: Final = 1
_FIB_MATCH: Final = 0x2000
"""RTM_F_FIB_MATCH: answer with the route, not with what it says about one address."""
_NDA_DST, _NDA_LLADDR = 1, 2
_AGAIN_S: Final = 1.0
"""Least time between two reads of all namespaces: an address that is not found is often not there yet."""


class _Link(NamedTuple):
    number: int
    name: str
    peer: int
    namespace: int
    """Number of the namespace of the other end; -1 for none."""
    bridge: int


class _Found(NamedTuple):
    number: int
    name: str


class Interfaces:
    """The interfaces of pods, in the network namespace of the thread that asks."""

    def __init__(self) -> None:
        self._found: dict[bytes, _Found] = {}
        self._read_s = -_AGAIN_S

    def of_addresses(self, addresses: Iterable[str]) -> str:
        """Return the name of the interface; "" without one of the pod's own.

        Raises:
            OSError: the kernel did not answer.
        """
        wanted = [ipaddress.ip_address(each).packed for each in addresses]
        known = self._known(wanted)
        if known or not wanted:
            return known
        now = time.monotonic()
        if now - self._read_s < _AGAIN_S:
            return ""
        self._read_s = now
        with NetlinkSocket(ROUTE, strict=True) as kernel:
            links = _links(kernel)
            self._found = _by_namespace(kernel, links)
            if not any(each in self._found for each in wanted):
                for each in wanted:
                    found = _by_route(kernel, links, each)
                    if found is not None:
                        self._found[each] = found
        return self._known(wanted)

    def _known(self, wanted: Iterable[bytes]) -> str:
        for each in wanted:
            found = self._found.get(each)
            if found is not None and _exists(found):
                return found.name
        return ""


def _exists(found: _Found) -> bool:
    """Whether the interface is still the one that was found: names and addresses are used again."""
    try:
        return socket.if_nametoindex(found.name) == found.number
    except OSError:
        return False


def _links(kernel: NetlinkSocket) -> dict[int, _Link]:
    links = {}
    for _, body in kernel.dump(_GET_LINK, _LINK.pack(0, 0, 0, 0, 0), "links cannot be listed"):
        index = _LINK.unpack_from(body)[2]
        has = by_type(body, _LINK.size)
        links[index] = _Link(
            index,
            decoded(has[_IFLA_IFNAME]),
            _number(has.get(_IFLA_LINK)),
            _number(has.get(_IFLA_LINK_NETNSID), -1),
            _number(has.get(_IFLA_MASTER)),
        )
    return links


def _by_namespace(kernel: NetlinkSocket, links: dict[int, _Link]) -> dict[bytes, _Found]:
    """The host's ends by the addresses at their other ends. An address that is there twice is left out."""
    ends = {(each.namespace, each.peer): each for each in links.values() if each.namespace >= 0 and each.peer}
    found: dict[bytes, _Found] = {}
    twice: set[bytes] = set()
    for namespace in sorted({namespace for namespace, _ in ends}):
        request = _ADDRESS.pack(0, 0, 0, 0, 0) + u32(_IFA_TARGET_NETNSID, namespace)
        try:
            answers = kernel.dump(_GET_ADDRESS, request, "addresses of a namespace cannot be listed")
        except NetlinkError:
            continue  # it ended, or the kernel is older than 4.20
        for _, body in answers:
            index = _ADDRESS.unpack_from(body)[4]
            has = by_type(body, _ADDRESS.size)
            address = bytes(has.get(_IFA_LOCAL) or has.get(_IFA_ADDRESS) or b"")
            end = ends.get((namespace, index))
            if end is not None:
                twice.update({address} & found.keys())
                found[address] = _Found(end.number, end.name)
    return {address: each for address, each in found.items() if address not in twice}


def _by_route(kernel: NetlinkSocket, links: dict[int, _Link], address: bytes) -> _Found | None:
    family = socket.AF_INET if len(address) == 4 else socket.AF_INET6
    head = _ROUTE.pack(family, 8 * len(address), 0, 0, 0, 0, 0, 0, _FIB_MATCH)
    try:
        body = kernel.get(_GET_ROUTE, head + attribute(_RTA_DST, address), "the route to a pod cannot be read")
    except NetlinkError:
        return None
    route, has = _ROUTE.unpack_from(body), by_type(body, _ROUTE.size)
    link = links.get(_number(has.get(_RTA_OIF)))
    if link is None or route[7] != _UNICAST or _RTA_GATEWAY in has:
        return None
    if link.namespace >= 0:  # also the uplink of a node that is a container: it has no route to one address
        return _Found(link.number, link.name) if route[1] == 8 * len(address) else None
    hardware = _hardware_address(kernel, family, link.number, address)
    port = _bridge_port(kernel, links, link.number, hardware) if hardware else None
    return _Found(port.number, port.name) if port is not None and port.namespace >= 0 else None


def _hardware_address(kernel: NetlinkSocket, family: int, index: int, address: bytes) -> bytes:
    request = _NEIGHBOUR.pack(family, 0, 0, 0, 0)
    for _, body in kernel.dump(_GET_NEIGHBOUR, request, "neighbours cannot be listed"):
        has = by_type(body, _NEIGHBOUR.size)
        if _NEIGHBOUR.unpack_from(body)[1] == index and bytes(has.get(_NDA_DST) or b"") == address:
            return bytes(has.get(_NDA_LLADDR) or b"")
    return b""


def _bridge_port(kernel: NetlinkSocket, links: dict[int, _Link], bridge: int, hardware: bytes) -> _Link | None:
    request = _NEIGHBOUR.pack(socket.AF_BRIDGE, 0, 0, 0, 0)
    for _, body in kernel.dump(_GET_NEIGHBOUR, request, "a bridge's forwarding table cannot be listed"):
        port = links.get(_NEIGHBOUR.unpack_from(body)[1])
        has = by_type(body, _NEIGHBOUR.size)
        if port is not None and port.bridge == bridge and bytes(has.get(_NDA_LLADDR) or b"") == hardware:
            return port
    return None


def _number(payload: memoryview | None, default: int = 0) -> int:
    return struct.unpack("=i", payload)[0] if payload is not None and len(payload) == 4 else default
