"""Teams lend nodes: who borrows leaves whole once the owner's gang needs them, and only then."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from muster.api.lending import NodeUser, states_of
from muster.api.names import LABEL_BORROWED, LABEL_TEAM
from muster.scheduler.explain.what_if import ChangeKind
from muster.scheduler.explain.why_waiting import explain
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.metrics import SchedulerMetrics
from muster.scheduler.plan import TellToLeave, WritePlacement
from tests.unit.scheduler.teamwork import add, borrower, owned
from tests.unit.scheduler.test_rules import apart, term
from tests.unit.scheduler.world import World, reason_of


def phase(world: World, gang: str) -> str:
    placement = world.placements.get(f"default/{gang}")
    return placement.status.phase if placement is not None else ""


def lent(*, priority: int = 0, team: str = "red", nodes: str = "abc") -> World:
    """Nodes of team blue, all of them borrowed by one gang."""
    world = World()
    owned(world, "blue", *nodes)
    add(world, "guest", len(nodes), team, borrows=True, priority=priority)
    world.run()
    assert set(world.nodes_of("guest").values()) == set(nodes)
    return world


@pytest.mark.parametrize("priority", [-1, 0, 1000])
def test_a_borrower_leaves_whole_for_the_owners_gang_whatever_their_priorities(priority: int) -> None:
    world = lent(priority=priority)
    add(world, "home", 2, "blue")
    plan = world.run()
    assert phase(world, "guest") == "Preempting"
    placement = world.placements["default/guest"]
    assert placement.status.message == "gives 3 nodes back to team blue: default/home needs them"
    assert reason_of(plan, world, "home") == "MakingRoom"
    assert world.nodes_of("home") == {}, "not before the last pod is gone"
    world.remove_gang("guest")
    world.run()
    assert len(world.nodes_of("home")) == 2
    add(world, "guest", 3, "red", borrows=True, priority=priority)
    assert reason_of(world.run(), world, "guest") in ("NotEnoughNodes", "MoreThanTheCluster")
    world.remove_gang("home")
    world.set_job("home", JobFacts(ended="Succeeded"))
    world.run()
    assert len(world.nodes_of("guest")) == 3, "it runs again once there is room"


def changing_hands(*, borrows: bool, rules: bool = False) -> World:
    """Two of four nodes are about to change hands; a gang of three waits, and one of two after it."""
    world = World()
    owned(world, "blue", "a", "b", "c", "d")
    world.state.set_leaving(frozenset({"c", "d"}))
    for name, size in (("head", 3), ("small", 2)):
        affinity = apart(term("kubernetes.io/hostname", {"muster.dev/gang": name})) if rules else {}
        add(
            world,
            name,
            size,
            "red" if borrows else "blue",
            borrows=borrows,
            **({"affinity": affinity} if rules else {}),
        )
    return world


@pytest.mark.parametrize("rules", [False, True], ids=["plain", "with rules about other pods"])
def test_handover_does_not_let_smaller_gang_pass_the_head(*, rules: bool) -> None:
    """Issue 11: nodes that a hand-over closes for a moment still count for a gang that may use any team's nodes."""
    world = changing_hands(borrows=True, rules=rules)
    plan = world.run()
    assert world.placements == {}
    assert reason_of(plan, world, "head") == "NotEnoughNodes"
    assert reason_of(plan, world, "small") == "BehindInQueue"
    owned(world, "green", "c", "d")
    world.state.set_leaving(frozenset())
    world.run()
    assert len(world.nodes_of("head")) == 3
    assert world.nodes_of("small") == {}


def test_gang_bound_to_its_team_does_not_wait_for_nodes_that_its_team_gives_away() -> None:
    """Issue 11: a hand-over may take days, and the team's gang gets nothing when it ends: it blocks no other gang."""
    world = changing_hands(borrows=False)
    plan = world.run()
    assert reason_of(plan, world, "head") == "MoreThanTheCluster"
    assert set(world.nodes_of("small").values()) == {"a", "b"}


@pytest.mark.parametrize(
    ("team", "borrower"),
    [("green", False), ("blue", True)],
    ids=["a team that does not own the nodes", "a borrower of the owner"],
)
def test_equal_priority_gets_no_lent_nodes(team: str, borrower: bool) -> None:
    world = lent()
    owned(world, "green", "g")
    add(world, "other", 2, team, borrows=borrower)
    assert not any(isinstance(action, TellToLeave | WritePlacement) for action in world.decide().actions)


@pytest.mark.parametrize("owner", ["", "red"], ids=["no owner", "its own team's"])
def test_a_borrower_on_other_nodes_leaves_for_higher_priority_only(owner: str) -> None:
    world = World()
    owned(world, owner, "a", "b")
    add(world, "guest", 2, "red", borrows=True)
    world.run()
    kind = {"tolerations": [{"key": LABEL_TEAM, "operator": "Exists"}], "affinity": {}}
    add(world, "equal", 1, "red", **kind)
    world.run()
    assert phase(world, "guest") == "Bound"
    world.remove_gang("equal")
    world.set_job("equal", JobFacts(ended="Succeeded"))
    add(world, "higher", 1, "red", priority=1, **kind)
    world.run()
    assert phase(world, "guest") == "Preempting"


def test_a_borrower_leaves_only_where_the_owners_gang_then_fits() -> None:
    world = lent(nodes="ab")
    owned(world, "blue", "c", ready=False)
    add(world, "home", 3, "blue")
    plan = world.run()
    assert phase(world, "guest") == "Bound"
    assert reason_of(plan, world, "home") == "MoreThanTheCluster"


def test_nodes_of_a_borrower_elsewhere_do_not_get_it_preempted() -> None:
    """Of four nodes of a borrower one is the owner's: it yields for one node of it, not for two without owner."""
    world = World()
    owned(world, "blue", "a")
    owned(world, "", "b", "c", "d")
    add(world, "guest", 4, "red", borrows=True)
    world.run()
    kind = {"tolerations": [{"key": LABEL_TEAM, "operator": "Exists"}], "affinity": {}}
    add(world, "home", 2, "blue", **kind)
    world.run()
    assert phase(world, "guest") == "Bound"
    add(world, "small", 1, "blue")
    world.run()
    assert phase(world, "guest") == "Bound", "home is first in line"
    world.remove_gang("home")
    world.set_job("home", JobFacts(ended="Succeeded"))
    world.run()
    assert phase(world, "guest") == "Preempting"
    world.remove_gang("guest")
    world.run()
    assert world.nodes_of("small") == {0: "a"}


def test_of_several_borrowers_those_leave_that_lose_least() -> None:
    world = World()
    owned(world, "blue", *"abcd")
    now = world.now
    for name, saved in (("dear", 0.0), ("cheap", now + 90)):
        add(world, name, 2, "red", borrows=True, facts=JobFacts(started_at=now, saved_at=saved))
    world.run()
    world.now = now + 100
    add(world, "home", 2, "blue")
    world.run()
    assert (phase(world, "cheap"), phase(world, "dear")) == ("Preempting", "Bound")


def test_a_borrower_that_waits_keeps_no_node_from_its_owner() -> None:
    """It came first and has the higher priority; what it kept or took it would have to give back at once."""
    world = World()
    owned(world, "blue", *"abc")
    add(world, "small", 1, "red", borrows=True, priority=9)
    world.run()
    add(world, "guest", 3, "red", borrows=True, priority=9)
    assert reason_of(world.run(), world, "guest") == "NotEnoughNodes"
    add(world, "home", 2, "blue")
    world.run()
    assert len(world.nodes_of("home")) == 2
    assert phase(world, "small") == "Bound"


def test_a_gang_that_never_preempts_takes_nothing_back() -> None:
    world = lent()
    add(world, "home", 1, "blue", preemptionPolicy="Never")
    world.run()
    assert phase(world, "guest") == "Bound"


def test_another_key_says_whose_a_node_is() -> None:
    world = World(team_key="openai.com/team")
    owned(world, "blue", "a", "b", key="openai.com/team")
    add(world, "guest", 2, "red", borrows=True, key="openai.com/team")
    world.run()
    add(world, "home", 1, "blue", key="openai.com/team")
    world.run()
    assert phase(world, "guest") == "Preempting"


def test_a_node_that_changes_hands_is_lent_from_then_on() -> None:
    world = World()
    owned(world, "", "a", "b")
    add(world, "guest", 2, "red", borrows=True)
    world.run()
    owned(world, "blue", "a", "b")
    add(world, "home", 1, "blue")
    world.run()
    assert phase(world, "guest") == "Preempting"


def test_the_first_gang_of_one_team_does_not_block_gangs_of_another() -> None:
    world = World()
    owned(world, "blue", *"abc")
    owned(world, "red", *"xyz")
    add(world, "blue-runs", 2, "blue")
    world.run()
    add(world, "blue-head", 3, "blue")
    add(world, "blue-next", 1, "blue")
    add(world, "red-first", 2, "red")
    add(world, "red-second", 1, "red")
    plan = world.run()
    assert len(world.nodes_of("red-first")) == 2
    assert len(world.nodes_of("red-second")) == 1
    assert reason_of(plan, world, "blue-next") == "BehindInQueue"
    text = plan.waiting[world.gang("blue-next").key].text()
    assert text.startswith("waiting behind default/blue-head of the same team,")


def test_teams_wait_by_arrival_for_nodes_without_owner() -> None:
    world = World()
    owned(world, "", *"ab")
    rest: dict[str, object] = {"tolerations": [], "affinity": {}}
    add(world, "runs", 1, "red", **rest)
    world.run()
    add(world, "first", 2, "blue", **rest)
    add(world, "second", 1, "red", **rest)
    plan = world.run()
    assert world.nodes_of("second") == {}
    assert plan.waiting[world.gang("second").key].text().startswith("waiting behind default/first of team blue,")


def test_explain_says_whose_nodes_are_and_to_whom_they_are_lent() -> None:
    world = lent(nodes="a")
    owned(world, "blue", *(f"n{number}" for number in range(7)))
    owned(world, "blue", "q0", "q1", unschedulable=True)
    owned(world, "green", "g0", "g1", "g2")
    add(world, "home", 10, "blue")
    reported = explain(world.state.snapshot(), world.gang("home"), now=world.now)
    assert reported.summary.startswith(
        "needs 10 nodes; the cluster has 8. Add 2, or use --nodes 8. The cluster's nodes: 3 owned by team green, "
        "2 cordoned, 1 lent to team red"
    )
    assert (reported.need, reported.have) == (10, 7)


def test_a_borrower_of_whatever_priority_sends_away_balloons_and_borrowers_only() -> None:
    world = World()
    owned(world, "blue", "a", "b")
    owned(world, "", "c")
    add(world, "home", 1, "blue")
    add(world, "mild", 1, "green", borrows=True)
    for kind in ("a", "b", "c"):
        pod = {"priority": -5, "tolerations": [{"operator": "Exists"}]}
        world.add_pod(f"balloon-{kind}", pod, labels={"muster.dev/balloon": "true"})
    world.run()
    add(world, "bold", 2, "red", borrows=True, priority=1000)
    world.run()
    assert (phase(world, "home"), phase(world, "mild")) == ("Bound", "Preempting")
    world.remove_gang("mild")
    world.run()
    assert len(world.nodes_of("bold")) == 2
    assert len(world.nodes_of("home")) == 1


def test_nodes_are_counted_by_team_and_shown_as_metrics() -> None:
    world, registry = World(), CollectorRegistry()
    owned(world, "blue", *"abcd")
    owned(world, "", "e")
    add(world, "home", 1, "blue")
    add(world, "guest", 4, "red", borrows=True)
    world.run()
    metrics = SchedulerMetrics(registry)

    def shown(team: str) -> list[float | None]:
        metrics.count_teams(world.state.teams)
        states = ("owned", "used", "lent", "borrowed")
        return [
            registry.get_sample_value("muster_scheduler_team_nodes", {"team": team, "state": state}) for state in states
        ]

    assert shown("blue") == [4, 1, 3, 0]
    assert shown("red") == [0, 0, 0, 3], "a node without owner is not borrowed"
    world.remove_gang("guest")
    world.set_job("guest", JobFacts(ended="Succeeded"))
    world.run()
    assert shown("blue") == [4, 1, 0, 0]
    assert shown("red") == [None] * 4


def test_a_borrower_at_home_borrows_nothing() -> None:
    users = [NodeUser("blue", True), NodeUser("", True)]
    assert list(states_of("blue", users[:1])) == [("blue", "owned"), ("blue", "used")]
    assert list(states_of("blue", users[1:])) == [("blue", "owned"), ("blue", "lent")]
    assert list(states_of("", users)) == []


@pytest.mark.parametrize("single", [False, True])
def test_a_borrower_that_waits_for_others_to_leave_gives_up_its_plan(single: bool) -> None:
    """It kept nodes of an owner for as long as the slowest of those took to leave (found by the property)."""
    world = World()
    owned(world, "blue", "a", "b")
    add(world, "mild", 2, "green", borrows=True, priority=-1)
    world.run()
    if single:
        labels = {LABEL_BORROWED: "true", LABEL_TEAM: "red"}
        world.add_pod("bold", {"priority": 5, **borrower()}, labels=labels)
    else:
        add(world, "bold", 2, "red", borrows=True, priority=5)
    world.run()
    plan = "default/pod.bold" if single else "default/bold"
    assert world.placements[plan].spec.preempting
    add(world, "home", 2, "blue")
    world.run()
    assert plan not in world.placements
    world.remove_gang("mild")
    world.run()
    assert len(world.nodes_of("home")) == 2


@pytest.mark.parametrize(("free", "reported"), [(2, True), (1, False)])
def test_explain_says_to_borrow_where_that_is_enough(free: int, reported: bool) -> None:
    world = World()
    owned(world, "blue", "b0")
    owned(world, "red", *(f"r{number}" for number in range(free)))
    add(world, "home", 3, "blue")
    found = explain(world.state.snapshot(), world.gang("home"), now=world.now).changes
    assert [change.text() for change in found if change.kind in (ChangeKind.BORROW, ChangeKind.TOLERATE)] == [
        "borrow nodes of other teams (--borrow, spec.borrow)"
    ] * reported
    add(world, "guest", 4, "green", borrows=True)
    found = explain(world.state.snapshot(), world.gang("guest"), now=world.now).changes
    assert all(change.kind is not ChangeKind.BORROW for change in found)
