"""Messages of traffic control: qdiscs, htb classes, and filters (linux/pkt_sched.h, linux/pkt_cls.h).

Rates are bits per second, sizes bytes. Nothing here waits; send the messages with a NetlinkSocket.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from muster.network.netlink.attributes import attribute, by_type, nested, text
from muster.network.netlink.socket import CREATE, EXCL, REPLACE, Message

NEW_QDISC, DEL_QDISC, GET_QDISC = 36, 37, 38
NEW_CLASS, DEL_CLASS, GET_CLASS = 40, 41, 42
NEW_FILTER, DEL_FILTER, GET_FILTER = 44, 45, 46

ROOT: Final = 0xFFFFFFFF
CLSACT: Final = 0xFFFFFFF1
"""The parent of a clsact or ingress qdisc."""
CLSACT_HANDLE: Final = 0xFFFF0000
INGRESS: Final = 0xFFFFFFF2
"""The parent of filters for what arrives from the link."""
EGRESS: Final = 0xFFFFFFF3
"""The parent of filters for what is sent to the link."""

_KIND, _OPTIONS, _STATS2 = 1, 2, 7
_INGRESS_BLOCK, _EGRESS_BLOCK = 13, 14
_HTB_PARAMETERS, _HTB_INIT, _HTB_RATE64, _HTB_CEIL64 = 1, 2, 6, 7
_BPF_ACTION, _BPF_OPS_LENGTH, _BPF_OPS = 1, 4, 5
_ACTION_KIND, _ACTION_OPTIONS = 1, 2
_MIRRED_PARAMETERS: Final = 2
_EGRESS_REDIRECT: Final = 1
_STOLEN: Final = 4
_ALL_PROTOCOLS: Final = 0x0300  # ETH_P_ALL in network byte order
_ETHERNET: Final = 1
_TICK_NS: Final = 64
_U32_MAX: Final = 2**32 - 1
_QUANTUM_BYTES: Final = 20_000

_HEAD: Final = struct.Struct("=BxxxiIII")
_HTB_OPTIONS: Final = struct.Struct("=BBHhHI BBHhHI IIIII")


class Qdisc(NamedTuple):
    """A qdisc as the kernel lists it. `shared` says whether its filters are in a block of several links."""

    link: int
    kind: str
    handle: int
    parent: int
    shared: bool


class Filter(NamedTuple):
    """A filter as the kernel lists it.

    Attributes:
        preference: its place in the order; lower ones are asked first.
        kind: such as bpf or u32.
        handle: 0 for the row that only names the preference.
        redirect: the link that its first action redirects to; 0 without.
    """

    preference: int
    kind: str
    handle: int
    redirect: int


class Count(NamedTuple):
    """Bytes with the Ethernet header of each packet, and packets of at most the link's MTU."""

    bytes: int
    packets: int


class ClassCount(NamedTuple):
    """What a class has sent, dropped and holds. Dropped packets are counted before they are cut to the MTU."""

    handle: int
    sent: Count
    drops: int
    backlog_bytes: int


def handle(major: int, minor: int) -> int:
    """Return the number of `major:minor`."""
    return major << 16 | minor


def _tc(link: int, number: int, parent: int, info: int = 0) -> bytes:
    return _HEAD.pack(0, link, number, parent, info)


def dump(link: int = 0, parent: int = 0) -> bytes:
    """Return the payload that lists qdiscs (of all links), classes of a link, or filters of a link and parent."""
    return _tc(link, 0, parent)


def add_htb(link: int, number: int, default_minor: int) -> Message:
    """Return the message that makes htb the root of a link. It fails if the link has another one (EEXIST)."""
    glob = struct.pack("=5I", 3, 10, default_minor, 0, 0)
    options = nested(_OPTIONS, (attribute(_HTB_INIT, glob),))
    return Message(NEW_QDISC, CREATE | EXCL, _tc(link, number, ROOT) + text(_KIND, "htb") + options)


def set_htb_class(
    link: int, number: int, parent: int, rate_bps: int, ceil_bps: int, burst_ns: int, priority: int
) -> Message:
    """Return the message that creates a class or changes it. A change keeps queue, counters and tokens.

    Args:
        link: index of the link.
        number: of the class.
        parent: the qdisc or class above it.
        rate_bps: what it gets in any case.
        ceil_bps: what it may borrow up to.
        burst_ns: how long it may save up its rate.
        priority: classes with a smaller one borrow first.
    """
    rate, ceil = max(1, rate_bps // 8), max(1, ceil_bps // 8)
    ticks = max(1, min(_U32_MAX, burst_ns // _TICK_NS))
    parameters = _HTB_OPTIONS.pack(
        *(0, _ETHERNET, 0, 0, 0, min(rate, _U32_MAX)),
        *(0, _ETHERNET, 0, 0, 0, min(ceil, _U32_MAX)),
        *(ticks, ticks, _QUANTUM_BYTES, 0, priority),
    )
    inside = [attribute(_HTB_PARAMETERS, parameters)]
    if rate > _U32_MAX:
        inside.append(attribute(_HTB_RATE64, struct.pack("=Q", rate)))
    if ceil > _U32_MAX:
        inside.append(attribute(_HTB_CEIL64, struct.pack("=Q", ceil)))
    payload = _tc(link, number, parent) + text(_KIND, "htb") + nested(_OPTIONS, inside)
    return Message(NEW_CLASS, CREATE, payload)


def delete_class(link: int, number: int) -> Message:
    """Return the message that deletes a class and the packets in its queue."""
    return Message(DEL_CLASS, 0, _tc(link, number, 0))


def set_byte_fifo(link: int, parent: int, limit_bytes: int) -> Message:
    """Return the message that gives a class a queue of so many bytes, or changes the limit of its queue."""
    options = attribute(_OPTIONS, struct.pack("=I", limit_bytes))
    return Message(NEW_QDISC, CREATE | REPLACE, _tc(link, 0, parent) + text(_KIND, "bfifo") + options)


def add_fq_codel(link: int, parent: int) -> Message:
    """Return the message that gives a class a fair queue per flow. It fails if the kernel has none (ENOENT)."""
    return Message(NEW_QDISC, CREATE | EXCL, _tc(link, 0, parent) + text(_KIND, "fq_codel"))


def add_clsact(link: int) -> Message:
    """Return the message that gives a link places for filters. It fails if it has them (EEXIST)."""
    return Message(NEW_QDISC, CREATE | EXCL, _tc(link, CLSACT_HANDLE, CLSACT) + text(_KIND, "clsact"))


def delete_clsact(link: int) -> Message:
    """Return the message that removes the places for filters, with all filters in them."""
    return Message(DEL_QDISC, 0, _tc(link, CLSACT_HANDLE, CLSACT))


def set_classifier(link: int, parent: int, preference: int, program: bytes) -> Message:
    """Return the message that sets a classic BPF program whose result is the number of a class. Replacing is atomic."""
    return _bpf(link, parent, preference, program, b"")


def set_redirect(link: int, parent: int, preference: int, program: bytes, target: int) -> Message:
    """Return the message that sends matching packets through another link, whose egress queues them."""
    options = struct.pack("=IIiiiiI", 0, 0, _STOLEN, 0, 0, _EGRESS_REDIRECT, target)
    return _bpf(link, parent, preference, program, _action("mirred", _MIRRED_PARAMETERS, options))


def delete_filters(link: int, parent: int, preference: int) -> Message:
    """Return the message that removes all filters of a preference."""
    return Message(DEL_FILTER, 0, _tc(link, 0, parent, preference << 16 | _ALL_PROTOCOLS))


def _bpf(link: int, parent: int, preference: int, program: bytes, action: bytes) -> Message:
    inside = [attribute(_BPF_OPS_LENGTH, struct.pack("=H", len(program) // 8)), attribute(_BPF_OPS, program)]
    if action:
        inside.append(action)
    head = _tc(link, 1, parent, preference << 16 | _ALL_PROTOCOLS)
    return Message(NEW_FILTER, CREATE, head + text(_KIND, "bpf") + nested(_OPTIONS, inside))


def _action(kind: str, parameters: int, options: bytes) -> bytes:
    first = nested(1, (text(_ACTION_KIND, kind), nested(_ACTION_OPTIONS, (attribute(parameters, options),))))
    return nested(_BPF_ACTION, (first,))


def read_qdiscs(answers: Sequence[tuple[int, memoryview]]) -> list[Qdisc]:
    """Return the qdiscs of a dump."""
    found = []
    for _, payload in answers:
        _, link, number, parent, _ = _HEAD.unpack_from(payload)
        values = by_type(payload, _HEAD.size)
        shared = _INGRESS_BLOCK in values or _EGRESS_BLOCK in values
        found.append(Qdisc(link, _text(values.get(_KIND)), number, parent, shared))
    return found


def read_filters(answers: Sequence[tuple[int, memoryview]]) -> list[Filter]:
    """Return the filters of a dump."""
    found = []
    for _, payload in answers:
        _, _, number, _, info = _HEAD.unpack_from(payload)
        values = by_type(payload, _HEAD.size)
        kind, redirect = _text(values.get(_KIND)), 0
        if kind == "bpf" and number:
            actions = by_type(by_type(values.get(_OPTIONS, b"")).get(_BPF_ACTION, b""))
            first = by_type(actions.get(1, b""))
            if _text(first.get(_ACTION_KIND)) == "mirred":
                parameters = by_type(first.get(_ACTION_OPTIONS, b"")).get(_MIRRED_PARAMETERS, b"")
                redirect = struct.unpack_from("=I", parameters, 24)[0]
        found.append(Filter(info >> 16, kind, number, redirect))
    return found


def read_classes(answers: Sequence[tuple[int, memoryview]]) -> list[ClassCount]:
    """Return the classes of a dump."""
    found = []
    for _, payload in answers:
        number = _HEAD.unpack_from(payload)[2]
        stats = by_type(by_type(payload, _HEAD.size).get(_STATS2, b""))
        backlog, drops = 0, 0
        queue = stats.get(3)
        if queue is not None:
            _, backlog, drops = struct.unpack_from("=III", queue)
        found.append(ClassCount(number, _basic(stats), drops, backlog))
    return found


def _basic(stats: dict[int, memoryview]) -> Count:
    """Return gnet_stats_basic; the packets beyond 32 bits are in an attribute of their own."""
    basic = stats.get(1)
    if basic is None:
        return Count(0, 0)
    sent, packets = struct.unpack_from("=QI", basic)
    wide = stats.get(8)
    if wide is not None:
        (packets,) = struct.unpack_from("=Q", wide)
    return Count(sent, packets)


def _text(value: memoryview | None) -> str:
    return bytes(value).rstrip(b"\0").decode(errors="replace") if value is not None else ""
