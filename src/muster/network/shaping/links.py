"""Network links as shaping needs them: pairs whose other end is in a pod, and the links that hold the queues."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from muster.network.netlink.attributes import by_type, nested, text, u32
from muster.network.netlink.socket import CREATE, EXCL, Message, NetlinkSocket

_NEW_LINK, _DEL_LINK, _GET_LINK = 16, 17, 18
_NAME, _QUEUE_LENGTH, _LINK_INFO, _PEER_NAMESPACE = 3, 13, 18, 37
_GET_ROUTE: Final = 26
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_ROUTE_LINK, _ROUTE_HOPS = 4, 9
_HOP: Final = struct.Struct("=HHi")
_INFO_KIND: Final = 1
_UP: Final = 1
_HEAD: Final = struct.Struct("=BxHiII")
_QUEUE_PACKETS: Final = 10_000

LINK_GROUP: Final = 1
"""RTMGRP_LINK: the multicast group that announces new links."""


class LinkInfo(NamedTuple):
    """A link and its number. `away` says whether the other end of a pair is in another network namespace."""

    number: int
    name: str
    kind: str
    away: bool


def links(socket: NetlinkSocket) -> list[LinkInfo]:
    """Return all links of the namespace. Raises NetlinkError."""
    return read_links(socket.dump(_GET_LINK, _HEAD.pack(0, 0, 0, 0, 0), "list links"))


def read_links(answers: Sequence[tuple[int, memoryview]]) -> list[LinkInfo]:
    """Return the links of a dump."""
    found = []
    for _, payload in answers:
        index = _HEAD.unpack_from(payload)[2]
        values = by_type(payload, _HEAD.size)
        kind = by_type(values.get(_LINK_INFO, b"")).get(_INFO_KIND, b"")
        found.append(LinkInfo(index, _text(values.get(_NAME, b"")), _text(kind), _PEER_NAMESPACE in values))
    return found


def default_routes(socket: NetlinkSocket) -> frozenset[int]:
    """Return the indexes of the links that default routes lead to: the node's own uplinks. Raises NetlinkError."""
    found = set()
    for _, payload in socket.dump(_GET_ROUTE, _ROUTE.pack(0, 0, 0, 0, 0, 0, 0, 0, 0), "list routes"):
        prefix_length = payload[1]
        if prefix_length:
            continue
        values = by_type(payload, _ROUTE.size)
        if _ROUTE_LINK in values:
            found.add(int(struct.unpack_from("=i", values[_ROUTE_LINK])[0]))
        hops = values.get(_ROUTE_HOPS, memoryview(b""))
        at = 0
        while at + _HOP.size <= len(hops):
            length, _, index = _HOP.unpack_from(hops, at)
            found.add(index)
            at += max(_HOP.size, length + (-length % 4))
    return frozenset(found)


def uplink_names(socket: NetlinkSocket) -> tuple[str, ...]:
    """Return the names of the links that default routes lead to. Raises NetlinkError."""
    numbers = default_routes(socket)
    return tuple(each.name for each in links(socket) if each.number in numbers)


def add_ifb(name: str) -> Message:
    """Return the message that creates a link that only queues what is redirected to it."""
    payload = _HEAD.pack(0, 0, 0, _UP, _UP) + text(_NAME, name) + u32(_QUEUE_LENGTH, _QUEUE_PACKETS)
    return Message(_NEW_LINK, CREATE | EXCL, payload + nested(_LINK_INFO, (text(_INFO_KIND, "ifb"),)))


def delete_link(index: int) -> Message:
    """Return the message that deletes a link, with its queues."""
    return Message(_DEL_LINK, 0, _HEAD.pack(0, 0, index, 0, 0))


def _text(value: bytes | memoryview) -> str:
    return bytes(value).rstrip(b"\0").decode(errors="replace")
