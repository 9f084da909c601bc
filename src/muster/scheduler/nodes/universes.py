"""Domains that count for topology spread constraints; updates cost only the nodes that changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from muster.scheduler.nodes.domains import Domains
from muster.scheduler.persistent import PersistentMap

UNIVERSES = 64
"""Number of universes that are kept; rules beyond it are computed again."""
DomainOf = Callable[[str], str | None]
"""Domain in which a node counts; None if it does not."""
Which = tuple[Domains, object]
"""The nodes, and the shape of the constraint."""


@dataclass(frozen=True, slots=True)
class Universe:
    """Domains of a constraint: those with nodes.

    Attributes:
        stamp: changes when the set of domains changes.
        at: position in the journal of the nodes up to which it is known.
        nodes: number of nodes of each domain.
        of: domain of each node that counts.
    """

    stamp: int
    at: int
    nodes: Mapping[str, int]
    of: PersistentMap[str, str]


class Universes:
    """Universes by constraint, each computed or updated once; `known` are those of an earlier snapshot."""

    def __init__(self, known: Mapping[Which, Universe]) -> None:
        self._before = known
        self._known: dict[Which, Universe] | None = None

    @property
    def known(self) -> Mapping[Which, Universe]:
        """All universes, for the next snapshot. This object must not be used afterwards."""
        return self._before if self._known is None else self._known

    def of(self, domains: Domains, shape: object, domain_of: DomainOf) -> Universe:
        """Return the universe of a constraint of that shape."""
        which, end = (domains, shape), domains.journal.end
        known = self._before if self._known is None else self._known
        found = known.get(which)
        if found is not None and found.at == end:
            return found
        if self._known is None:
            self._known = dict(self._before)
        changed = domains.journal.since(found.at) if found is not None else None
        if found is None or changed is None:
            found = _counted(domains, domain_of, found)
        else:
            found = _updated(found, domains, changed, domain_of)
        self._known.pop(which, None)
        self._known[which] = found
        if len(self._known) > UNIVERSES:
            del self._known[next(iter(self._known))]
        return found


def _counted(domains: Domains, domain_of: DomainOf, before: Universe | None) -> Universe:
    of = {node: domain for node in domains.nodes if (domain := domain_of(node)) is not None}
    nodes, end = Counter(of.values()), domains.journal.end
    same = before is not None and before.nodes.keys() == nodes.keys()
    return Universe(before.stamp if same and before is not None else end, end, nodes, PersistentMap(of))


def _updated(before: Universe, domains: Domains, changed: Iterable[str], domain_of: DomainOf) -> Universe:
    moves: dict[str, str | None] = {}
    nodes = Counter(before.nodes)
    for node in changed:
        old, new = before.of.get(node), domain_of(node) if node in domains.nodes else None
        if old != new:
            moves[node] = new
            for domain, number in ((old, -1), (new, 1)):
                if domain is not None:
                    nodes[domain] += number
                    if not nodes[domain]:
                        del nodes[domain]
    end = domains.journal.end
    stamp = before.stamp if nodes.keys() == before.nodes.keys() else end
    return Universe(stamp, end, nodes, before.of.with_changes(moves))
