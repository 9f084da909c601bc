"""Issue 16 B: how the uplink's budget is shared. Nothing here knows time, connections or Kubernetes."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.uplink.fair import fair_rates
from fuzz.uplink.nodes import SimPod
from muster.network.uplink.decide import decide, fill
from muster.network.uplink.demand import level
from muster.network.uplink.plan import Plan, Why
from muster.network.uplink.snapshot import Group, NodeView, Snapshot
from muster.network.uplink.wire import NOTHING, Pair

M = 10**6


def node(
    *wants: tuple[int, int],
    rates: tuple[int, ...] = (),
    held: int = 0,
    rest: int = 0,
    static: int = 0,
    renew: bool = False,
) -> NodeView:
    """A node with downloads only: (group, demand) of each subject, and their limits."""
    old = list(rates) or [0] * len(wants)
    return NodeView(
        "n",
        [group for group, _ in wants],
        [want for _, want in wants],
        [0] * len(wants),
        old,
        [0] * len(wants),
        Pair(rest, 0),
        Pair(held, 0),
        Pair(static, 0),
        renew,
    )


def share(budget: int, *nodes: NodeView, groups: tuple[Group, ...] = (Group("a", 0),), **more: object) -> Plan:
    return decide(Snapshot(budget=Pair(budget, budget), floor=NOTHING, groups=groups, nodes=nodes, **more))  # type: ignore[arg-type]


def rates(plan: Plan) -> list[list[int]]:
    return [list(each.rate_in) for each in plan.nodes]


def test_demands_that_fit_are_met() -> None:
    assert rates(share(100, node((0, 30), (0, 60)))) == [[30, 60]]


def test_equal_subjects_share_equally_and_small_demands_are_met() -> None:
    assert rates(share(100, node((0, 10), (0, 90), (0, 500)))) == [[10, 45, 45]]


def test_teams_share_by_weight() -> None:
    groups = (Group("a", 0), Group("b", 0))
    assert rates(share(100, node((0, 900), (1, 900)), groups=groups, weights={"a": 3})) == [[75, 25]]


def test_team_with_many_subjects_gets_no_more_than_its_weight() -> None:
    groups = (Group("a", 0), Group("b", 0))
    assert rates(share(90, node((0, 900), (1, 900), (1, 900)), groups=groups)) == [[45, 22, 22]]


def test_share_that_a_team_does_not_want_goes_to_others() -> None:
    groups = (Group("a", 0), Group("b", 0), Group("c", 0))
    weights = {"a": 8, "b": 1, "c": 1}
    assert rates(share(100, node((0, 20), (1, 900), (2, 900)), groups=groups, weights=weights)) == [[20, 40, 40]]


def test_higher_priority_of_a_team_comes_first_and_the_lower_one_says_why_it_waits() -> None:
    groups = (Group("a", 0), Group("a", 100), Group("b", 0))
    plan = share(100, node((0, 900), (1, 30), (2, 900)), groups=groups)
    assert rates(plan) == [[20, 30, 50]]
    assert plan.download.waits == {0: Why.PRIORITY, 2: Why.TEAM_SHARE}


def test_priority_does_not_reach_into_another_team() -> None:
    groups = (Group("a", 1000), Group("b", 0))
    assert rates(share(100, node((0, 900), (1, 900)), groups=groups)) == [[50, 50]]


def test_floor_of_every_subject_and_node_is_taken_from_the_budget_first() -> None:
    groups = (Group("a", 100), Group("a", 0))
    snapshot = Snapshot(budget=Pair(100, 100), floor=Pair(10, 10), groups=groups, nodes=(node((0, 900), (1, 900)),))
    (new,) = decide(snapshot).nodes
    assert (list(new.rate_in), new.rest.in_bps) == ([80, 10], 10)


def test_floors_shrink_when_the_budget_does_not_suffice_for_them() -> None:
    nodes = tuple(node() for _ in range(8))
    plan = decide(Snapshot(budget=Pair(100, 100), floor=Pair(50, 50), nodes=nodes))
    assert [each.rest for each in plan.nodes] == [Pair(12, 12)] * 8


def test_limits_of_silent_nodes_are_not_shared() -> None:
    assert rates(share(100, node((0, 900)), away=Pair(70, 0))) == [[30]]
    assert rates(share(100, node((0, 900)), away=Pair(300, 0))) == []


def test_raise_waits_until_another_node_has_confirmed_its_lower_limit() -> None:
    rich, poor = node((0, 900), rates=(100,), held=100), node((0, 900))
    plan = share(100, rich, poor)
    assert (rates(plan), plan.blocked) == ([[50]], True)  # only the decrease is sent
    rich = rich._replace(rate_in=[50], held=Pair(50, 0))
    plan = share(100, rich, poor)
    assert (rates(plan), plan.blocked, plan.nodes[0].node) == ([[50]], False, 1)


def test_free_room_is_given_at_once_in_equal_parts() -> None:
    plan = share(1000, node((0, 9000), rates=(600,), held=600), node((0, 9000)), node((0, 9000)))
    assert (rates(plan), plan.blocked) == ([[333], [200], [200]], True)


def test_unchanged_limits_are_not_sent_unless_the_agent_needs_them() -> None:
    settled = node((0, 900), rates=(100,), held=100)
    assert share(100, settled).nodes == []
    assert rates(share(100, settled._replace(renew=True))) == [[100]]


def test_small_changes_do_not_move_limits() -> None:
    nodes = [node((0, 900), rates=(50_000,), held=50_000), node((0, 900), rates=(50_000,), held=50_000)]
    raised = [each._replace(want_in=[900_000]) for each in nodes]
    assert share(101_000, *raised).nodes == []
    assert rates(share(104_000, *raised)) == [[52_000], [52_000]]
    assert rates(share(99_500, *raised)) == [[49_750], [49_750]]  # a decrease that the budget needs is never left out


def test_unresponsive_subject_is_paid_by_its_team() -> None:
    groups = (Group("a", 0), Group("b", 0))
    plan = share(100, node((0, 900), (1, 900)), groups=groups, excess={"a": Pair(40, 0)})
    assert rates(plan) == [[10, 50]]


def test_unresponsive_subject_beyond_the_share_of_its_team_leaves_the_rest_to_others() -> None:
    groups = (Group("a", 0), Group("b", 0))
    plan = share(100, node((0, 900), (1, 900)), groups=groups, excess={"a": Pair(80, 0)})
    assert rates(plan) == [[0, 20]]


def test_new_leader_raises_no_node_above_its_static_share() -> None:
    nodes = node((0, 900), rates=(10,), held=10, static=25), node((0, 900), rates=(40,), held=40, static=25)
    plan = share(1000, *nodes, warming=True)
    assert (rates(plan), plan.download.waits) == ([[25]], {0: Why.WARMING})


@pytest.mark.parametrize("seed", range(30))
def test_levels_are_those_of_the_definition(seed: int) -> None:
    rng = random.Random(seed)
    wants = [rng.choice((0, 1, 5, 100, 10**10)) + rng.randrange(50) for _ in range(rng.randrange(1, 40))]
    capacity = rng.randrange(2 * sum(wants) + 1)
    top = level(wants, capacity)
    given_ = [min(want, top) for want in wants]
    assert sum(given_) <= capacity
    if top < max(wants):
        assert sum(min(want, top + 1) for want in wants) > capacity


pods = st.lists(
    st.tuples(st.sampled_from(("a", "b", "")), st.sampled_from((0, 7)), st.integers(0, 2000)), min_size=1, max_size=12
)


@settings(max_examples=150, deadline=None)
@given(pods, st.integers(0, 10_000), st.integers(1, 9))
def test_shares_are_those_of_the_definition(found: list[tuple[str, int, int]], budget: int, weight: int) -> None:
    groups = tuple(dict.fromkeys(Group(team, priority) for team, priority, _ in found))
    view = node(*((groups.index(Group(team, priority)), want * M) for team, priority, want in found))
    plan = share(budget * M, view, groups=groups, weights={"a": weight})
    known = {
        str(i): SimPod(str(i), team, priority, Pair(want * M, 0)) for i, (team, priority, want) in enumerate(found)
    }
    fair = fair_rates(known, 0, budget * M, {"a": weight})
    got = plan.nodes[0].rate_in if plan.nodes else [0] * len(found)
    for index, rate in enumerate(got):
        assert abs(rate - fair[str(index)]) <= len(found) + 2  # bits/s: whole numbers are rounded down


nodes_ = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.integers(0, 3), st.integers(0, 10**6), st.integers(0, 10**5)), max_size=4
        ),  # group, want, rate
        st.integers(0, 10**5),  # rest
        st.integers(0, 10**5),  # what it may hold beyond its limits
        st.integers(0, 10**5),  # static
    ),
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(nodes_, st.integers(0, 10**6), st.integers(0, 10**5), st.integers(0, 10**4), st.booleans())
def test_limits_in_force_never_exceed_the_budget_by_a_plan(
    found: list[tuple[list[tuple[int, int, int]], int, int, int]], spare: int, away: int, floor: int, warming: bool
) -> None:
    """Whatever of the new limits is applied, and whatever is not: the sum is at most the budget, if it was before."""
    views = tuple(
        node(
            *((group, want) for group, want, _ in subjects),
            rates=tuple(rate for _, _, rate in subjects),
            rest=rest,
            held=sum(rate for _, _, rate in subjects) + rest + beyond,
            static=static,
        )
        for subjects, rest, beyond, static in found
    )
    held = [each.held.in_bps for each in views]
    budget = sum(held) + away + spare
    snapshot = Snapshot(
        budget=Pair(budget, budget),
        floor=Pair(floor, floor),
        groups=(Group("a", 0), Group("a", 1), Group("b", 0), Group("", 0)),
        nodes=views,
        away=Pair(away, away),
        warming=warming,
    )
    before = copy.deepcopy(snapshot)
    plan = decide(snapshot)
    assert snapshot == before, "decide changed its input"
    worst = held[:]
    for new in plan.nodes:
        worst[new.node] = max(worst[new.node], sum(new.rate_in) + new.rest.in_bps)
        if warming:
            assert sum(new.rate_in) + new.rest.in_bps <= max(held[new.node], views[new.node].static.in_bps)
    assert sum(worst) + away <= budget


def test_weighted_shares_leave_nothing_that_is_wanted() -> None:
    shares = fill({"a": 5, "b": 1000, "c": 1000}, {"a": 1, "b": 1, "c": 3}, 100)
    assert shares == {"a": 5, "b": 23, "c": 71}
