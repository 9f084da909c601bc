"""The program of eBPF that counts packets of sockets by control group and mark.

It runs for all sockets below one control group. It finds the class of the peer by the longest prefix, and the subject
by the socket's mark or by the groups above the socket. Then it adds to 8 bytes each for packets and bytes.
"""

from __future__ import annotations

import socket
from typing import Final, NamedTuple

from muster.api.socket_marks import BASE, MASK
from muster.network.bpf import groups
from muster.network.bpf.assembler import (
    ADD,
    AND,
    DOUBLE,
    EQUAL,
    FRAME,
    GREATER,
    LEFT,
    OR,
    R0,
    R1,
    R2,
    R3,
    R4,
    R6,
    R7,
    R8,
    R9,
    WORD,
    Assembler,
)
from muster.network.bpf.groups import EGRESS
from muster.network.traffic.classes import CLASSES_MAX

LEVELS_MAX: Final = 8
"""How many levels of groups can be subjects."""
INTERNET_INDEX: Final = 0
SKIP: Final = 255
"""Value of a prefix whose packets are not counted: this node and its pods."""
COUNT_BYTES: Final = 16
SLOT_COUNTS: Final = CLASSES_MAX * 2
"""Counters of a slot: one for each class and direction."""
MARKED: Final = 1 << 63
"""This bit of a subject's key says that it is a mark; otherwise it is the number of a group."""

_LOOPBACK: Final = 1
_FAMILIES: Final = (
    (0x0800, 4, 4, 12),
    (0x86DD, 6, 16, 8),
)  # EtherType, version, bytes of an address, offset of the source
_KEY, _SLOT, _PEER = -8, -12, -40


class Maps(NamedTuple):
    """Descriptors of the maps that the program uses.

    Attributes:
        peers4, peers6: LPM_TRIE, from prefixes to the index of a class.
        levels: ARRAY of one value, the levels of groups to look at, each of 4 bytes, 0 after the last.
        subjects: HASH, from keys of 8 bytes to slots.
        counts: ARRAY of packets and bytes, SLOT_COUNTS entries for each slot; slot 0 is the host's.
    """

    peers4: int
    peers6: int
    levels: int
    subjects: int
    counts: int


def entry(slot: int, cls: int, direction: int) -> int:
    """Return the entry in `counts` of a slot, a class and a direction (INGRESS or EGRESS)."""
    return slot * SLOT_COUNTS + cls * 2 + direction


def counting_program(maps: Maps, direction: int) -> bytes:
    """Return the instructions for one direction."""
    code = Assembler()
    code.move(R6, R1)
    code.load(WORD, R2, R6, groups.INTERFACE)
    code.jump(EQUAL, R2, _LOOPBACK, "done")
    code.load(WORD, R7, R6, groups.PROTOCOL)
    for kind, version, _, _ in _FAMILIES:
        code.jump(EQUAL, R7, socket.htons(kind), f"ipv{version}")
    code.goto("done")
    for _, version, size, source in _FAMILIES:
        code.label(f"ipv{version}")
        code.store_number(WORD, FRAME, _PEER, size * 8)
        code.move(R1, R6)
        code.number(R2, source + (size if direction == EGRESS else 0))
        code.move(R3, FRAME)
        code.calculate(ADD, R3, _PEER + 4)
        code.number(R4, size)
        code.call(groups.LOAD_BYTES)
        code.jump(EQUAL, R0, 0, f"peer{version}")
        code.goto("done")
        code.label(f"peer{version}")
        look_up(code, maps.peers4 if version == 4 else maps.peers6, _PEER)
        code.number(R8, INTERNET_INDEX)
        code.jump(EQUAL, R0, 0, "subject")
        code.load(WORD, R8, R0, 0)
        code.goto("subject")
    code.label("subject")
    code.jump(GREATER, R8, CLASSES_MAX - 1, "done")
    code.number(R9, 0)
    _find_by_mark(code, maps)
    _find_by_group(code, maps)
    code.label("count")
    find_counter(code, maps.counts, direction)
    code.number(R1, 1)
    code.atomic_add(R0, 0, R1)
    code.load(WORD, R1, R6, groups.LENGTH)
    code.atomic_add(R0, 8, R1)
    code.label("done")
    code.number(R0, groups.ALLOW)
    code.exit()
    return code.assemble()


def _find_by_mark(code: Assembler, maps: Maps) -> None:
    """Go to `count` with the slot in R9 if the socket has one of our marks and it is a subject."""
    code.load(DOUBLE, R1, R6, groups.SOCKET)
    code.jump(EQUAL, R1, 0, "groups")
    code.call(groups.FULL_SOCKET)
    code.jump(EQUAL, R0, 0, "groups")
    code.load(WORD, R1, R0, groups.SOCKET_MARK)
    code.calculate(AND, R1, MASK)
    code.move(R2, R1)
    code.calculate(AND, R2, BASE)
    code.jump(EQUAL, R2, 0, "groups")
    code.number(R2, MARKED)
    code.calculate_register(OR, R1, R2)
    code.store(DOUBLE, FRAME, _KEY, R1)
    look_up(code, maps.subjects, _KEY)
    code.jump(EQUAL, R0, 0, "groups")
    code.load(WORD, R9, R0, 0)
    code.goto("count")
    code.label("groups")


def _find_by_group(code: Assembler, maps: Maps) -> None:
    """Go to `count` with the slot in R9 of the first level whose group is a subject, or with the host's."""
    code.store_number(WORD, FRAME, _SLOT, 0)
    look_up(code, maps.levels, _SLOT)
    code.jump(EQUAL, R0, 0, "count")
    code.move(R7, R0)
    for number in range(LEVELS_MAX):
        code.load(WORD, R2, R7, number * 4)
        code.jump(EQUAL, R2, 0, "count")
        code.move(R1, R6)
        code.call(groups.ANCESTOR_GROUP)
        code.store(DOUBLE, FRAME, _KEY, R0)
        look_up(code, maps.subjects, _KEY)
        code.jump(EQUAL, R0, 0, f"level{number}")
        code.load(WORD, R9, R0, 0)
        code.goto("count")
        code.label(f"level{number}")


def find_counter(code: Assembler, counts: int, direction: int) -> None:
    """Set R0 to the counter of the slot in R9 and the class in R8, or go to `done`. Changes R8 and R9."""
    # the entry, as `entry` computes it; to add to a pointer instead would need CAP_PERFMON
    code.calculate(LEFT, R9, SLOT_COUNTS.bit_length() - 1)
    code.calculate(LEFT, R8, 1)
    code.calculate_register(ADD, R9, R8)
    code.calculate(ADD, R9, direction)
    code.store(WORD, FRAME, _SLOT, R9)
    look_up(code, counts, _SLOT)
    code.jump(EQUAL, R0, 0, "done")


def look_up(code: Assembler, map_: int, key: int) -> None:
    """Set R0 to the value of the key at this offset of the stack; 0 without one. Changes R1 to R5."""
    code.map(R1, map_)
    code.move(R2, FRAME)
    code.calculate(ADD, R2, key)
    code.call(groups.LOOKUP)
