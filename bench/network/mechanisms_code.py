"""What the compared programs share: the class of the peer in R8, the slot of the pod in R9, and the count."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from muster.network.bpf.assembler import (
    ADD,
    AND,
    DOUBLE,
    EQUAL,
    FRAME,
    NOT_EQUAL,
    R0,
    R1,
    R2,
    R3,
    R4,
    R8,
    R9,
    WORD,
    Assembler,
)
from muster.network.bpf.groups import EGRESS
from muster.network.traffic.backends.ebpf_program import INTERNET_INDEX, SKIP, look_up
from muster.network.traffic.classes import Classes, Network

INTERNAL_INDEX: Final = INTERNET_INDEX + 1
KEY: Final = -112
"""Offset on the stack of a key of at most 20 bytes."""

_WORD_BYTES: Final = 4


class Family(NamedTuple):
    """A version of IP: its EtherType, and bytes of the header, of an address, and before that of the source."""

    version: int
    ether_type: int
    header: int
    address: int
    source: int

    def pod(self, direction: int) -> int:
        """Return the offset of the pod's address in the header."""
        return self.source + (0 if direction == EGRESS else self.address)

    def peer(self, direction: int) -> int:
        """Return the offset of the other address."""
        return self.source + (self.address if direction == EGRESS else 0)


FAMILIES: Final = (Family(4, 0x0800, 20, 4, 12), Family(6, 0x86DD, 40, 16, 8))


def internal_networks(version: int) -> Iterator[Network]:
    """Yield the default prefixes of the class `internal`."""
    for each in Classes().ranges(version):
        yield from each.networks(version)


def copy_address(code: Assembler, family: Family, base: int, offset: int, to: int) -> None:
    """Copy an address from base + offset to the stack."""
    for at in range(0, family.address, _WORD_BYTES):
        code.load(WORD, R3, base, offset + at)
        code.store(WORD, FRAME, to + at, R3)


def class_by_comparisons(code: Assembler, family: Family, base: int, offset: int) -> None:
    """Set R8 to the class of the address at base + offset."""
    found = f"class{family.version}"
    code.number(R8, INTERNAL_INDEX)
    for number, network in enumerate(internal_networks(family.version)):
        following = f"{found}_{number}"
        for at in range(0, family.address, _WORD_BYTES):
            mask, value = _word(network.netmask, at), _word(network.network_address, at)
            if mask:
                code.load(WORD, R3, base, offset + at)
                code.number(R4, mask)
                code.calculate_register(AND, R3, R4)
                code.number(R4, value)
                code.jump_register(NOT_EQUAL, R3, R4, following)
        code.goto(found)
        code.label(following)
    code.number(R8, INTERNET_INDEX)
    code.label(found)


def class_by_trie(code: Assembler, family: Family, base: int, offset: int, tries: Mapping[int, int]) -> None:
    """Set R8 to the class of the address at base + offset, or go to `done` if the trie skips it."""
    found = f"class{family.version}"
    code.store_number(WORD, FRAME, KEY, family.address * 8)
    copy_address(code, family, base, offset, KEY + _WORD_BYTES)
    look_up(code, tries[family.version], KEY)
    code.number(R8, INTERNET_INDEX)
    code.jump(EQUAL, R0, 0, found)
    code.load(WORD, R8, R0, 0)
    code.jump(EQUAL, R8, SKIP, "done")
    code.label(found)


def slot_by_address(code: Assembler, family: Family, base: int, offset: int, pods: Mapping[int, int]) -> None:
    """Set R9 to the slot of the pod with the address at base + offset; 0, the host's, without one."""
    found = f"slot{family.version}"
    copy_address(code, family, base, offset, KEY)
    look_up(code, pods[family.version], KEY)
    code.number(R9, 0)
    code.jump(EQUAL, R0, 0, found)
    code.load(WORD, R9, R0, 0)
    code.label(found)


def add_packet(code: Assembler, *, atomic: bool) -> None:
    """Add a packet of R1 bytes to the counter in R0. Without `atomic`, the counter is that of this CPU."""
    if atomic:
        code.atomic_add(R0, 8, R1)
        code.number(R1, 1)
        code.atomic_add(R0, 0, R1)
        return
    code.load(DOUBLE, R2, R0, 8)
    code.calculate_register(ADD, R2, R1)
    code.store(DOUBLE, R0, 8, R2)
    code.load(DOUBLE, R2, R0, 0)
    code.calculate(ADD, R2, 1)
    code.store(DOUBLE, R0, 0, R2)


def _word(address: ipaddress.IPv4Address | ipaddress.IPv6Address, at: int) -> int:
    return int.from_bytes(address.packed[at : at + _WORD_BYTES], sys.byteorder)
