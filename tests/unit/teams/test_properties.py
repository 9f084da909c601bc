"""What must never happen, whatever comes in whatever order; and moves against an exact search on small pools."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.api.names import LABEL_TEAM
from muster.kube.objects.node import Taint
from muster.teams.cache import Holdings
from muster.teams.decide import decide
from muster.teams.plan import Plan
from muster.teams.record import TeamRecord, change_of
from muster.teams.shares import share_out, wanted
from muster.teams.usage import Rank
from tests.unit.teams.world import World, applied, node, shares

TEAMS = ("vision", "speech", "music")
names = st.integers(0, 7).map(lambda number: f"n{number:02}")
teams = st.sampled_from(TEAMS)
amounts = st.dictionaries(teams, st.integers(0, 9) | st.integers(0, 33).map(lambda part: f"{part}%"))
events = st.one_of(
    st.tuples(st.just("node"), names, st.booleans()),
    st.tuples(st.just("break"), names, st.booleans()),
    st.tuples(st.just("pod"), names, st.sampled_from(["", *TEAMS]), st.booleans()),
    st.tuples(st.just("end"), names),
    st.tuples(st.just("place"), names, st.booleans()),
    st.tuples(st.just("label"), names, st.sampled_from([None, *TEAMS])),
    st.tuples(st.just("taint"), names, st.sampled_from([None, *TEAMS])),
    st.tuples(st.just("config"), amounts, st.sampled_from(["Wait", "Move"])),
    st.tuples(st.just("no config")),
    st.tuples(st.just("run")),
)


def happen(world: World, event: tuple[Any, ...]) -> None:
    kind, *rest = event
    known = kind in ("break", "label", "taint") and rest[0] in world.holdings.nodes
    if kind == "node":
        if not rest[1]:
            world.holdings.remove_node(rest[0])
        elif rest[0] not in world.holdings.nodes:
            world.set_node(node(rest[0]))
    elif kind == "break" and known:
        world.holdings.set_broken(*rest)
    elif kind == "pod":
        world.add_pod(f"pod-{rest[0]}", on=rest[0], team=rest[1], borrower=rest[2])
    elif kind == "end":
        world.end_pod(f"pod-{rest[0]}")
    elif kind == "place":
        world.place(f"gang-{rest[0]}", rest[0], released=rest[1])
    elif kind == "label" and known:
        world.edit(rest[0], labels={LABEL_TEAM: rest[1]})
    elif kind == "taint" and known:
        taints = (Taint(key=LABEL_TEAM, value=rest[1], effect="NoSchedule"),) if rest[1] else ()
        world.edit(rest[0], taints=(*taints, Taint(key="example.com/other", effect="NoSchedule")))
    elif kind == "config":
        world.configure(shares(LABEL_TEAM, rest[1], **rest[0]))
    elif kind == "no config":
        world.holdings.configure(None)
    elif kind == "run":
        world.run()


def again(world: World, seed: int) -> Holdings:
    """The same cluster as a new leader learns about it."""
    old = world.holdings
    fresh = Holdings(old.config)
    order = list(old.nodes.values())
    random.Random(seed).shuffle(order)
    for held in order:
        fresh.set_node(held.node)
        fresh.set_broken(held.name, held.broken)
    return fresh


class Before(NamedTuple):
    """What was so before a decision."""

    by_hand: frozenset[str]
    busy: frozenset[str]
    moves_busy: bool
    allocates: bool


def play(
    nodes: int, first: dict[str, Any], sequence: list[tuple[Any, ...]], check: Callable[[World, Before, Plan], None]
) -> None:
    """Let everything happen in order, with a decision carried out after each."""
    world = World(shares(LABEL_TEAM, "Wait", **first), nodes)
    for event in sequence:
        happen(world, event)
        holdings = world.holdings
        before = Before(
            by_hand=frozenset(name for name, held in holdings.nodes.items() if held.claim.by_hand),
            busy=frozenset(name for name, held in holdings.nodes.items() if held.rank is Rank.BUSY),
            moves_busy=holdings.config is not None and holdings.config.running_gangs == "Move",
            allocates=holdings.config is not None and bool(holdings.config.pools),
        )
        check(world, before, world.run())


stories = given(st.integers(0, 8), amounts, st.lists(events, max_size=25))
Story = list[tuple[Any, ...]]


@settings(max_examples=100)
@stories
def test_owned_nodes_always_add_up_to_the_pool(nodes: int, first: dict[str, Any], story: Story) -> None:
    def check(world: World, before: Before, plan: Plan) -> None:
        if before.allocates:
            standings = world.plan().standings
            counted = Counter(world.owners().values())
            assert {each.team: each.owned for each in standings if each.owned} == counted
            assert sum(each.owned for each in standings) == len(world.holdings.nodes)
            assert sum(each.entitled for each in standings) == len(world.holdings.nodes)

    play(nodes, first, story, check)


@settings(max_examples=100)
@stories
def test_no_sequence_of_events_gives_a_node_two_teams(nodes: int, first: dict[str, Any], story: Story) -> None:
    def check(world: World, before: Before, plan: Plan) -> None:
        written = Counter(change.node for change in plan.changes)
        assert max(written.values(), default=0) <= 1, "a node was written twice"
        for name in world.holdings.nodes:
            one_team(world, name)

    play(nodes, first, story, check)


@settings(max_examples=100)
@stories
def test_no_node_moves_from_under_a_gang_or_a_hand_or_without_an_allocation(
    nodes: int, first: dict[str, Any], story: Story
) -> None:
    def check(world: World, before: Before, plan: Plan) -> None:
        moved = {change.node for change in plan.changes if change.previous != change.record.team}
        assert not before.by_hand & {change.node for change in plan.changes}, "a node set by hand was changed"
        assert before.moves_busy or not moved & before.busy, "a node moved under a running gang"
        assert before.allocates or not moved, "a node changed hands without an allocation"

    play(nodes, first, story, check)


@settings(max_examples=100)
@stories
def test_no_decision_leaves_anything_to_the_next_one(nodes: int, first: dict[str, Any], story: Story) -> None:
    """But for what gangs and hands hold."""

    def check(world: World, before: Before, plan: Plan) -> None:
        again = world.plan()
        assert again.changes == (), "a second decision writes again"
        if not before.busy:
            assert again.leaving == frozenset(), "a node leaves without a new owner"
            fixed = any(standing.by_hand for standing in again.standings)
            for standing in again.standings:
                assert standing.owned == standing.entitled or fixed, standing
                assert not standing.pending or fixed, standing

    play(nodes, first, story, check)


def one_team(world: World, name: str) -> None:
    """A node names one team at most; where we wrote it, label, taint and record say the same."""
    held = world.holdings.nodes[name]
    found = {taint.value for taint in held.node.spec.taints if taint.key == LABEL_TEAM}
    label = held.node.metadata.labels.get(LABEL_TEAM)
    if held.claim.record is not None and not held.claim.by_hand:
        expected = {held.claim.record.team} - {""}
        assert found == expected, "the taint is not what the record says"
        assert ({label} if label else set()) == expected, "the label is not what the record says"
    assert len(found) <= 1, "a node has taints of two teams"


@settings(max_examples=100)
@given(st.integers(0, 8), amounts, st.lists(events, max_size=15), st.integers(0, 1000))
def test_a_new_leader_decides_the_same(nodes: int, first: dict[str, Any], sequence: list[Any], seed: int) -> None:
    world = World(shares(LABEL_TEAM, "Wait", **first), nodes)
    for event in sequence:
        if event[0] not in ("pod", "place"):
            happen(world, event)
    assert decide(again(world, seed), world.now).changes == world.plan().changes


@settings(max_examples=60)
@given(st.data())
def test_no_more_nodes_move_than_an_exact_search_needs(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    world = World(nodes=count)
    owners = data.draw(st.lists(st.sampled_from(["", *TEAMS]), min_size=count, max_size=count))
    known = sorted(world.holdings.nodes)
    for name, owner in zip(known, owners, strict=True):
        give(world, name, owner)
        world.holdings.set_broken(name, data.draw(st.booleans()))
    asked = data.draw(amounts.filter(bool))
    world.configure(shares(LABEL_TEAM, "Wait", **asked))
    plan = world.plan()
    moved = {change.node: change.record.team for change in plan.changes}
    entitled = {each.team: each.entitled for each in plan.standings}
    broken = {name for name in known if world.holdings.nodes[name].broken}
    fair, fewest = exact(known, dict(zip(known, owners, strict=True)), broken, entitled)
    after = {name: moved.get(name, owner) for name, owner in zip(known, owners, strict=True)}
    assert {team: sum(owner == team for owner in after.values()) for team in entitled} == entitled
    assert unfairness(after, broken, entitled) == fair, "broken nodes are not shared out fairly"
    assert len(moved) == fewest


def give(world: World, name: str, owner: str) -> None:
    """The node is the owner's by an earlier decision of ours."""
    if owner:
        record = TeamRecord(team=owner, since=datetime(2026, 1, 1, tzinfo=UTC))
        world.set_node(applied(world.node(name), change_of(record)))


def unfairness(owners: dict[str, str], broken: set[str], entitled: dict[str, int]) -> tuple[int, Fraction]:
    """First how many broken nodes teams have at all, then how far from their parts healthy nodes are shared out."""
    teams = [team for team in entitled if team]
    healthy = {team: sum(owner == team and name not in broken for name, owner in owners.items()) for team in teams}
    total, seats = sum(entitled[team] for team in teams), sum(healthy.values())
    if not total:
        return 0, Fraction(0)
    squares = sum((healthy[team] - Fraction(seats * entitled[team], total)) ** 2 for team in teams)
    return total - seats, Fraction(squares)


def exact(
    known: list[str], before: dict[str, str], broken: set[str], entitled: dict[str, int]
) -> tuple[tuple[int, Fraction], int]:
    """Try every way to own the nodes: the fairest, and of those the fewest nodes that change hands."""
    best: tuple[tuple[int, Fraction], int] | None = None
    for owners in itertools.product(entitled, repeat=len(known)):
        if any(owners.count(team) != count for team, count in entitled.items()):
            continue
        after = dict(zip(known, owners, strict=True))
        found = (unfairness(after, broken, entitled), sum(before[name] != after[name] for name in known))
        best = found if best is None else min(best, found)
    assert best is not None
    return best


@given(
    st.dictionaries(teams, st.integers(0, 50), min_size=1).flatmap(
        lambda weights: st.tuples(
            st.just(weights),
            st.fixed_dictionaries({team: st.integers(0, weight) for team, weight in weights.items()}),
            st.integers(0, 200),
        )
    )
)
def test_shares_never_leave_their_bounds_nor_lose_a_seat(case: tuple[dict[str, int], dict[str, int], int]) -> None:
    weights, least, extra = case
    seats = min(sum(weights.values()), sum(least.values()) + extra)
    shared = share_out(seats, weights, least, weights)
    assert sum(shared.values()) == seats
    for team, got in shared.items():
        assert least[team] <= got <= weights[team]
    assert shared == share_out(seats, weights, least, weights), "not the same again"
    if not any(least.values()) and seats:
        for team, got in shared.items():
            assert abs(got - Fraction(seats * weights[team], sum(weights.values()))) < 1, "more than rounding"


def test_team_at_its_maximum_leaves_more_to_teams_with_a_minimum() -> None:
    weights = {"a": 10, "b": 10, "c": 10}
    assert share_out(15, weights, {"b": 6}, {"a": 1, "b": 10, "c": 10}) == {"a": 1, "b": 7, "c": 7}


@given(amounts, st.integers(0, 1000))
def test_percent_never_ask_for_more_than_they_say(asked: dict[str, Any], total: int) -> None:
    world = World(shares(LABEL_TEAM, "Wait", **asked))
    for pool in world.holdings.pools:
        found = wanted(pool.config, total)
        part = sum((share.percent or Fraction(0)) for share in pool.config.shares) * total / 100
        counts = sum(share.count for share in pool.config.shares)
        assert sum(found.values()) == counts + int(part)
