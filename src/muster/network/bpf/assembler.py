"""An assembler for eBPF: instructions with labels (RFC 9669)."""

from __future__ import annotations

import struct
from typing import Final

R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, FRAME = range(11)
"""Registers: R0 holds results, R1 to R5 arguments, which calls destroy; R6 to R9 survive calls."""

BYTE, HALF, WORD, DOUBLE = 0x10, 0x08, 0x00, 0x18
"""Sizes of loads and stores: 1, 2, 4 and 8 bytes."""

ADD, SUB, MUL, DIV, OR, AND, LEFT, RIGHT, MOD, XOR = 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x90, 0xA0
"""Operations of `calculate`, on 64 bits, unsigned."""

EQUAL, GREATER, AT_LEAST, NOT_EQUAL, LESS, AT_MOST = 0x10, 0x20, 0x30, 0x50, 0xA0, 0xB0
"""Comparisons of `jump`, unsigned."""

_LOAD_DOUBLE, _LOAD, _STORE_NUMBER, _STORE, _ATOMIC = 0x18, 0x61, 0x62, 0x63, 0xC3
_MOVE: Final = 0xB0
_NUMBER_64, _REGISTER_64 = 0x07, 0x0F
_JUMP_NUMBER, _JUMP_REGISTER, _JUMP_ALWAYS, _CALL, _EXIT = 0x05, 0x0D, 0x05, 0x85, 0x95
_MAP_DESCRIPTOR: Final = 1
_FETCH: Final = 0x01
_COMPARE_EXCHANGE: Final = 0xF1
_INSTRUCTION: Final = struct.Struct("=BBhi")


class Assembler:
    """Collects instructions. Jumps name labels, which may come later."""

    def __init__(self) -> None:
        self._instructions: list[tuple[int, int, int, int, str]] = []
        self._labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        """Name the next instruction."""
        if name in self._labels:
            raise ValueError(f"label {name} occurs twice")
        self._labels[name] = len(self._instructions)

    def move(self, to: int, register: int) -> None:
        """Copy a register."""
        self._add(_MOVE | _REGISTER_64, to, register)

    def number(self, to: int, value: int) -> None:
        """Set a register to a number of 64 bits."""
        if -(2**31) <= value < 2**31:
            self._add(_MOVE | _NUMBER_64, to, 0, 0, value)
        else:
            self._wide(to, 0, value)

    def map(self, to: int, descriptor: int) -> None:
        """Set a register to a map, for the helpers that take one."""
        self._wide(to, _MAP_DESCRIPTOR, descriptor)

    def calculate(self, operation: int, to: int, number: int) -> None:
        """Set to := to OPERATION number, which has 32 bits and is extended by its sign."""
        self._add(operation | _NUMBER_64, to, 0, 0, number)

    def calculate_register(self, operation: int, to: int, register: int) -> None:
        """Set to := to OPERATION register."""
        self._add(operation | _REGISTER_64, to, register)

    def load(self, size: int, to: int, base: int, offset: int) -> None:
        """Load from memory at base + offset; the upper bits become 0."""
        self._add(_LOAD & ~0x18 | size, to, base, offset)

    def store(self, size: int, base: int, offset: int, register: int) -> None:
        """Store a register to memory at base + offset."""
        self._add(_STORE & ~0x18 | size, base, register, offset)

    def store_number(self, size: int, base: int, offset: int, number: int) -> None:
        """Store a number of 32 bits to memory at base + offset."""
        self._add(_STORE_NUMBER & ~0x18 | size, base, 0, offset, number)

    def atomic_add(self, base: int, offset: int, register: int) -> None:
        """Add a register to 8 bytes of memory, atomically."""
        self._add(_ATOMIC | DOUBLE, base, register, offset, ADD)

    def fetch_add(self, base: int, offset: int, register: int) -> None:
        """Add a register to 8 bytes of memory, atomically; the register then holds the former value. Linux 5.12."""
        self._add(_ATOMIC | DOUBLE, base, register, offset, ADD | _FETCH)

    def compare_exchange(self, base: int, offset: int, register: int) -> None:
        """If 8 bytes of memory equal R0, set them to the register. R0 then holds the former value. Linux 5.12."""
        self._add(_ATOMIC | DOUBLE, base, register, offset, _COMPARE_EXCHANGE)

    def jump(self, comparison: int, register: int, number: int, label: str) -> None:
        """Jump if register COMPARISON number, which has 32 bits and is extended by its sign."""
        self._add(comparison | _JUMP_NUMBER, register, 0, 0, number, label)

    def jump_register(self, comparison: int, register: int, other: int, label: str) -> None:
        """Jump if register COMPARISON other."""
        self._add(comparison | _JUMP_REGISTER, register, other, 0, 0, label)

    def goto(self, label: str) -> None:
        """Jump."""
        self._add(_JUMP_ALWAYS, 0, 0, 0, 0, label)

    def call(self, helper: int) -> None:
        """Call one of the kernel's helpers by its number."""
        self._add(_CALL, 0, 0, 0, helper)

    def exit(self) -> None:
        """Return R0."""
        self._add(_EXIT)

    def assemble(self) -> bytes:
        """Return the instructions.

        Raises:
            ValueError: a label is missing.
        """
        code = []
        for index, (operation, to, register, number, label) in enumerate(self._instructions):
            offset = number >> 32
            value = number & 0xFFFFFFFF
            if label:
                if label not in self._labels:
                    raise ValueError(f"label {label} is missing")
                offset = self._labels[label] - index - 1
            code.append(_INSTRUCTION.pack(operation, to | register << 4, offset, value - (value >> 31 << 32)))
        return b"".join(code)

    def _wide(self, to: int, register: int, value: int) -> None:
        self._add(_LOAD_DOUBLE, to, register, 0, value & 0xFFFFFFFF)
        self._add(0, 0, 0, 0, value >> 32 & 0xFFFFFFFF)

    def _add(
        self, operation: int, to: int = 0, register: int = 0, offset: int = 0, number: int = 0, label: str = ""
    ) -> None:
        self._instructions.append((operation, to, register, offset << 32 | number & 0xFFFFFFFF, label))
