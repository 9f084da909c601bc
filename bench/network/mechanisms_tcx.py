"""Programs at links: one that does nothing, and one that counts the pod by its link. Linux 6.6."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

from bench.network.mechanisms_code import FAMILIES, KEY, add_packet, class_by_comparisons, class_by_trie
from bench.network.mechanisms_maps import POD_SLOT, Counters
from muster.network.bpf.assembler import (
    ADD,
    EQUAL,
    FRAME,
    GREATER,
    NOT_EQUAL,
    R0,
    R1,
    R2,
    R3,
    R6,
    R7,
    R9,
    SUB,
    WORD,
    Assembler,
)
from muster.network.bpf.groups import EGRESS, INTERFACE, LENGTH, PROTOCOL
from muster.network.bpf.handle import Handle
from muster.network.bpf.loading import load
from muster.network.traffic.backends.ebpf_program import find_counter, look_up

_KIND: Final = 3
_NEXT: Final = -1
"""What a program returns for the packet to continue as without it."""
_CAME_FROM, _DATA, _DATA_END = 36, 76, 80
"""Offsets in the context (struct __sk_buff): the link where the packet entered, its first byte, and its end."""
_ETHERNET: Final = 14


def empty(attach_type: int) -> Handle:
    """Return a program that lets each packet continue."""
    code = Assembler()
    code.number(R0, _NEXT)
    code.exit()
    return _load(code, attach_type)


def counting(
    attach_type: int,
    direction: int,
    counters: Counters,
    *,
    links: int | None = None,
    tries: Mapping[int, int] | None = None,
    only_from: int = 0,
) -> Handle:
    """Return a program that counts the packets of pods.

    Args:
        attach_type: for which place it is, TCX_INGRESS or TCX_EGRESS.
        direction: as the pod sees it, EGRESS or INGRESS.
        counters: what it adds to.
        links: a map from links of pods to slots; without it, all packets are those of one pod.
        tries: from prefixes to classes, for each version; without them, comparisons find the class.
        only_from: count only packets that entered by this link.
    """
    code = Assembler()
    code.move(R6, R1)
    if only_from:
        code.load(WORD, R2, R6, _CAME_FROM)
        code.jump(NOT_EQUAL, R2, only_from, "done")
    if links is None:
        code.number(R9, POD_SLOT)
    else:
        code.load(WORD, R2, R6, _CAME_FROM if direction == EGRESS else INTERFACE)
        code.store(WORD, FRAME, KEY, R2)
        look_up(code, links, KEY)
        code.jump(EQUAL, R0, 0, "done")
        code.load(WORD, R9, R0, 0)
    code.load(WORD, R7, R6, _DATA)
    code.load(WORD, R2, R6, PROTOCOL)
    for family in FAMILIES:
        code.jump(EQUAL, R2, socket.htons(family.ether_type), f"ipv{family.version}")
    code.goto("done")
    for family in FAMILIES:
        code.label(f"ipv{family.version}")
        code.load(WORD, R3, R6, _DATA_END)
        code.move(R2, R7)
        code.calculate(ADD, R2, _ETHERNET + family.header)
        code.jump_register(GREATER, R2, R3, "done")
        if tries is None:
            class_by_comparisons(code, family, R7, _ETHERNET + family.peer(direction))
        else:
            class_by_trie(code, family, R7, _ETHERNET + family.peer(direction), tries)
        code.goto("count")
    code.label("count")
    find_counter(code, counters.descriptor, direction)
    code.load(WORD, R1, R6, LENGTH)
    code.calculate(SUB, R1, _ETHERNET)
    add_packet(code, atomic=counters.atomic)
    code.label("done")
    code.number(R0, _NEXT)
    code.exit()
    return _load(code, attach_type)


def _load(code: Assembler, attach_type: int) -> Handle:
    return Handle(load(code.assemble(), _KIND, attach_type, "bench_tcx"))
