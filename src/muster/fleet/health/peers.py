"""Chooses which nodes probe each other: a few each, and every node with the same list makes the same choice.

Nodes of the innermost domain (one switch) form a ring. Domains (switches of a zone, zones) form rings too, in which a
node probes the node at the same position of another domain. So each node is probed from inside and from outside, by
about as many nodes as it probes itself. If a node joins or leaves, the peers of only a few nodes change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

UNREACHED: Final = "unreached"
"""The code of a failed probe. The component is the name of the node that was not reached."""

_INSIDE: Final = (1, 2)
_OUTSIDE: Final = (1,)
"""Steps along a ring. One more step goes to its far side."""

_Path = tuple[str, ...]


class Member(msgspec.Struct, frozen=True):
    """A node of the mesh.

    Attributes:
        name: name of the node.
        address: the address of its agent.
        domains: the domains that contain it, outermost first, such as a zone and a switch. Nodes with fewer domains are
            probed from their own domain only.
    """

    name: str
    address: str = ""
    domains: tuple[str, ...] = ()


def domains_of(member: Member) -> tuple[str, ...]:
    """Return the full names of its domains: `a`, `a/7`."""
    return tuple("/".join(member.domains[: depth + 1]) for depth in range(len(member.domains)))


def choose(members: Iterable[Member], only: str | None = None) -> dict[str, tuple[str, ...]]:
    """Return which nodes each node probes. If a name occurs twice, the first one counts.

    Args:
        members: all nodes, in any order.
        only: choose for this node only; None: for all.
    """
    by_name: dict[str, Member] = {}
    for member in members:
        by_name.setdefault(member.name, member)
    tree = _Tree(sorted(by_name.values(), key=lambda member: (member.domains, member.name)))
    wanted = by_name.values() if only is None else [by_name[only]] if only in by_name else []
    return {member.name: tuple(tree.peers(member)) for member in wanted}


class _Tree:
    """Nested domains with the names of nodes in the innermost ones, all in order."""

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
