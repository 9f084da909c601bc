"""Who looks at whom: each node at a few others, chosen so that everybody with the same list chooses the same.

Within the innermost domain (nodes of one switch) a ring; between domains (switches of a zone, zones) rings as well, in
which a node looks at the one in the same place. So each node is looked at from inside and from outside, by about as
many as it looks at itself, and one that joins or leaves changes the peers of a few only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

UNREACHED: Final = "unreached"
"""What an agent says of a node it does not reach; the component is that node's name."""

_INSIDE: Final = (1, 2)
_OUTSIDE: Final = (1,)
"""Steps along a ring; one more goes to the far side of it."""

_Path = tuple[str, ...]


class Member(msgspec.Struct, frozen=True):
    """A node of the mesh.

    Attributes:
        name: of the node.
        address: where its agent listens.
        domains: what it is part of, outermost first, such as a zone and a switch; where some have fewer than others,
            these are looked at from their own domain only.
    """

    name: str
    address: str = ""
    domains: tuple[str, ...] = ()


def domains_of(member: Member) -> tuple[str, ...]:
    """Return the names of its domains, each with those it is in: `a`, `a/7`."""
    return tuple("/".join(member.domains[: depth + 1]) for depth in range(len(member.domains)))


def choose(members: Iterable[Member], only: str | None = None) -> dict[str, tuple[str, ...]]:
    """Return whom each node looks at; of a name that is there twice the first counts.

    Args:
        members: all nodes, in any order.
        only: the one node to choose for; None: all.
    """
    by_name: dict[str, Member] = {}
    for member in members:
        by_name.setdefault(member.name, member)
    tree = _Tree(sorted(by_name.values(), key=lambda member: (member.domains, member.name)))
    wanted = by_name.values() if only is None else [by_name[only]] if only in by_name else []
    return {member.name: tuple(tree.peers(member)) for member in wanted}


class _Tree:
    """Domains within domains, and in the innermost ones the names of nodes; all in order."""

    def __init__(self, ordered: Sequence[Member]) -> None:
        self._names: dict[_Path, list[str]] = {}
        self._children: dict[_Path, list[_Path]] = {}
        self._place: dict[_Path | str, int] = {}
        for member in ordered:
            names = self._names.setdefault(member.domains, [])
            self._place[member.name] = len(names)
            names.append(member.name)
            for depth in range(len(member.domains)):
                path = member.domains[: depth + 1]
                if path not in self._place:
                    siblings = self._children.setdefault(path[:-1], [])
                    self._place[path] = len(siblings)
                    siblings.append(path)

    def peers(self, member: Member) -> Iterator[str]:
        chosen = {member.name}
        ring = self._names[member.domains]
        near = [ring[place] for place in _steps(self._place[member.name], len(ring), _INSIDE)]
        for name in (*near, *self._outside(member)):
            if name not in chosen:
                chosen.add(name)
                yield name

    def _outside(self, member: Member) -> Iterator[str]:
        for depth in range(len(member.domains)):
            path = member.domains[: depth + 1]
            siblings = self._children[path[:-1]]
            for place in _steps(self._place[path], len(siblings), _OUTSIDE):
                other = siblings[place]
                for deeper in range(depth + 1, len(member.domains)):
                    within = self._children.get(other, (other,))
                    other = within[self._place[member.domains[: deeper + 1]] % len(within)]
                names = self._names.get(other, ())
                if names:
                    yield names[self._place[member.name] % len(names)]


def _steps(place: int, size: int, near: Sequence[int]) -> Iterator[int]:
    for step in (*near, size // 2):
        if step % size:
            yield (place + step) % size
