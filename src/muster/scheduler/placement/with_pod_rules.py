"""Places a gang whose pods have rules about other pods: all of its slots, or none.

1. One pass applies each rule of each class alone. If too few pods fit even then, the gang cannot be placed.
2. Each class is placed in one pass (see `one_class`). This is tried once for each domain in which required affinity may
   start.
3. If there are several rules, step 2 may fail although the gang fits. Then a bounded search tries every arrangement
   (see `exhaustive`). If it stops early, the result is `gave_up`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from muster.scheduler.placement.candidates import Candidate, Groups, Shortage, by_choice, candidates, room_in
from muster.scheduler.placement.closed import Closed
from muster.scheduler.placement.exhaustive import search
from muster.scheduler.placement.ledger import Ledger
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.placement.one_class import Filling, own_rules, sites
from muster.scheduler.placement.rules import attracted, ends_even
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.relations import NONE, Peers

STARTS = 64
"""Maximum number of starting domains to try for required affinity. Domains that waste the least room come first."""
Starts = dict[PodClass, dict[str, str]]


def arrange(
    ledger: Ledger, matcher: Matcher, groups: Groups, closed: Closed, banned: Collection[str]
) -> dict[int, str] | Shortage:
    """Return slot -> node for all slots and take that room; or return the shortage and take nothing."""
    offers = {cls: candidates(ledger, matcher, cls, closed, banned) for cls in groups}
    for cls, slots in groups.items():  # the most common case: there is too little room even without the rules
        if room_in(offers[cls]) < len(slots):
            return Shortage(cls, len(slots), room_in(offers[cls]))
    for cls, slots in groups.items():
        most = _room(ledger, matcher, cls, offers[cls], len(slots), groups)
        if most < len(slots):
            return Shortage(cls, len(slots), most)
    order = _order(ledger, groups, offers)
    best: Shortage | None = None
    for count, start in enumerate(_starts(ledger, matcher, groups, offers)):
        if count >= STARTS:
            break
        trial = ledger.fork()
        found = _pass(trial, matcher, groups, order, start, closed, banned)
        if not isinstance(found, Shortage):
            ledger.adopt(trial)
            return found
        best = found if best is None or best.have < found.have else best
    else:
        if best is not None and len(groups) == 1 and len(own_rules(order[0])) <= 1:
            return best
    placed = search(ledger, matcher, groups, order, closed, banned)
    if isinstance(placed, dict):
        return placed
    short = best if best is not None else Shortage(order[0], len(groups[order[0]]), 0)
    return Shortage(short.cls, short.need, short.have, gave_up=not placed)


def _room(
    ledger: Ledger, matcher: Matcher, cls: PodClass, offer: Sequence[Candidate], need: int, groups: Groups
) -> int:
    """Return how many pods of the class fit under its strictest rule.

    Returns `need` if pods of other classes could allow more.
    """
    asked = cls.relations or NONE
    if asked.near is not None and any(asked.near in other.matches for other in groups if other is not cls):
        return need
    if any(rule.peers in other.matches for rule in asked.spread for other in groups if other is not cls):
        return need
    open_sites = sites(ledger, matcher, cls, offer)
    most = sum(site.candidate.times for site in open_sites)
    for rule in own_rules(cls):
        if most >= need:
            most = min(most, Filling(ledger, matcher, cls, open_sites, need, only=rule).run())
    if asked.near is not None and attracted(cls, ledger.layer) is None:
        together: Counter[tuple[str, ...]] = Counter()
        for site in open_sites:
            together[tuple(site.labels[key] for key in asked.near_keys)] += site.candidate.times
        most = min(most, max(together.values(), default=0))
    return most


def _order(ledger: Ledger, groups: Groups, offers: Mapping[PodClass, Sequence[Candidate]]) -> list[PodClass]:
    """Order the classes: those that others must be near come first; then those with the fewest candidates."""
    waiting, order = by_choice(groups, offers), list[PodClass]()
    while waiting:
        ready = [cls for cls in waiting if not _waits_for(ledger, cls, waiting)]
        order.append(ready[0] if ready else waiting[0])
        waiting.remove(order[-1])
    return order


def _waits_for(ledger: Ledger, cls: PodClass, others: Sequence[PodClass]) -> bool:
    near = cls.relations.near if cls.relations is not None else None
    if near is None or near in cls.matches:
        return False
    return not any((attracted(cls, ledger.layer) or {}).values()) and any(near in other.matches for other in others)


def _starts(
    ledger: Ledger, matcher: Matcher, groups: Groups, offers: Mapping[PodClass, Sequence[Candidate]]
) -> Iterator[Starts]:
    """Yield choices of starting domains for classes with required affinity to pods that do not exist yet.

    All classes with the same affinity, and the classes that it selects, start in one domain. Domains that fit them with
    the least spare room come first. The last choice sets no domain.
    """
    sets = dict.fromkeys(
        cls.relations.near
        for cls in groups
        if cls.relations is not None
        and cls.relations.near is not None
        and not any((attracted(cls, ledger.layer) or {}).values())
    )
    choices: list[Starts] = [{}]
    for peers in sets:
        if peers is not None:
            options = _domains_for(ledger, matcher, peers, groups, offers)
            choices = [{**option, **known} for known in choices for option in options][:STARTS]
    yield from choices
    if sets and choices != [{}]:
        yield {}


def _domains_for(
    ledger: Ledger,
    matcher: Matcher,
    peers: Peers,
    groups: Groups,
    offers: Mapping[PodClass, Sequence[Candidate]],
) -> list[Starts]:
    tied = [cls for cls in groups if cls.relations is not None and cls.relations.near is peers]
    keys = tuple(dict.fromkeys(key for cls in tied for key in (cls.relations or NONE).near_keys))
    members = [*tied, *(cls for cls in groups if peers in cls.matches and cls not in tied)]
    room: Counter[tuple[str, ...]] = Counter()
    fits: Counter[tuple[str, ...]] = Counter()
    for cls in members:
        here: Counter[tuple[str, ...]] = Counter()
        for candidate in offers[cls]:
            for name in candidate.names if candidate.names is not None else ledger.names(candidate.bucket):
                labels = ledger.layer.base.labels(name)
                if all(key in labels for key in keys):
                    here[tuple(labels[key] for key in keys)] += candidate.times
        for values, times in here.items():
            room[values] += times
            fits[values] += times >= len(groups[cls])
    return [
        {cls: dict(zip(keys, values, strict=True)) for cls in members}
        for values in sorted(room, key=lambda values: (-fits[values], room[values], values))
        if fits[values] == len(members)
    ]


def _pass(
    trial: Ledger,
    matcher: Matcher,
    groups: Groups,
    order: Sequence[PodClass],
    start: Starts,
    closed: Closed,
    banned: Collection[str],
) -> dict[int, str] | Shortage:
    """Place one class after the other. The rules of a class also apply to pods that were placed before it."""
    chosen: dict[int, str] = {}
    members: dict[PodClass, list[str]] = {}
    banned = set(banned)
    for cls in order:
        slots = sorted(groups[cls])
        offer = candidates(trial, matcher, cls, closed, banned)
        filling = Filling(trial, matcher, cls, sites(trial, matcher, cls, offer, start.get(cls)), len(slots))
        have = filling.run()
        if have < len(slots):
            return Shortage(cls, len(slots), have)
        filled = filling.commit(slots)
        chosen.update(filled)
        members[cls] = list(filled.values())
        if cls.alone:
            banned |= set(filled.values())
    if not ends_even(members, trial.layer, matcher):
        return Shortage(order[-1], len(groups[order[-1]]), 0)
    return chosen
