"""Chooses which few nodes each node probes. All nodes with the same list of members make the same choice.

The nodes of an innermost domain (one switch) form a ring, and each node probes a few others of its ring. The switches
of a zone form a ring too, and so do the zones. In each of these rings, a node takes a few domains other than its own.
In each of them it probes the node that has the same position as itself in its own domain. So each node is probed from
its own domain and from other domains, by about as many nodes as it probes itself. If a node joins or leaves, the peers
of only a few nodes change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

UNREACHED: Final = "unreached"
"""The code of a finding about a failed probe. Its `component` is the name of the node that was not reached."""

_INSIDE: Final = (1, 2)
_OUTSIDE: Final = (1,)
"""How far along its ring a node looks for peers. `_steps` adds the peer on the opposite side: half the ring away."""

_Path = tuple[str, ...]


class Member(msgspec.Struct, frozen=True):
    """A node of the mesh.

    Attributes:
        name: name of the node.
        address: the address of its agent.
        domains: the domains that contain it, outermost first, such as a zone and a switch. A node is probed from other
            domains by nodes with as many domains as itself. Nodes with more domains probe it too, if its innermost
            domain contains no further domain. Nodes with fewer domains do not probe it.
    """

    name: str
    address: str = ""
    domains: tuple[str, ...] = ()


def domains_of(member: Member) -> tuple[str, ...]:
    """Return the full names of the member's domains: `a`, `a/7`."""
    return tuple("/".join(member.domains[: depth + 1]) for depth in range(len(member.domains)))


def choose(members: Iterable[Member], only: str | None = None) -> dict[str, tuple[str, ...]]:
    """Return which nodes each node probes. If several members have the same name, only the first one is used.

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
