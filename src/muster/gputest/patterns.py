"""Memory test patterns: 64-bit words computed from their index, so that a wrong word shows the kind of fault.

Constant patterns find stuck and coupled bits (all zeros and ones, checkerboards, one bit walking through the others).
Words that contain their own address find two addresses of one word (van de Goor, "Testing Semiconductor Memories",
1991: address decoder faults).
"""

from __future__ import annotations

from typing import NamedTuple

_MASK = (1 << 64) - 1


class Pattern(NamedTuple):
    """Word `i` is `start + step * i`, modulo 2^64."""

    name: str
    start: int
    step: int = 0

    def word(self, index: int) -> int:
        """Return the word at an index, unsigned."""
        return (self.start + self.step * index) & _MASK


def signed(word: int) -> int:
    """Return the same 64 bits as a two's complement number, as in arrays of int64."""
    word &= _MASK
    return word - (1 << 64) if word >> 63 else word


BASIC = (
    Pattern("zeros", 0),
    Pattern("ones", _MASK),
    Pattern("checkerboard", 0x5555555555555555),
    Pattern("inverse checkerboard", 0xAAAAAAAAAAAAAAAA),
    Pattern("address", 0, 1),
    Pattern("inverse address", -1, -1),
)

WALKING = tuple(
    Pattern(f"walking {what}, bit {bit}", (1 << bit) ^ background)
    for bit in range(64)
    for what, background in (("one", 0), ("zero", _MASK))
)


def patterns(level: int) -> tuple[Pattern, ...]:
    """Return the patterns of a level: at level 1 one bit in each byte walks, from level 2 on every bit does."""
    return BASIC + (WALKING if level > 1 else WALKING[:: 2 * 8] + WALKING[1 :: 2 * 8])
