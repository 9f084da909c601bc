"""The links of a node: which lead out of it, and which are tunnels of the CNI over these."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.network.netlink.attributes import by_type, decoded
from muster.network.netlink.socket import ROUTE, NetlinkSocket

TUNNEL_PORTS: Final = (4789, 8472, 6081, 51820, 51821)
"""UDP ports of VXLAN (RFC 7348; Flannel's on Linux), Geneve, and WireGuard (Flannel, Calico, Cilium)."""

LINK_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,14}")
"""Names of links that firewalls take as they are: they read quotes, spaces and a final + or * in their own way."""

_GET_LINK: Final = 18
_LINK_HEAD: Final = struct.Struct("=BxHiII")
_NAME, _LOWER, _MASTER, _INFO = 3, 5, 10, 18
_INFO_KIND: Final = 1
_STACKED: Final = frozenset({"bond", "bridge", "team", "vlan", "vrf"})
_TUNNELS: Final = frozenset(
    {"vxlan", "geneve", "wireguard", "ipip", "sit", "ip6tnl", "gre", "gretap", "ip6gre", "ip6gretap", "xfrm"}
)


@dataclass(frozen=True)
class Interfaces:
    """Names of links.

    Attributes:
        nics: through which packets leave and enter the node, as the IP layer sees them: with a bond, both the bond
            and its ports.
        tunnels: the CNI's overlay devices. Their packets are counted for the pods, and the envelopes apart.
        tunnel_ports: UDP ports of the envelopes.
    """

    nics: tuple[str, ...]
    tunnels: tuple[str, ...] = ()
    tunnel_ports: tuple[int, ...] = TUNNEL_PORTS


@dataclass(frozen=True)
class Link:
    """What the kernel reports about a link. `lower` and `master` are indexes, 0 for none."""

    index: int
    name: str
    kind: str = ""
    lower: int = 0
    master: int = 0
    physical: bool = False


def detect(sys_root: Path = Path("/sys")) -> Interfaces:
    """Return the links of this network namespace: those with a device, what is stacked on them, and tunnels.

    Links with a name that is not a LINK_NAME are left out: one must not stop the counting.

    Raises:
        NetlinkError: the kernel refused to list links.
    """
    with NetlinkSocket(ROUTE) as kernel:
        listed = kernel.dump(_GET_LINK, _LINK_HEAD.pack(0, 0, 0, 0, 0), "list links")
    links = []
    for _, body in listed:
        parts = by_type(body, _LINK_HEAD.size)
        called = decoded(parts[_NAME])
        if not LINK_NAME.fullmatch(called):
            continue
        info = by_type(parts[_INFO]) if _INFO in parts else {}
        links.append(
            Link(
                index=_LINK_HEAD.unpack_from(body)[2],
                name=called,
                kind=decoded(info[_INFO_KIND]) if _INFO_KIND in info else "",
                lower=_index(parts.get(_LOWER)),
                master=_index(parts.get(_MASTER)),
                physical=(sys_root / "class/net" / called / "device").exists(),
            )
        )
    return choose(links)


def choose(links: Iterable[Link]) -> Interfaces:
    """Return which of these links are NICs and which are tunnels."""
    by_index = {link.index: link for link in links}
    nics = {index for index, link in by_index.items() if link.physical}
    while True:
        stacked = {
            index
            for index, link in by_index.items()
            if link.kind in _STACKED and link.lower in nics and index not in nics
        }
        stacked |= {
            link.master
            for index, link in by_index.items()
            if index in nics and link.master in by_index and link.master not in nics
        }
        if not stacked:
            break
        nics |= stacked
    return Interfaces(
        nics=tuple(sorted(by_index[index].name for index in nics)),
        tunnels=tuple(sorted(link.name for link in by_index.values() if link.kind in _TUNNELS)),
    )


def _index(value: memoryview | None) -> int:
    return int.from_bytes(value, sys.byteorder) if value is not None else 0
