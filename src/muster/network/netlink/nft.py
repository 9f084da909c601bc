"""Raw netlink for nftables: sets whose elements hold counters (linux/netfilter/nf_tables.h).

The program `nft` makes tables and rules; it takes 0.4 s to print 10,000 counters, which is too long for each second.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from muster.network.netlink.attributes import attribute, by_type, decoded, nested, spans, text
from muster.network.netlink.socket import ACK, CREATE, NETFILTER, Message, NetlinkSocket

INET: Final = 1
"""The family of tables for IPv4 and IPv6 (NFPROTO_INET)."""

_SUBSYSTEM: Final = 10
_FAMILIES: Final = {INET: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
_GET_TABLE: Final = 1
_GET_RULE: Final = 7
_GET_SET: Final = 10
_NEW_ELEMENT, _GET_ELEMENT, _DELETE_ELEMENT = 12, 13, 14
_ECHO: Final = 0x8
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_FAMILY: Final = struct.Struct(">BBH")

_TABLE_NAME, _TABLE_HANDLE = 1, 4
_RULE_TABLE, _RULE_CHAIN = 1, 2
_SET_TABLE, _SET_NAME = 1, 2
_LIST_TABLE, _LIST_SET, _LIST_ELEMENTS = 1, 2, 3
_ELEMENT: Final = 1
_KEY, _USERDATA, _EXPRESSION = 1, 6, 7
_VALUE: Final = 1
_EXPRESSION_DATA: Final = 2
_BYTES, _PACKETS = 1, 2
_COMMENT: Final = 0
_HEAD_BYTES: Final = 4
_COUNTS: Final = ((_PACKETS, "packets"), (_BYTES, "bytes"))
_ELEMENTS_BYTES: Final = 48 * 1024  # an attribute holds 64 KiB at most

COMMENT_MAX: Final = 128


Element = tuple[bytes, str, int, int]
"""An element of a set: key in the byte order of the kernel, comment, packets and bytes of its counter."""


class Rule(NamedTuple):
    """Where a rule is: the family of its table as `nft` names it, table, chain."""

    family: str
    table: str
    chain: str


class Ended(NamedTuple):
    """An element that was deleted, with its last values."""

    set: str
    element: Element


@dataclass(frozen=True)
class ElementChange:
    """Elements of one set to delete, and then (key, comment) to add with counters at 0."""

    set: str
    delete: Sequence[bytes] = ()
    add: Sequence[tuple[bytes, str]] = ()


class NftSocket:
    """Reads and changes the sets of one table of the family inet.

    Args:
        table: its name.
    """

    def __init__(self, table: str, *, timeout_s: float = 10.0) -> None:
        self._table = table
        self._socket = NetlinkSocket(NETFILTER, timeout_s=timeout_s)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def __enter__(self) -> NftSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def table_handle(self) -> int:
        """Return the number that the kernel gave the table; a table that is made again gets another one.

        Raises:
            NetlinkError: ENOENT if there is no such table.
        """
        answer = self._socket.get(_type(_GET_TABLE), _family(INET) + text(_TABLE_NAME, self._table), "find the table")
        return int.from_bytes(by_type(answer, _FAMILY.size)[_TABLE_HANDLE], "big")

    def sets(self) -> list[str]:
        """Return the names of the table's sets and maps.

        Raises:
            NetlinkError: the kernel refused.
        """
        listed = self._socket.dump(_type(_GET_SET), _family(INET) + text(_SET_TABLE, self._table), "list sets")
        return [decoded(by_type(body, _FAMILY.size)[_SET_NAME]) for _, body in listed]

    def rules(self) -> int:
        """Return how many rules the table has.

        Raises:
            NetlinkError: the kernel refused.
        """
        payload = _family(INET) + text(_RULE_TABLE, self._table)
        return len(self._socket.dump(_type(_GET_RULE), payload, "list rules"))

    def elements(self, name: str) -> list[Element]:
        """Return all elements of a set.

        Raises:
            NetlinkError: ENOENT if there is no such set.
        """
        payload = _family(INET) + text(_LIST_TABLE, self._table) + text(_LIST_SET, name)
        found: list[Element] = []
        layouts: dict[int, _Layout] = {}
        for _, body in self._socket.dump(_type(_GET_ELEMENT), payload, f"read set {name}"):
            found.extend(_elements(body, layouts))
        return found

    def change(self, changes: Sequence[ElementChange]) -> list[Ended]:
        """Carry out all changes as one transaction; return what the deleted elements had counted at its commit.

        Raises:
            NetlinkError: the kernel refused, and nothing changed.
        """
        messages = [
            message
            for change in changes
            for message in (
                *self._messages(_DELETE_ELEMENT, _ECHO, change.set, [_element(key, "") for key in change.delete]),
                *self._messages(_NEW_ELEMENT, CREATE, change.set, [_element(*each) for each in change.add]),
            )
        ]
        if not messages:
            return []
        bracket = _FAMILY.pack(0, 0, _SUBSYSTEM)
        echoed = self._socket.transaction(
            [Message(_BATCH_BEGIN, 0, bracket), *messages, Message(_BATCH_END, 0, bracket)], "change sets"
        )
        ended: list[Ended] = []
        layouts: dict[int, _Layout] = {}
        for kind, body in echoed:
            if kind == _type(_DELETE_ELEMENT):
                name = decoded(by_type(body, _FAMILY.size)[_LIST_SET])
                ended.extend(Ended(name, element) for element in _elements(body, layouts))
        return ended

    def _messages(self, type_: int, flags: int, name: str, elements: Sequence[bytes]) -> Iterator[Message]:
        head = _family(INET) + text(_LIST_TABLE, self._table) + text(_LIST_SET, name)
        part: list[bytes] = []
        size = 0
        for element in elements:
            part.append(element)
            size += len(element)
            if size > _ELEMENTS_BYTES:
                yield Message(_type(type_), flags | ACK, head + nested(_LIST_ELEMENTS, part))
                part, size = [], 0
        if part:
            yield Message(_type(type_), flags | ACK, head + nested(_LIST_ELEMENTS, part))


def list_rules() -> list[Rule]:
    """Return where the rules of all tables in this network namespace are.

    Raises:
        NetlinkError: the kernel refused.
    """
    with NetlinkSocket(NETFILTER) as kernel:
        listed = kernel.dump(_type(_GET_RULE), _family(0), "list rules")
    rules = []
    for _, body in listed:
        parts = by_type(body, _FAMILY.size)
        family = body[0]
        rules.append(Rule(_FAMILIES.get(family, str(family)), decoded(parts[_RULE_TABLE]), decoded(parts[_RULE_CHAIN])))
    return rules


def _type(message: int) -> int:
    return _SUBSYSTEM << 8 | message


def _family(family: int) -> bytes:
    return _FAMILY.pack(family, 0, 0)


def _element(key: bytes, comment: str) -> bytes:
    parts = [nested(_KEY, [attribute(_VALUE, key)])]
    if comment:
        data = comment.encode() + b"\0"  # as `nft` stores comments: type, length, text
        parts.append(attribute(_USERDATA, bytes((_COMMENT, len(data))) + data))
    return nested(_ELEMENT, parts)


class _Layout:
    """Where the parts of an element lie. All elements of a set have the same few layouts, learned at the first of each.

    Reading an attribute at a time takes 10 us an element, which is too long for 10,000.
    """

    def __init__(self, data: memoryview) -> None:
        """Learn it from an element, its head included."""
        inside = _HEAD_BYTES
        parts = _parts(data, inside, len(data))
        wanted = [(*_parts(data, *parts[_KEY])[_VALUE], "key")]
        if _EXPRESSION in parts:
            counter = _parts(data, *_parts(data, *parts[_EXPRESSION])[_EXPRESSION_DATA])
            wanted += [(*counter[kind], name) for kind, name in _COUNTS if kind in counter]
        if _USERDATA in parts:
            start, stop = parts[_USERDATA]
            if data[start] == _COMMENT:
                wanted.append((start + 2, stop - 1, "comment"))
        wanted.sort()
        format_, at = ">", 0
        for first, last, name in wanted:
            format_ += f"{first - at}s" + ("Q" if name in ("packets", "bytes") else f"{last - first}s")
            at = last
        order = [name for _, _, name in wanted]
        self._struct = struct.Struct(f"{format_}{len(data) - at}s")
        self._heads = self._struct.unpack(data)[::2]
        self._at = [
            2 * order.index(name) + 1 if name in order else -1 for name in ("key", "comment", "packets", "bytes")
        ]

    def read(self, data: memoryview) -> list[Element] | None:
        """Return the elements in `data`, which holds nothing else; None if not all have this layout."""
        if len(data) % self._struct.size:
            return None
        columns = list(zip(*self._struct.iter_unpack(data), strict=True))
        count = len(columns[0])
        if any(columns[2 * at].count(head) != count for at, head in enumerate(self._heads)):
            return None
        key, comment, packets, sizes = self._at
        none: Sequence[Any] = (0,) * count
        return list(
            zip(
                columns[key],
                map(bytes.decode, columns[comment]) if comment > 0 else ("",) * count,
                columns[packets] if packets > 0 else none,
                columns[sizes] if sizes > 0 else none,
                strict=True,
            )
        )


def _parts(data: memoryview, start: int, stop: int) -> dict[int, tuple[int, int]]:
    return {kind: (first, end) for kind, first, end in spans(data, start, stop)}


def _elements(body: memoryview, layouts: dict[int, _Layout]) -> list[Element]:
    """Return the elements of a message: at once if all have one layout, else one after the other."""
    start, end = _parts(body, _FAMILY.size, len(body)).get(_LIST_ELEMENTS, (0, 0))
    found: list[Element] = []
    for _, first, stop in spans(body, start, end):
        data = body[first - _HEAD_BYTES : stop]
        layout = layouts.get(len(data)) or layouts.setdefault(len(data), _Layout(data))
        if not found and (whole := layout.read(body[start:end])) is not None:
            return whole
        one = layout.read(data)
        if one is None:
            layouts[len(data)] = layout = _Layout(data)
            one = layout.read(data)
        found += one or ()
    return found
