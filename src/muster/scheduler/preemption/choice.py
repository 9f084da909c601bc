"""Chooses victims so that another gang fits: whole gangs, the least protected first, the least work lost.

Levels go from the least to the most protected: balloons, backfilled gangs, borrowers, others; within each, by
priority. As few levels as possible are touched. Within the highest of them the lost work is minimal, then within the
next one, and so on.

This is a covering problem. Several greedy answers are computed level by level. Each is improved by a bounded search
(branch and bound). Then such a search covers all levels at once. The answer is exact for up to about a dozen gangs,
the usual number.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

import msgspec

STEPS_MAX = 2000
"""Limit on calls of `fits` in the search of one level."""
WORK_MAX = 200_000
"""Limit on calls of `fits` times the number of gangs: each call visits all of them."""
SPARED_MAX = 256
"""With more gangs than this, greedy answers are not tested gang by gang for one that may be spared or completes them.
`WORK_MAX` also limits the latter."""
SPLITS_MAX = 256
"""Limit on answers tried if some victims may not leave together. `SPLIT_WORK_MAX` limits answers times gangs."""
SPLIT_WORK_MAX = 3000

Level = tuple[float, float]
Fits = Callable[[frozenset[int]], bool]
Clash = Callable[[frozenset[int]], frozenset[int]]


class Victim(msgspec.Struct, frozen=True):
    """A candidate for preemption.

    Attributes:
        key: key of the gang.
        level: its rank (balloon, backfilled, borrower, other) and its priority; the lowest leaves first.
        cost: GPU-seconds of work that would be lost.
        nodes: number of its nodes, used to order the greedy answers.
    """

    key: str
    level: Level
    cost: float
    nodes: int = 1


def _no_clash(gone: frozenset[int]) -> frozenset[int]:
    return frozenset()


def cheapest(
    victims: Sequence[Victim], fits: Fits, steps_max: int = STEPS_MAX, clash: Clash = _no_clash
) -> tuple[Victim, ...]:
    """Return the victims; empty if all candidates that may leave together are not enough.

    If the best answer has gangs that may not leave together, one of them stays. The choices are tried in the order of
    lost work, so that the first answer without a clash is the best one.

    Args:
        victims: all candidates.
        fits: whether there is room once those at these indexes are gone; more victims never reduce the room.
        steps_max: limit on calls of `fits` in the search of one level.
        clash: those of these indexes that may not all leave, empty if they may; fewer victims never add a clash.
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
    """Return gangs that may all leave together, the least protected and the cheapest first."""
    found: frozenset[int] = frozenset()
    for at in sorted(range(len(victims)), key=lambda at: (victims[at].level, victims[at].cost, at)):
        if not clash(found | {at}):
            found |= {at}
    return sorted(found)


def _best(victims: Sequence[Victim], places: Sequence[int], fits: Fits, steps_max: int) -> frozenset[int] | None:
    """Return the best victims among the indexes, ignoring clashes; None if all of them are not enough."""
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
    if touched > 1:  # answers of equal cost in one level may differ in the next
        touching = [at for level in order[:touched] for at in levels[level]]
        chosen = _search(victims, touching, frozenset(), fits, chosen, steps_max)
    return chosen


def _cover(
    victims: Sequence[Victim], places: Sequence[int], given: frozenset[int], fits: Fits, steps_max: int
) -> frozenset[int]:
    """Return the cheapest indexes that are enough together with `given`; all of them are enough."""
    best = frozenset(places)
    for answer in _answers(victims, places, given, fits):
        if _lost(victims, answer) < _lost(victims, best):
            best = answer
    return _search(victims, places, given, fits, best, steps_max)


def _answers(
    victims: Sequence[Victim], places: Sequence[int], given: frozenset[int], fits: Fits
) -> Iterable[frozenset[int]]:
    """Yield greedy answers: the cheapest first, the cheapest per node first, the largest first, and one more."""
    per_node = sorted(places, key=lambda at: (victims[at].cost / max(1, victims[at].nodes), at))
    yield _enough(sorted(places, key=lambda at: (victims[at].cost, at)), given, fits)
    yield _enough(per_node, given, fits)
    yield _enough(sorted(places, key=lambda at: (-victims[at].nodes, victims[at].cost, at)), given, fits)
    if len(per_node) <= SPARED_MAX and len(per_node) * len(victims) <= WORK_MAX:
        yield _enough(_completed(victims, per_node, given, fits), given, fits)


def _completed(victims: Sequence[Victim], order: Sequence[int], given: frozenset[int], fits: Fits) -> Sequence[int]:
    """Return the cheapest answer that consists of first ones of the order and another one.

    One that would be enough with those before it is passed over, as a later one may be enough and cost less. Source:
    Csirik, Frenk, Labbé and Zhang, Heuristics for the 0-1 min-knapsack problem, 1991.
    """
    best, first = order, list[int]()
    for at in order:
        answer = [*first, at]
        if not fits(given | frozenset(answer)):
            first = answer
        elif _lost(victims, answer) < _lost(victims, best):
            best = answer
    return best


def _enough(order: Sequence[int], given: frozenset[int], fits: Fits) -> frozenset[int]:
    """Return the first of the order that are enough, without those not needed, dropping the last ones first."""
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
    """Branch and bound: spare the dearest first; cut branches that cannot be enough or cost as much as the best."""
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
    """Return the work lost in each level, or the total without levels."""
    lost = [0.0] * max(1, len(levels))
    for at in places:
        lost[levels.index(victims[at].level) if levels else 0] += victims[at].cost
    return lost
