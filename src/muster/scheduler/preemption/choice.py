"""Which gangs leave so that another fits: whole gangs, the least protected first, the least work lost.

Levels are counted from the least protected: balloons, then borrowers, then others, in each the lower priority first.
As few levels as possible are touched; within the highest of them as little work as possible is lost; then within the
next one, and so on. That is a covering problem: several greedy answers level by level, each improved by a search of
bounded length (branch and bound), then such a search over all levels at once. Exact for the dozen gangs it mostly is
about.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

import msgspec

STEPS_MAX = 2000
"""Questions asked of `fits` by the search of one level."""
WORK_MAX = 200_000
"""The same times the gangs asked about: each answer looks at all of them."""
SPARED_MAX = 256
"""Of more gangs than these not each one is asked whether it may stay after all."""
SPLITS_MAX = 256
"""Answers looked at where some may not leave together, and the same times the gangs asked about."""
SPLIT_WORK_MAX = 3000

Level = tuple[int, float]
Fits = Callable[[frozenset[int]], bool]
Clash = Callable[[frozenset[int]], frozenset[int]]


class Victim(msgspec.Struct, frozen=True):
    """A gang that might leave.

    Attributes:
        key: of the gang.
        level: its rank (balloon, borrower, other) and its priority; the lowest leaves first.
        cost: GPU-seconds of work that would be lost.
        nodes: how many nodes it is on: where to begin.
    """

    key: str
    level: Level
    cost: float
    nodes: int = 1


def _nobody(gone: frozenset[int]) -> frozenset[int]:
    return frozenset()


def cheapest(
    victims: Sequence[Victim], fits: Fits, steps_max: int = STEPS_MAX, clash: Clash = _nobody
) -> tuple[Victim, ...]:
    """Return who leaves; nobody where all that may leave together are not enough.

    Where the best answer has gangs that may not leave together, one of them stays: the ways to choose it are looked at
    in the order of what they lose, so that the first answer without a clash is the best one.

    Args:
        victims: all that may leave.
        fits: whether there is room once those at these places of `victims` are gone; more of them never hurt.
        steps_max: how often the search of one level may ask.
        clash: those of these places that may not all leave, none where they may; fewer of them never hurt.
    """
    everybody = frozenset(range(len(victims)))
    levels = sorted({victim.level for victim in victims}, reverse=True)
    todo: list[tuple[list[float], list[int], frozenset[int], frozenset[int]]] = []
    seen: set[frozenset[int]] = set()

    def look(staying: frozenset[int]) -> None:
        if staying not in seen:
            seen.add(staying)
            chosen = _best(victims, sorted(everybody - staying), fits, steps_max)
            if chosen is not None:
                heapq.heappush(todo, (_lost(victims, chosen, levels), sorted(staying), staying, chosen))

    look(frozenset())
    for _ in range(max(1, min(SPLITS_MAX, SPLIT_WORK_MAX // max(1, len(victims))))):
        if not todo:
            return ()
        _, _, staying, chosen = heapq.heappop(todo)
        together = clash(chosen)
        if not together:
            return tuple(victims[at] for at in sorted(chosen))
        for at in sorted(together):
            look(staying | {at})
    last = _best(victims, _without_clash(victims, clash), fits, steps_max)
    return tuple(victims[at] for at in sorted(last or ()))


def _without_clash(victims: Sequence[Victim], clash: Clash) -> list[int]:
    """Gangs that may all leave together, the least protected and the cheapest first."""
    found: frozenset[int] = frozenset()
    for at in sorted(range(len(victims)), key=lambda at: (victims[at].level, victims[at].cost, at)):
        if not clash(found | {at}):
            found |= {at}
    return sorted(found)


def _best(victims: Sequence[Victim], places: Sequence[int], fits: Fits, steps_max: int) -> frozenset[int] | None:
    """Who of those at the places leaves, whoever clashes; None where all of them are not enough."""
    levels: dict[Level, list[int]] = {}
    for at in places:
        levels.setdefault(victims[at].level, []).append(at)
    order = sorted(levels)
    touched = 0
    below: frozenset[int] = frozenset()
    while not fits(below):
        if touched == len(order):
            return None
        below |= frozenset(levels[order[touched]])
        touched += 1
    chosen: frozenset[int] = frozenset()
    for level in reversed(order[:touched]):
        below -= frozenset(levels[level])
        chosen |= _cover(victims, levels[level], chosen | below, fits, steps_max)
    if touched > 1:  # of two answers that are as dear in one level, one may be cheaper in the next
        touching = [at for level in order[:touched] for at in levels[level]]
        chosen = _search(victims, touching, frozenset(), fits, chosen, steps_max)
    return chosen


def _cover(
    victims: Sequence[Victim], places: Sequence[int], given: frozenset[int], fits: Fits, steps_max: int
) -> frozenset[int]:
    """The cheapest of the places that are enough together with those given; all of them are."""
    best = frozenset(places)
    for order in _orders(victims, places):
        answer = _enough(order, given, fits)
        if _lost(victims, answer) < _lost(victims, best):
            best = answer
    return _search(victims, places, given, fits, best, steps_max)


def _orders(victims: Sequence[Victim], places: Sequence[int]) -> Iterable[list[int]]:
    """In which order to let gangs go: the cheapest, the cheapest for a node, the largest first."""
    yield sorted(places, key=lambda at: (victims[at].cost, at))
    yield sorted(places, key=lambda at: (victims[at].cost / max(1, victims[at].nodes), at))
    yield sorted(places, key=lambda at: (-victims[at].nodes, victims[at].cost, at))


def _enough(order: Sequence[int], given: frozenset[int], fits: Fits) -> frozenset[int]:
    """The first ones of the order that are enough, without those of them that are not needed, the last ones first."""
    count = bisect_left(range(len(order) + 1), True, key=lambda count: fits(given | frozenset(order[:count])))
    kept = frozenset(order[:count])
    if count > SPARED_MAX:
        return kept
    for at in reversed(order[:count]):
        fewer = kept - {at}
        if fits(given | fewer):
            kept = fewer
    return kept


def _search(
    victims: Sequence[Victim],
    places: Sequence[int],
    given: frozenset[int],
    fits: Fits,
    best: frozenset[int],
    steps_max: int,
) -> frozenset[int]:
    """Branch and bound: spare the dearest first; stop a branch that costs as much as the best, or cannot be enough."""
    levels = sorted({victims[at].level for at in places}, reverse=True)
    column = {at: levels.index(victims[at].level) for at in places}
    order = sorted(places, key=lambda at: (column[at], -victims[at].cost, at))
    best_lost, steps = _lost(victims, best, levels), 0
    steps_max = min(steps_max, WORK_MAX // len(order)) if order else 0
    todo = [(0, frozenset(places), [0.0] * len(levels))]  # (how many are settled, those not spared, their loss so far)
    while todo and steps < steps_max:
        settled, left, lost = todo.pop()
        if lost >= best_lost:
            continue
        if settled == len(order):
            best, best_lost = left, lost
            continue
        at = order[settled]
        more = lost.copy()
        more[column[at]] += victims[at].cost
        todo.append((settled + 1, left, more))
        steps += 1
        if fits(given | (left - {at})):
            todo.append((settled + 1, left - {at}, lost))
    return best


def _lost(victims: Sequence[Victim], places: Iterable[int], levels: Sequence[Level] = ()) -> list[float]:
    """The work lost in each level; in all of them together where none is named."""
    lost = [0.0] * max(1, len(levels))
    for at in places:
        lost[levels.index(victims[at].level) if levels else 0] += victims[at].cost
    return lost
