"""Programs at hooks of netfilter: one that does nothing, and one that counts the pod by its address. Linux 6.4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench.network.mechanisms_btf import KernelTypes
from bench.network.mechanisms_code import Family, add_packet, class_by_comparisons, slot_by_address
from bench.network.mechanisms_links import NETFILTER
from bench.network.mechanisms_maps import Counters
from muster.network.bpf.assembler import (
    ADD,
    DOUBLE,
    EQUAL,
    FRAME,
    NOT_EQUAL,
    R0,
    R1,
    R2,
    R3,
    R4,
    R6,
    R7,
    WORD,
    Assembler,
)
from muster.network.bpf.groups import EGRESS
from muster.network.bpf.handle import Handle
from muster.network.bpf.loading import load
from muster.network.traffic.backends.ebpf_program import find_counter

_KIND: Final = 32
_ACCEPT: Final = 1
_STATE, _PACKET = 0, 8
"""Offsets in the context (struct bpf_nf_ctx)."""
_VIEW, _HEADER = -32, -72
"""Offsets on the stack: a struct bpf_dynptr, and room for the largest header."""
_CALL, _KERNEL_FUNCTION = 0x85, 2


class _KernelAssembler(Assembler):
    def call_kernel(self, number: int) -> None:
        """Call a function of the kernel by its number in BTF."""
        self._add(_CALL, 0, _KERNEL_FUNCTION, 0, number)


def empty() -> Handle:
    """Return a program that accepts each packet."""
    code = Assembler()
    code.number(R0, _ACCEPT)
    code.exit()
    return _load(code)


def counting(
    types: KernelTypes, family: Family, direction: int, nic: int, pods: Mapping[int, int], counters: Counters
) -> Handle:
    """Return a program that counts packets of a family which enter or leave by the NIC."""
    code = _KernelAssembler()
    code.load(DOUBLE, R2, R1, _STATE)
    code.load(DOUBLE, R7, R1, _PACKET)
    code.load(DOUBLE, R2, R2, types.offset("nf_hook_state", "out" if direction == EGRESS else "in"))
    code.load(WORD, R2, R2, types.offset("net_device", "ifindex"))
    code.jump(NOT_EQUAL, R2, nic, "done")
    _read_header(code, types, family)
    class_by_comparisons(code, family, R6, family.peer(direction))
    slot_by_address(code, family, R6, family.pod(direction), pods)
    find_counter(code, counters.descriptor, direction)
    code.load(WORD, R1, R7, types.offset("sk_buff", "len"))
    add_packet(code, atomic=counters.atomic)
    code.label("done")
    code.number(R0, _ACCEPT)
    code.exit()
    return _load(code)


def _read_header(code: _KernelAssembler, types: KernelTypes, family: Family) -> None:
    """Set R6 to the header of the packet in R7, or go to `done`."""
    code.move(R1, R7)
    code.number(R2, 0)
    code.move(R3, FRAME)
    code.calculate(ADD, R3, _VIEW)
    code.call_kernel(types.function("bpf_dynptr_from_skb"))
    code.jump(NOT_EQUAL, R0, 0, "done")
    for at in range(0, family.header, 8):
        code.store_number(DOUBLE, FRAME, _HEADER + at, 0)
    code.move(R1, FRAME)
    code.calculate(ADD, R1, _VIEW)
    code.number(R2, 0)
    code.move(R3, FRAME)
    code.calculate(ADD, R3, _HEADER)
    code.number(R4, family.header)
    code.call_kernel(types.function("bpf_dynptr_slice"))
    code.jump(EQUAL, R0, 0, "done")
    code.move(R6, R0)


def _load(code: Assembler) -> Handle:
    return Handle(load(code.assemble(), _KIND, NETFILTER, "bench_netfilter", "GPL"))
