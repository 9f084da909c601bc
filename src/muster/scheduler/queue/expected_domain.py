"""Chooses the topology domain, such as a rack, that a gang is expected to get first."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf

from muster.scheduler.placement.ledger import Ledger
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.placement.place import candidates
from muster.scheduler.placement.rules import attracted, forbidden
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.queue.expected import Expected
from muster.scheduler.snapshot import Snapshot


def together_key(cls: PodClass, ledger: Ledger) -> str | None:
    """Return the topology key if the only rule is that all pods of the gang are in one domain of that key.

    Rules of other pods about this class must not matter either.
    """
    rules = cls.relations
    if rules is None or rules.near is None or len(rules.near_keys) != 1 or rules.apart or rules.spread:
        return None
    if rules.near not in cls.matches or attracted(cls, ledger.layer) is not None or forbidden(cls, ledger.layer):
        return None
    return rules.near_keys[0]


def first_domain(
    snapshot: Snapshot,
    matcher: Matcher,
    ledger: Ledger,
    expected: Expected,
    cls: PodClass,
    key: str,
    count: int,
    beside: Collection[str],
) -> set[str] | None:
    """Return nodes for `count` pods in the domain that has room for all of them first; None if that is unknown.

    Nodes in `beside` do not count. Room that is free now counts first. If two domains are equal, the one with more free
    room is chosen. So the choice rarely changes: free nodes of the chosen domain stay reserved, and others are used by
    other gangs.
    """
    nodes: dict[str, list[str]] = {}
    room: dict[str, int] = {}
    for each in candidates(ledger, matcher, cls, banned=beside):
        for name in each.names if each.names is not None else ledger.names(each.bucket):
            value = snapshot.nodes[name].labels.get(key)
            if value is not None and room.get(value, 0) < count:
                nodes.setdefault(value, []).append(name)
                room[value] = room.get(value, 0) + each.times
    free, ready = dict(room), dict[str, float]()
    for at, name, gain in expected.openings(cls, beside):
        value = snapshot.nodes[name].labels.get(key)
        if value is None or at == inf or room.get(value, 0) >= count:
            continue
        nodes.setdefault(value, []).append(name)
        room[value] = room.get(value, 0) + gain
        ready[value] = at
    best = _best({value: ready.get(value, 0.0) for value, found in room.items() if found >= count}, free)
    return set(nodes[best]) if best is not None else None


def _best(ready: Mapping[str, float], free: Mapping[str, int]) -> str | None:
    return min(ready, key=lambda value: (ready[value], -free.get(value, 0), value), default=None)
