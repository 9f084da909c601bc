"""Scaling, story by story, on a simulated cloud."""

from __future__ import annotations

from itertools import pairwise

from msgspec.structs import replace

from muster.api.whole_node import WholeNode
from muster.fleet.providers.base import ProviderError
from muster.fleet.providers.simulated import SimulatedGroup
from muster.fleet.scaling.decide import decide
from muster.fleet.scaling.plan import Cordon, Delete, ForgetNode, Outcome, Plan, SetSize, Uncordon
from muster.fleet.scaling.snapshot import Fault, GangDemand, Group, Instance, Members, PoolSpec, ScalingNode, View
from muster.kube.objects.affinity import NodeSelectorRequirement, NodeSelectorTerm, Toleration
from muster.kube.objects.node import Taint
from tests.unit.fleet.scalingworld import NODE, POD, World, members, pool


def world(*pools: PoolSpec, **groups: SimulatedGroup) -> World:
    return World(pools, {each.name: groups.get(each.name, SimulatedGroup(size=each.min)) for each in pools})


def grown(plans: list[Plan]) -> list[tuple[str, int]]:
    return [
        (each.pool, each.size)
        for plan in plans
        for each in plan.actions
        if isinstance(each, SetSize) and each.size > each.before
    ]


def demand(key: str, *of: Members, approved: bool = True) -> GangDemand:
    return GangDemand(key, f"ns/{key}", of, since=0.0, approved=approved)


def look(*demands: GangDemand, pools: tuple[PoolSpec, ...], sizes: dict[str, int] | None = None) -> View:
    """Pools whose instances were all made; no instance has joined."""
    groups = {}
    for each in pools:
        size = (sizes or {}).get(each.name, 0)
        groups[each.name] = Group(size, tuple(Instance(f"{each.name}-{number}") for number in range(size)))
    return View(pools, groups, demands=demands)


def answers(view: View) -> dict[str, Outcome]:
    return {key: answer.outcome for key, answer in decide(view, 100.0).answers.items()}


def test_a_gang_gets_what_it_lacks_and_no_more() -> None:
    it = world(pool("a", max=8, min=1))
    it.run(200.0)
    assert list(it.nodes()) == ["a-1"]
    it.submit("train", 3)
    plans = it.run(200.0)
    assert grown(plans) == [("a", 3)]
    assert it.gangs["train"].nodes == ["a-1", "a-2", "a-3"]


def test_whole_nodes_are_not_shared_and_have_the_gpu_count() -> None:
    """Issue 11.5: gangs that take whole nodes get new ones, each for itself, and only of their GPU count."""
    gpus = NODE["nvidia.com/gpu"]
    shared = replace(members(1), request={"pods": 1})
    whole = replace(members(2), request={"pods": 1}, whole=WholeNode("nvidia.com/gpu", gpus))
    other = replace(members(1), request={"pods": 1}, whole=WholeNode("nvidia.com/gpu", gpus + 1))
    plan = decide(look(demand("s", shared), demand("w", whole), demand("o", other), pools=(pool("a", max=8),)), 100.0)
    assert [each.size for each in plan.actions if isinstance(each, SetSize)] == [3]
    assert plan.answers["o"].outcome is Outcome.NO_POOL


def test_several_gangs_are_served_at_once_each_whole_and_in_order() -> None:
    it = world(pool("a", max=6))
    it.submit("first", 3)
    it.submit("second", 2)
    it.submit("third", 3)
    it.submit("fourth", 1)
    assert grown([it.step()]) == [("a", 5)]
    assert it.plan is not None
    outcomes = {key: answer.outcome for key, answer in it.plan.answers.items()}
    assert outcomes == {
        "first": Outcome.ADDED,
        "second": Outcome.ADDED,
        "third": Outcome.FULL,
        "fourth": Outcome.BEHIND,  # what it got would go to the third
    }


def test_the_cheapest_pool_that_can_hold_all_of_it_is_taken() -> None:
    small, large = pool("cheap", max=2, price=1.0), pool("dear", max=8, price=5.0)
    assert grown([decide(look(demand("g", members(2)), pools=(small, large)), 100.0)]) == [("cheap", 2)]
    plan = decide(look(demand("g", members(3)), pools=(small, large)), 100.0)
    assert grown([plan]) == [("dear", 3)]
    assert "cheap: needs 3 more, has room for 2" in plan.answers["g"].message


def test_no_capacity_means_the_next_pool_at_once_and_the_first_again_after_a_while() -> None:
    """kubernetes/autoscaler#3241: spot groups that launch nothing were waited for, 15 minutes."""
    it = world(pool("spot", max=8, price=1.0), pool("ondemand", max=8, price=3.0), spot=SimulatedGroup(available=0))
    it.submit("train", 2)
    plans = it.run(30.0)
    assert grown(plans) == [("spot", 2), ("ondemand", 2)]
    assert it.cloud.groups["spot"].size == 0, "what does not come is no longer asked for"
    it.run(300.0)
    assert len(it.gangs["train"].nodes) == 2
    it.cloud.groups["spot"].available = 8
    it.submit("more", 2)
    assert ("spot", 2) in grown(it.run(600.0))


def test_a_cloud_that_gives_fewer_is_not_waited_for_longer_than_a_join_may_take() -> None:
    cheap = SimulatedGroup(available=1, silent=True)
    it = world(pool("cheap", max=8, price=1.0), pool("dear", max=8, price=3.0), cheap=cheap)
    it.submit("train", 3)
    plans = it.run(500.0)
    assert grown(plans) == [("cheap", 3), ("dear", 2)], "the one it gave counts"
    assert it.cloud.groups["cheap"].size == 1
    assert len(it.gangs["train"].nodes) == 3


def test_a_cloud_that_says_yes_and_does_nothing_is_found_out() -> None:
    it = world(pool("deaf", max=8, price=1.0), pool("dear", max=8, price=3.0), deaf=SimulatedGroup(deaf=True))
    it.submit("train", 2)
    plans = it.run(200.0)
    assert ("dear", 2) in grown(plans)
    assert it.memory["deaf"].fault is Fault.FEWER
    assert "asked for 2 instances, deaf is set to 0" in it.memory["deaf"].message


def test_an_instance_that_never_joins_is_replaced() -> None:
    it = world(pool("a", max=3), a=SimulatedGroup(never_join=1))
    it.submit("train", 3)
    it.run(150.0)
    assert it.gangs["train"].nodes == []
    assert sorted(it.nodes()) == ["a-2", "a-3"]
    it.run(250.0)
    assert it.cloud.deleted == [("a", "a-1")]
    assert it.gangs["train"].nodes == ["a-2", "a-3", "a-4"]


def test_a_pool_whose_instances_never_join_is_left_for_the_next() -> None:
    it = world(pool("bad", max=3, price=1.0), pool("good", max=3, price=2.0), bad=SimulatedGroup(never_join=100))
    it.submit("train", 2)
    it.run(800.0)
    assert {node.split("-")[0] for node in it.gangs["train"].nodes} == {"good"}
    assert it.memory["bad"].fault is Fault.NEVER_JOINED


def test_at_the_least_size_the_provider_replaces_what_never_joins() -> None:
    """kubernetes/autoscaler#9043: below its least size a group was stuck for good."""
    it = world(pool("a", max=4, min=2), a=SimulatedGroup(size=2, never_join=1))
    plans = it.run(400.0)
    deletes = [each for plan in plans for each in plan.actions if isinstance(each, Delete)]
    assert [(each.instance, each.replace) for each in deletes] == [("a-1", True)]
    assert len(it.nodes()) == 2


def test_provider_errors_back_off_and_no_other_pool_is_asked() -> None:
    cheap = SimulatedGroup()
    cheap.trouble.extend((ProviderError(Fault.THROTTLED, "Rate exceeded", 0.0), False) for _ in range(3))
    it = world(pool("cheap", max=8, price=1.0), pool("dear", max=8, price=3.0), cheap=cheap)
    it.submit("train", 2)
    it.run(60.0)
    assert it.cloud.sizes == []
    assert it.plan is not None
    assert it.plan.answers["train"].outcome is Outcome.BACKING_OFF
    assert "Rate exceeded" in it.plan.answers["train"].message
    it.run(400.0)
    assert it.cloud.sizes == [("cheap", 2)]


def test_a_lost_answer_is_not_a_second_order() -> None:
    cheap = SimulatedGroup()
    it = world(pool("cheap", max=8), cheap=cheap)
    it.run(10.0)
    cheap.trouble.append((ProviderError(Fault.TIMED_OUT, "no answer", 0.0), True))
    it.submit("train", 2)
    it.run(400.0)
    assert len(cheap.instances) == 2
    assert len(it.gangs["train"].nodes) == 2


def test_idle_nodes_go_after_their_window_the_longest_idle_first() -> None:
    it = world(pool("a", max=3, min=1))
    it.submit("train", 3, runs_s=100.0)
    it.run(200.0)
    assert it.gangs == {}
    before = it.run(200.0)
    assert not any(plan.actions for plan in before[-5:])
    after = it.run(300.0)
    cordons = [each for plan in after for each in plan.actions if isinstance(each, Cordon)]
    deletes = [each for plan in after for each in plan.actions if isinstance(each, Delete)]
    assert [each.node for each in cordons] == [each.node for each in deletes]
    assert len(deletes) == 2
    assert it.cloud.groups["a"].size == 1


def test_a_node_that_is_used_again_before_it_goes_is_uncordoned() -> None:
    it = world(pool("a", max=2))
    it.submit("train", 2, runs_s=50.0)
    it.run(200.0)
    while not it.cordons:
        it.step()
    it.known_cordons = set()  # the scheduler has not heard of it yet
    it.submit("next", 2)
    plans = it.run(40.0)
    assert len(it.gangs["next"].nodes) == 2
    assert any(isinstance(each, Uncordon) and "next" in each.why for plan in plans for each in plan.actions)
    assert it.cloud.deleted == []
    assert it.cordons == {}


def idle(name: str, **facts: object) -> ScalingNode:
    return ScalingNode(name=name, uid=f"uid-{name}", pool="a", instance=name, ready=True, **facts)  # type: ignore[arg-type]


def after(seconds: float, spec: PoolSpec, *nodes: ScalingNode, demands: tuple[GangDemand, ...] = ()) -> list[str]:
    """What is done to nodes that were seen as they are for so long."""
    group = Group(len(nodes), tuple(Instance(each.instance) for each in nodes))
    view = View((spec,), {spec.name: group}, nodes, demands)
    now = 1000.0
    done: list[str] = []
    for _ in range(int(seconds / 10.0) + 1):
        plan = decide(view, now)
        done += [f"{type(each).__name__} {getattr(each, 'node', '')}" for each in plan.actions]
        view = View((spec,), {spec.name: group}, nodes, demands, plan.tracked, plan.memory)
        now += 10.0
    return done


def test_needed_node_is_kept_with_a_reason() -> None:
    spec = pool("a", max=4)
    assert after(250.0, spec, idle("n")) == []
    assert after(330.0, spec, idle("n"))[:1] == ["Cordon n"]
    assert after(900.0, spec, idle("n", occupied="pod ns/p")) == []
    assert after(900.0, spec, idle("n", may_go=False)) == []
    assert after(900.0, spec, idle("n", keeps_away="cordoned")) == []
    assert after(900.0, spec, idle("n"), demands=(demand("g", members(9)),)) == [], "a gang waits for such nodes"
    assert after(900.0, pool("a", max=4, min=1), idle("n")) == []
    assert set(after(330.0, pool("a", max=4, min=1), idle("n"), idle("m"))) == {"Cordon m"}, "one must stay"


def test_new_node_in_quarantine_counts_for_no_gang_and_another_is_requested() -> None:
    spec = pool("a", max=4)
    asked = View((spec,), {"a": Group(0)}, demands=(demand("g", members(1)),))
    plan = decide(asked, 100.0)
    assert grown([plan]) == [("a", 1)]
    came = Group(1, (Instance("n"),))
    for keeps_away, quarantined, expected in (
        ("taint muster.dev/joining:NoSchedule", False, []),
        ("taint muster.dev/quarantine:NoSchedule", True, [("a", 2)]),
    ):
        new = idle("n", created_at=110.0, keeps_away=keeps_away, quarantined=quarantined)
        looked = View((spec,), {"a": came}, (new,), asked.demands, plan.tracked, plan.memory)
        assert grown([decide(looked, 120.0)]) == expected


def test_a_node_in_quarantine_is_not_given_back() -> None:
    """A lookup by its values would find another machine."""
    spec = pool("a", max=4)
    assert after(900.0, spec, idle("n", quarantined=True, keeps_away="taint muster.dev/quarantine")) == []
    cordoned = after(0.0, spec, idle("n", quarantined=True, draining=True))
    assert cordoned == ["Uncordon n"], "also where it was about to be"


def test_a_deletion_that_the_cloud_forgot_is_asked_for_again() -> None:
    it = world(pool("a", max=2))
    it.submit("train", 1, runs_s=50.0)
    asked: list[float] = []

    async def forgotten(spec: PoolSpec, instance: str, *, replace: bool) -> None:
        asked.append(it.now)
        it.cloud.groups["a"].size -= not replace  # it says yes, and the instance stays

    it.cloud.delete = forgotten  # type: ignore[method-assign]
    it.run(3000.0)
    assert len(asked) > 1
    assert all(second - first >= 300.0 for first, second in pairwise(asked)), "and not again and again"
    assert it.cloud.groups["a"].size == 0, "the size was lowered once"


DAY_S = 86_400.0


def judged(created_at: float, *, occupied: str = "") -> set[str]:
    """What a new leader does within the hour, on the tenth day by its clock, to a node that is not Ready."""
    spec = pool("a", max=4)
    node = ScalingNode(
        name="n", uid="uid-n", pool="a", instance="n", ready=False, created_at=created_at, occupied=occupied
    )
    view = View((spec,), {"a": Group(1, (Instance("n"),))}, (node,))
    done: set[str] = set()
    for second in range(0, 3600, 60):
        plan = decide(view, 10 * DAY_S + second)
        done |= {type(each).__name__ for each in plan.actions}
        view = View((spec,), view.groups, (node,), (), plan.tracked, plan.memory)
    return done


def test_leader_with_a_wrong_clock_deletes_no_needed_node() -> None:
    """It distinguishes a broken one from one that never joined by its age, by the API server's clock."""
    assert judged(10 * DAY_S - 10.0) == {"Delete"}, "it never joined"
    assert judged(9 * DAY_S) == set(), "it broke; or it is new and the leader's clock a day ahead: left to people"
    assert judged(11 * DAY_S) == {"Delete"}, "by a clock that is behind it is new, and goes once it is late"
    assert judged(11 * DAY_S, occupied="pod ns/p") == set(), "unless a user needs it"


def test_record_without_its_cordon_is_withdrawn() -> None:
    assert after(0.0, pool("a", max=4), idle("n", abandoned=True)) == ["Uncordon n"]


def test_the_node_object_goes_once_the_instance_is_gone() -> None:
    gone = ScalingNode(name="n", uid="u", pool="a", instance="i-1", ready=False, draining=True, deleting=True)
    plan = decide(View((pool("a", max=4),), {"a": Group(0)}, (gone,)), 100.0)
    assert plan.actions == (ForgetNode("a", "n", "u"),)


def test_a_pool_that_was_not_seen_is_left_alone() -> None:
    view = View((pool("a", max=4, min=2),), {}, demands=(demand("g", members(1)),))
    plan = decide(view, 100.0)
    assert plan.actions == ()
    assert plan.answers["g"].outcome is Outcome.BACKING_OFF


def test_a_gang_is_served_by_pools_whose_nodes_could_take_it() -> None:
    taint = Taint(key="muster.dev/pool", value="x", effect="NoSchedule")
    plain = pool("plain", max=4, labels={"gpu": "h100"})
    tainted = PoolSpec(
        "tainted", "simulated", "tainted", 0, 4, 0.5, type(plain.template)({"gpu": "a100"}, (taint,), NODE)
    )
    pools = (tainted, plain)
    wants = NodeSelectorTerm(match_expressions=(NodeSelectorRequirement(key="gpu", operator="In", values=("a100",)),))
    bears = Toleration(key="muster.dev/pool", operator="Exists")
    by_name = NodeSelectorTerm(
        match_fields=(NodeSelectorRequirement(key="metadata.name", operator="In", values=("n",)),)
    )
    # Which team a node is given to shows only once it is there.
    team = NodeSelectorRequirement(key="muster.dev/team", operator="In", values=("vision",))
    of_team = NodeSelectorTerm(match_expressions=(team,))
    elsewhere = NodeSelectorRequirement(key="zone", operator="Exists")
    of_team_elsewhere = NodeSelectorTerm(match_expressions=(team, elsewhere))
    cases = [
        (members(1), "plain"),
        (members(1, selector={"gpu": "a100"}), ""),
        (members(1, selector={"gpu": "a100"}, tolerations=(bears,)), "tainted"),
        (members(1, terms=(wants,), tolerations=(bears,)), "tainted"),
        (members(1, terms=(by_name,)), ""),
        (members(1, terms=(of_team,)), "plain"),
        (members(1, terms=(of_team_elsewhere,)), ""),
        (members(1, selector={"muster.dev/team": "vision"}), "plain"),
        (Members(1, {**POD, "nvidia.com/gpu": 16}), ""),
    ]
    for of, expected in cases:
        plan = decide(look(demand("g", of), pools=pools), 100.0)
        assert [name for name, _ in grown([plan])] == ([expected] if expected else []), of
        assert (plan.answers["g"].outcome is Outcome.NO_POOL) is not bool(expected)


def test_pods_that_share_nodes_are_packed() -> None:
    half = {**POD, "nvidia.com/gpu": 4}
    view = look(demand("g", Members(5, half)), pools=(pool("a", max=8),))
    assert grown([decide(view, 100.0)]) == [("a", 3)]
    view = look(demand("g", Members(5, half, alone=True)), pools=(pool("a", max=8),))
    assert grown([decide(view, 100.0)]) == [("a", 5)]
    view = look(demand("g", Members(2, half), Members(1, POD)), pools=(pool("a", max=8),))
    assert grown([decide(view, 100.0)]) == [("a", 2)]


def test_expected_nodes_count() -> None:
    view = look(demand("g", members(3)), pools=(pool("a", max=8),), sizes={"a": 3})
    assert answers(view) == {"g": Outcome.COMING}
    view = look(demand("g", members(3)), demand("h", members(1)), pools=(pool("a", max=8),), sizes={"a": 3})
    assert grown([decide(view, 100.0)]) == [("a", 4)]


def test_unapproved_gang_gets_nothing_and_keeps_its_place() -> None:
    spec = pool("a", max=8)
    view = look(demand("g", members(3), approved=False), demand("h", members(1)), pools=(spec,))
    assert answers(view) == {"g": Outcome.NOT_APPROVED, "h": Outcome.BEHIND}


def test_the_pace_of_joins_holds_whole_gangs_back() -> None:
    spec = pool("a", max=50)
    view = look(demand("g", members(8)), demand("h", members(8)), pools=(spec,))
    paced = View(view.pools, view.groups, demands=view.demands, coming_max=10)
    plan = decide(paced, 100.0)
    assert grown([plan]) == [("a", 8)]
    assert plan.answers["h"].outcome is Outcome.PACED
    closed = View(view.pools, view.groups, demands=view.demands, coming_max=0)
    assert decide(closed, 100.0).actions == ()
    alone = View(view.pools, view.groups, demands=view.demands[:1], coming_max=4)
    assert grown([decide(alone, 100.0)]) == [("a", 8)], "one that is larger than the pace still goes, alone"


def test_group_enlarged_by_others_is_never_shrunk() -> None:
    it = world(pool("a", max=10))
    it.run(20.0)
    it.cloud.groups["a"].size = 4
    it.submit("train", 6)
    it.run(300.0)
    assert all(size >= 4 for _, size in it.cloud.sizes)
    assert len(it.gangs["train"].nodes) == 6


def test_new_leader_continues_where_the_last_one_stopped() -> None:
    it = world(pool("a", max=4))
    it.submit("train", 2, runs_s=50.0)
    it.run(200.0)
    while not it.cordons:
        it.step()
    it.restart()
    it.run(200.0)
    assert len(it.cloud.deleted) == 2
    assert it.cloud.groups["a"].size == 0
