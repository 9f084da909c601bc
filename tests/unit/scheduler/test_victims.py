"""Who leaves for whom, against an exact solver."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.scheduler.preemption import Victim, cheapest

VICTIM = st.builds(
    Victim,
    key=st.just(""),
    level=st.tuples(st.integers(0, 2), st.sampled_from([-10.0, 0.0, 5.0])),
    cost=st.integers(1, 1000).map(float),
    nodes=st.integers(1, 9),
)


def lost(victims: list[Victim], chosen: set[int]) -> list[float]:
    """The work lost in each level, the most protected first."""
    levels = sorted({victim.level for victim in victims}, reverse=True)
    return [sum(victims[at].cost for at in chosen if victims[at].level == level) for level in levels]


def exact(victims: list[Victim], groups: list[set[int]], need: int) -> list[float] | None:
    """The least work lost, level by level, of all subsets that are enough; None where none is."""
    found = [
        lost(victims, set(chosen))
        for count in range(len(victims) + 1)
        for chosen in itertools.combinations(range(len(victims)), count)
        if sum(group <= set(chosen) for group in groups) >= need
    ]
    return min(found, default=None)


@settings(max_examples=400, deadline=None)
@given(st.data(), st.lists(VICTIM, min_size=1, max_size=8))
def test_the_choice_is_never_more_than_a_tenth_dearer_than_the_best(data: st.DataObject, victims: list[Victim]) -> None:
    """Nodes may be shared by several gangs, all of which have to leave."""
    victims = [Victim(str(at), each.level, each.cost, each.nodes) for at, each in enumerate(victims)]
    groups = [{at} for at, victim in enumerate(victims) for _ in range(victim.nodes)]
    groups += data.draw(st.lists(st.sets(st.integers(0, len(victims) - 1), min_size=1, max_size=3), max_size=4))
    need = data.draw(st.integers(0, len(groups)))

    def fits(gone: frozenset[int]) -> bool:
        return sum(group <= gone for group in groups) >= need

    best = exact(victims, groups, need)
    chosen = cheapest(victims, fits)
    assert best is not None  # all of them together are enough
    places = {int(victim.key) for victim in chosen}
    assert fits(frozenset(places))
    for ours, theirs in zip(lost(victims, places), best, strict=True):
        assert ours <= 1.1 * theirs, (lost(victims, places), best)
        if ours != theirs:
            break


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 1000)), min_size=9, max_size=60), st.floats(0.05, 0.95))
def test_the_choice_among_many_gangs_is_never_half_as_dear_again_as_the_best(
    gangs: list[tuple[int, int]], part: float
) -> None:
    """Whole nodes only, so that the best is known from a table (a knapsack)."""
    victims = [Victim(str(at), (2, 0.0), float(cost), nodes) for at, (nodes, cost) in enumerate(gangs)]
    total = sum(nodes for nodes, _ in gangs)
    need = max(1, int(total * part))
    table = [0.0] + [float("inf")] * need
    for nodes, cost in gangs:
        for wanted in range(need, 0, -1):
            table[wanted] = min(table[wanted], table[max(0, wanted - nodes)] + cost)
    chosen = cheapest(victims, lambda gone: sum(victims[at].nodes for at in gone) >= need)
    assert sum(victim.nodes for victim in chosen) >= need
    assert sum(victim.cost for victim in chosen) <= 1.5 * table[need]


def test_nobody_leaves_where_all_of_them_are_not_enough() -> None:
    victims = [Victim("a", (0, 0.0), 1.0), Victim("b", (2, 0.0), 1.0)]
    assert cheapest(victims, lambda gone: False) == ()
    assert cheapest(victims, lambda gone: True) == ()


def test_balloons_leave_before_borrowers_and_these_before_lower_priorities_whatever_they_cost() -> None:
    victims = [Victim("other", (2, -5.0), 1.0), Victim("borrower", (1, 0.0), 100.0), Victim("balloon", (0, 9.0), 1e6)]
    for count, names in ((1, {"balloon"}), (2, {"balloon", "borrower"}), (3, {"balloon", "borrower", "other"})):
        chosen = cheapest(victims, lambda gone, count=count: len(gone) >= count)  # type: ignore[misc]
        assert {victim.key for victim in chosen} == names


def test_thousands_of_balloons_are_chosen_from_without_a_search() -> None:
    asked = 0

    def fits(gone: frozenset[int]) -> bool:
        nonlocal asked
        asked += 1
        return len(gone) >= 3000

    victims = [Victim(str(at), (0, -10.0), 8.0) for at in range(7500)]
    assert len(cheapest(victims, fits, steps_max=0)) == 3000
    assert asked < 100


def test_one_gang_that_is_enough_leaves_instead_of_a_dearer_one_that_no_greedy_order_passes_over() -> None:
    gangs = [(5, 18.0), (2, 15.0), (1, 17.0), (11, 30.0)]
    victims = [Victim(str(at), (2, 0.0), cost, nodes) for at, (nodes, cost) in enumerate(gangs)]
    chosen = cheapest(victims, lambda gone: sum(victims[at].nodes for at in gone) >= 3)
    assert [victim.key for victim in chosen] == ["0"]
