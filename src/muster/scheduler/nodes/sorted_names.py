"""Sorted names in blocks, so that adding a name moves a few hundred others, not all of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

BLOCK = 1000
"""Names in a new block; one that has twice as many is split."""


class SortedNames:
    """A sorted set of names, in blocks that are not empty; the owner changes it, readers read `blocks`."""

    __slots__ = ("_firsts", "blocks")

    def __init__(self, names: Iterable[str]) -> None:
        order = sorted(names)
        self.blocks: list[list[str]] = [order[at : at + BLOCK] for at in range(0, len(order), BLOCK)]
        self._firsts = [block[0] for block in self.blocks]

    def add(self, name: str) -> None:
        """Add a name; one that is there already stays."""
        if not self.blocks:
            self.blocks, self._firsts = [[name]], [name]
            return
        number = max(0, bisect_right(self._firsts, name) - 1)
        block = self.blocks[number]
        at = bisect_left(block, name)
        if at < len(block) and block[at] == name:
            return
        block.insert(at, name)
        self._firsts[number] = block[0]
        if len(block) >= 2 * BLOCK:
            self.blocks[number : number + 1] = [block[:BLOCK], block[BLOCK:]]
            self._firsts.insert(number + 1, block[BLOCK])

    def discard(self, name: str) -> None:
        """Remove a name, if it is there."""
        number = bisect_right(self._firsts, name) - 1
        if number < 0:
            return
        block = self.blocks[number]
        at = bisect_left(block, name)
        if at == len(block) or block[at] != name:
            return
        del block[at]
        if block:
            self._firsts[number] = block[0]
        else:
            del self.blocks[number], self._firsts[number]
