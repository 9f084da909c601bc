"""The program at a control group: a token bucket for packets of the budgeted class (the GCRA of ITU-T I.371).

The bucket is one time: until when the packets so far have paid. A packet that comes before its predecessors have paid
is dropped. Idle time is saved up to the burst. One atomic addition per packet keeps this exact on all CPUs.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from muster.network.bpf import groups
from muster.network.bpf.assembler import (
    ADD,
    AND,
    AT_LEAST,
    BYTE,
    DOUBLE,
    EQUAL,
    FRAME,
    GREATER,
    HALF,
    LEFT,
    MUL,
    NOT_EQUAL,
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    RIGHT,
    SUB,
    WORD,
    Assembler,
)
from muster.network.bpf.maps import ARRAY, LPM_TRIE, Map
from muster.network.shaping.program import Network

VALUE_BYTES: Final = 40
LIMIT, COUNTS = 0, 2
"""Entries of a bucket's map: LIMIT + direction, COUNTS + direction."""
_SHIFT: Final = 16
BURST_NS: Final = 100_000_000
"""TCP needs about a round trip of burst to reach a policed rate."""
BURST_MIN_BYTES: Final = 256 * 1024
BURST_MAX_BYTES: Final = 16 * 1024 * 1024

_PASS_AND_SLOW_DOWN: Final = 3
_DROP_QUIETLY: Final = 2
"""Results of egress programs: TCP reduces its window, and a sender of UDP sees no error (linux/bpf-cgroup.h)."""
_FOUR, _SIX = socket.htons(0x0800), socket.htons(0x86DD)
_KEY, _ADDRESS = -32, -28
_BYTES, _PACKETS, _DROPS, _DROPPED_BYTES = 8, 16, 24, 32


class Tables(NamedTuple):
    """Which networks the budget covers: tries of IPv4 and IPv6 prefixes. Programs keep them."""

    four: Map
    six: Map


class Counts(NamedTuple):
    """What a program let through, in IP bytes, and what it dropped."""

    bytes: int
    packets: int
    drops: int
    dropped_bytes: int


def make_tables(classes: Mapping[Network, bool]) -> Tables:
    """Return the tables. Raises BpfError."""
    made = []
    for version, size in ((4, 4), (6, 16)):
        mine = {network: covered for network, covered in classes.items() if network.version == version}
        table = Map.create(
            LPM_TRIE, f"muster_class{version}", key_bytes=4 + size, value_bytes=4, entries_max=max(1, len(mine))
        )
        for network, covered in mine.items():
            key = struct.pack("=I", network.prefixlen) + network.network_address.packed
            table.put(key, struct.pack("=I", int(covered)))
        made.append(table)
    return Tables(*made)


def make_bucket() -> Map:
    """Return the map of a subject's two buckets. Raises BpfError."""
    return Map.create(ARRAY, "muster_bucket", value_bytes=VALUE_BYTES, entries_max=4)


def limit_value(rate_bps: int | None) -> bytes:
    """Return the value of an entry LIMIT; None: only count."""
    if rate_bps is None:
        return bytes(VALUE_BYTES)
    rate = max(1, rate_bps // 8)
    burst = min(BURST_MAX_BYTES, max(BURST_MIN_BYTES, rate * BURST_NS // 1_000_000_000))
    cost = max(1, (1_000_000_000 << _SHIFT) // rate)
    return struct.pack("=QQ", cost, burst * 1_000_000_000 // rate).ljust(VALUE_BYTES, b"\0")


def read_counts(value: bytes) -> Counts:
    """Return the numbers of an entry COUNTS."""
    return Counts(*struct.unpack_from("=QQQQ", value, _BYTES))


def assemble(direction: int, tables: Tables, bucket: Map, ports: Sequence[int]) -> bytes:
    """Return the program for one direction of a subject.

    Args:
        direction: groups.INGRESS or groups.EGRESS.
        tables: which networks the budget covers.
        bucket: of the subject.
        ports: TCP and UDP ports that are never dropped.
    """
    out = Assembler()
    sends = direction == groups.EGRESS
    out.move(R6, R1)
    out.load(WORD, R7, R6, groups.PROTOCOL)
    out.jump(EQUAL, R7, _SIX, "six")
    out.jump(NOT_EQUAL, R7, _FOUR, "allow")
    _emit_lookup(out, 16 if sends else 12, 4, tables.four)
    _emit_transport(out, 9, ports)
    _emit_load(out, 0, 1)
    out.load(BYTE, R7, FRAME, _ADDRESS)
    out.calculate(AND, R7, 0xF)
    out.calculate(LEFT, R7, 2)
    out.goto("ports")
    out.label("six")
    _emit_lookup(out, 24 if sends else 8, 16, tables.six)
    _emit_transport(out, 6, ports)
    out.number(R7, 40)
    out.label("ports")
    _emit_ports(out, ports)
    out.label("meter")
    _emit_bucket(out, direction, bucket)
    out.label("allow")
    out.number(R0, groups.ALLOW)
    out.exit()
    return out.assemble()


def _emit_load(out: Assembler, offset: int, size: int) -> None:
    """Copy bytes of the packet to the stack. A packet that is too short is not ours to judge."""
    out.move(R1, R6)
    out.number(R2, offset)
    _emit_load_at_r2(out, size)


def _emit_load_at_r2(out: Assembler, size: int) -> None:
    out.move(R3, FRAME)
    out.calculate(ADD, R3, _ADDRESS)
    out.number(R4, size)
    out.call(groups.LOAD_BYTES)
    out.jump(NOT_EQUAL, R0, 0, "allow")


def _emit_lookup(out: Assembler, offset: int, size: int, table: Map) -> None:
    """Continue if the budget covers the peer's address."""
    name = f"covered{size}"
    _emit_load(out, offset, size)
    out.store_number(WORD, FRAME, _KEY, 8 * size)
    out.map(R1, table.descriptor)
    out.move(R2, FRAME)
    out.calculate(ADD, R2, _KEY)
    out.call(groups.LOOKUP)
    out.jump(EQUAL, R0, 0, name)
    out.load(WORD, R1, R0, 0)
    out.jump(EQUAL, R1, 0, "allow")
    out.label(name)


def _emit_transport(out: Assembler, offset: int, ports: Sequence[int]) -> None:
    if not ports:
        out.goto("meter")
        return
    name = f"transport{offset}"
    _emit_load(out, offset, 1)
    out.load(BYTE, R1, FRAME, _ADDRESS)
    out.jump(EQUAL, R1, socket.IPPROTO_TCP, name)
    out.jump(NOT_EQUAL, R1, socket.IPPROTO_UDP, "meter")
    out.label(name)


def _emit_ports(out: Assembler, ports: Sequence[int]) -> None:
    out.move(R1, R6)
    out.move(R2, R7)
    _emit_load_at_r2(out, 4)
    for at in (0, 2):
        out.load(HALF, R1, FRAME, _ADDRESS + at)
        for port in ports:
            out.jump(EQUAL, R1, socket.htons(port), "allow")


def _emit_entry(out: Assembler, bucket: Map, entry: int, to: int) -> None:
    out.store_number(WORD, FRAME, _KEY, entry)
    out.map(R1, bucket.descriptor)
    out.move(R2, FRAME)
    out.calculate(ADD, R2, _KEY)
    out.call(groups.LOOKUP)
    out.jump(EQUAL, R0, 0, "allow")
    out.move(to, R0)


def _emit_bucket(out: Assembler, direction: int, bucket: Map) -> None:
    """R7: bytes. R8: counts. R9: limit."""
    sends = direction == groups.EGRESS
    _emit_entry(out, bucket, COUNTS + direction, R8)
    _emit_entry(out, bucket, LIMIT + direction, R9)
    out.load(WORD, R7, R6, groups.LENGTH)
    out.load(DOUBLE, R1, R9, 0)
    out.jump(EQUAL, R1, 0, "count")
    out.call(groups.TIME_NS)
    out.move(R4, R0)
    out.load(DOUBLE, R5, R9, 8)
    out.load(DOUBLE, R9, R9, 0)
    out.calculate_register(MUL, R9, R7)
    out.calculate(RIGHT, R9, _SHIFT)
    out.move(R3, R4)
    out.calculate_register(SUB, R3, R5)
    out.load(DOUBLE, R0, R8, 0)
    out.jump_register(AT_LEAST, R0, R3, "pay")
    out.compare_exchange(R8, 0, R3)
    out.label("pay")
    out.move(R1, R9)
    out.fetch_add(R8, 0, R1)
    out.jump_register(GREATER, R1, R4, "drop")
    if sends:
        out.calculate(RIGHT, R5, 2)
        out.calculate_register(ADD, R1, R5)
        out.jump_register(GREATER, R1, R4, "slow")
    out.label("count")
    _emit_count(out, _BYTES, _PACKETS)
    out.goto("allow")
    if sends:
        out.label("slow")
        _emit_count(out, _BYTES, _PACKETS)
        out.number(R0, _PASS_AND_SLOW_DOWN)
        out.exit()
    out.label("drop")
    out.number(R1, 0)
    out.calculate_register(SUB, R1, R9)
    out.atomic_add(R8, 0, R1)
    _emit_count(out, _DROPPED_BYTES, _DROPS)
    out.number(R0, _DROP_QUIETLY if sends else groups.DROP)
    out.exit()


def _emit_count(out: Assembler, size_at: int, number_at: int) -> None:
    out.atomic_add(R8, size_at, R7)
    out.number(R1, 1)
    out.atomic_add(R8, number_at, R1)
