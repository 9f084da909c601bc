"""Rules about other pods: affinity, anti-affinity and topology spread, of single pods and inside gangs."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from muster.scheduler.explain.why_waiting import explain
from muster.scheduler.pods import peers
from muster.scheduler.pods.relations import Peers
from tests.unit.scheduler.world import World, reason_of

RACK, HOST = "example.com/rack", "kubernetes.io/hostname"


def racks(*sizes: int) -> World:
    """Nodes n0, n1, ... in racks r0, r1, ... of these sizes."""
    world, number = World(), 0
    for rack, size in enumerate(sizes):
        for _ in range(size):
            name = f"n{number}"
            world.add_nodes(name, labels={RACK: f"r{rack}", HOST: name})
            number += 1
    return world


def racks_of(world: World, gang: str) -> list[str]:
    return sorted(world.nodes[name].metadata.labels[RACK] for name in world.nodes_of(gang).values())


def term(key: str, labels: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": labels}, **more}


def apart(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def spread(key: str, labels: dict[str, str], **more: Any) -> list[dict[str, Any]]:
    rule = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}
    return [{**rule, "labelSelector": {"matchLabels": labels}, **more}]


def own(gang: str) -> dict[str, str]:
    return {"muster.dev/gang": gang}


def foreign(world: World, name: str, node: str, labels: dict[str, str], **spec: Any) -> None:
    spec = {"gpus": 0, "schedulerName": "default-scheduler", "nodeName": node, **spec}
    world.add_pod(name, spec, labels=labels)


def test_members_that_keep_apart_get_a_rack_each() -> None:
    world = racks(2, 2, 2)
    world.add_gang("train", 3, affinity=apart(term(RACK, own("train"))))
    world.run()
    assert racks_of(world, "train") == ["r0", "r1", "r2"]


def test_nodes_without_the_label_are_in_no_rack() -> None:
    world = World()
    world.add_nodes("a", labels={})
    world.add_nodes("b", labels={RACK: "r0"})
    for number in range(3):
        rule = apart(term(RACK, {"app": "x"}))
        world.add_pod(f"pod-{number}", {"gpus": 4, "affinity": rule}, labels={"app": "x"})
        world.run()
    names = [world.find(f"pod-{number}").spec.node_name for number in range(3)]
    assert sorted(names) == ["a", "a", "b"]


def test_gang_with_more_members_than_racks_is_too_large_and_blocks_no_other() -> None:
    world = racks(2, 2)
    world.add_gang("train", 3, affinity=apart(term(RACK, own("train"))))
    world.add_gang("next", 4)
    assert reason_of(world.run(), world, "train") == "MoreThanTheCluster"
    assert len(world.nodes_of("next")) == 4


def test_a_gang_that_stays_together_gets_the_rack_that_fits_it_with_least_to_spare() -> None:
    world = racks(2, 4, 3)
    world.add_gang("train", 3, affinity=near(term(RACK, own("train"))))
    world.run()
    assert racks_of(world, "train") == ["r2", "r2", "r2"]


def test_a_gang_stays_in_its_rack_when_a_node_is_replaced() -> None:
    world = racks(2, 3)
    world.add_gang("train", 2, affinity=near(term(RACK, own("train"))))
    world.run()
    assert racks_of(world, "train") == ["r0", "r0"]
    lost = world.nodes_of("train")[1]
    world.remove_node(lost)
    world.remove_pod("train-1-0")
    world.add_member("train", 1, 2, attempt=1, affinity=near(term(RACK, own("train"))))
    assert reason_of(world.run(), world, "train") == "NotEnoughNodes"
    world.add_nodes("spare", labels={RACK: "r0"})
    world.run()
    assert world.nodes_of("train")[1] == "spare"


def test_a_slot_that_moves_does_not_keep_itself_away() -> None:
    """The slot of the cordoned node holds room in its rack until it has another; the rule is about other pods only."""
    world = racks(2, 1)
    rule = {"affinity": apart(term(RACK, own("train")))}
    world.add_gang("train", 2, **rule)
    world.run()
    world.add_nodes("n0", labels={RACK: "r0"}, unschedulable=True)
    world.remove_gang("train")
    world.add_gang("train", 2, attempt=1, **rule)
    world.run()
    assert world.nodes_of("train") == {0: "n1", 1: "n2"}


def test_members_spread_evenly_over_racks() -> None:
    world = racks(4, 4, 1)
    world.add_gang("train", 5, topologySpreadConstraints=spread(RACK, own("train")))
    world.run()
    assert racks_of(world, "train") == ["r0", "r0", "r1", "r1", "r2"]


def test_a_full_rack_holds_up_an_even_spread_unless_taints_are_honoured() -> None:
    world = racks(2, 2)
    world.add_nodes("n9", labels={RACK: "r9"}, taints=[{"key": "k", "effect": "NoSchedule"}])
    world.add_gang("train", 4, topologySpreadConstraints=spread(RACK, own("train")))
    assert reason_of(world.run(), world, "train") == "MoreThanTheCluster"
    world.add_gang("other", 4, topologySpreadConstraints=spread(RACK, own("other"), nodeTaintsPolicy="Honor"))
    world.run()
    assert racks_of(world, "other") == ["r0", "r0", "r1", "r1"]


def test_min_domains_asks_for_racks_that_do_not_exist() -> None:
    world = racks(2, 2)
    world.add_gang("train", 3, topologySpreadConstraints=spread(RACK, own("train"), minDomains=3))
    assert reason_of(world.run(), world, "train") == "MoreThanTheCluster"
    world.add_nodes("n9", labels={RACK: "r9"})
    world.run()
    assert racks_of(world, "train") == ["r0", "r1", "r9"]


def test_pods_on_their_way_out_do_not_count_for_spreading_but_repel() -> None:
    world = racks(1, 1)
    foreign(world, "there", "n0", {"app": "x"})
    world.terminate("there")
    away = {"nodeSelector": {RACK: "r0"}, "gpus": 1}
    even = spread(RACK, {"app": "x"}, nodeAffinityPolicy="Ignore")
    world.add_pod("even", {**away, "topologySpreadConstraints": even}, labels={"app": "x"})
    world.run()
    assert world.find("even").spec.node_name == "n0"
    world.add_pod("apart", {**away, "affinity": apart(term(RACK, {"app": "x"}))})
    world.remove_pod("even")
    world.run()
    assert world.find("apart").spec.node_name == ""
    world.remove_pod("there")
    world.run()
    assert world.find("apart").spec.node_name == "n0"


def test_pods_of_other_schedulers_keep_ours_away() -> None:
    world = racks(1, 1)
    foreign(world, "shy", "n0", {}, affinity=apart(term(RACK, {"app": "train"})))
    world.add_pod("one", {}, labels={"app": "train"})
    world.add_pod("two", {}, labels={"app": "train"})
    world.run()
    assert sorted(world.find(name).spec.node_name for name in ("one", "two")) == ["", "n1"]
    world.remove_pod("shy")
    world.run()
    assert sorted(world.find(name).spec.node_name for name in ("one", "two")) == ["n0", "n1"]


def test_a_held_slot_keeps_others_away_while_its_pod_is_gone() -> None:
    world = racks(2)
    rule = {"affinity": apart(term(RACK, {"app": "web"}))}
    world.add_gang("train", 1, **rule)
    world.run()
    world.remove_gang("train")
    world.add_pod("web", {"gpus": 1}, labels={"app": "web"})
    world.run()
    assert world.find("web").spec.node_name == ""
    world.add_gang("train", 1, attempt=1, **rule)
    world.run()
    assert len(world.nodes_of("train")) == 1


def test_a_slot_moves_when_a_pod_that_its_own_must_not_meet_came_meanwhile() -> None:
    world = racks(1, 1, 1)
    rule = {"affinity": apart(term(RACK, {"app": "noisy"}), term(RACK, own("train")))}
    world.add_gang("train", 2, **rule)
    world.run()
    before = world.nodes_of("train")
    world.remove_gang("train")
    foreign(world, "noisy", before[0], {"app": "noisy"})
    world.add_gang("train", 2, attempt=1, **rule)
    world.run()
    after = world.nodes_of("train")
    assert after[1] == before[1]
    assert after[0] not in before.values()


def test_two_gangs_of_one_plan_see_each_other() -> None:
    world = racks(2, 2)
    rule = {"affinity": apart(term(RACK, {}, labelSelector={"matchExpressions": [
        {"key": "muster.dev/gang", "operator": "NotIn", "values": ["one"]}]}))}  # fmt: skip
    for slot in range(2):
        world.add_member("one", slot, 2, **rule)
    world.add_gang("two", 2)
    for action in world.decide().actions:
        world.carry_out(action)
    world.run()
    assert len(set(racks_of(world, "one"))) == 1 or reason_of(world.decide(), world, "two")
    assert not set(racks_of(world, "one")) & set(racks_of(world, "two"))


def test_a_term_is_about_its_namespaces_only() -> None:
    world = racks(1, 1)
    foreign(world, "there", "n0", {"app": "x"})
    elsewhere = term(RACK, {"app": "x"}, namespaces=["other"])
    world.add_pod("free", {"gpus": 1, "affinity": apart(elsewhere)})
    by_label = term(RACK, {"app": "x"}, namespaceSelector={"matchLabels": {"team": "a"}})
    world.run()
    assert world.find("free").spec.node_name in ("n0", "n1")
    world.add_pod("tied", {"gpus": 1, "affinity": near(by_label)})
    world.run()
    assert world.find("tied").spec.node_name == ""
    world.state.set_namespace("default", {"team": "a"}, world.now)
    world.run()
    assert world.find("tied").spec.node_name == "n0"


def test_labels_that_change_change_what_rules_are_about() -> None:
    world = racks(1, 1)
    foreign(world, "there", "n0", {"app": "x"})
    world.add_pod("tied", {"gpus": 1, "affinity": near(term(RACK, {"app": "y"}))})
    world.run()
    assert world.find("tied").spec.node_name == ""
    world.relabel("there", {"app": "y"})
    world.run()
    assert world.find("tied").spec.node_name == "n0"


def test_a_node_that_moves_to_another_rack_takes_its_pods_along() -> None:
    world = racks(1, 1)
    foreign(world, "there", "n0", {"app": "x"})
    world.add_pod("away", {"gpus": 1, "affinity": apart(term(RACK, {"app": "x"}))})
    world.run()
    assert world.find("away").spec.node_name == "n1"
    world.add_nodes("n0", labels={RACK: "r1"})
    world.add_nodes("n9", labels={RACK: "r0"})
    world.add_pod("more", {"gpus": 1, "affinity": apart(term(RACK, {"app": "x"}))})
    world.run()
    assert world.find("more").spec.node_name == "n9"


def test_wishes_about_other_pods_order_nodes_but_forbid_none() -> None:
    world = racks(1, 2, 1)
    foreign(world, "there", "n2", {"app": "x"})
    wish = {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 100, "podAffinityTerm": term(RACK, {"app": "x"})}]}  # fmt: skip
    for number in range(3):
        world.add_pod(f"pod-{number}", {"affinity": {"podAffinity": wish}})
        world.run()
    names = [world.find(f"pod-{number}").spec.node_name for number in range(3)]
    assert set(names[:2]) == {"n1", "n2"}
    assert names[2] in ("n0", "n3")


def test_a_gang_that_wishes_to_be_together_is_where_there_is_room_for_all() -> None:
    world = racks(1, 3, 2)
    wish = {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 100, "podAffinityTerm": term(RACK, own("train"))}]}  # fmt: skip
    world.add_gang("train", 2, affinity={"podAffinity": wish})
    world.add_gang("large", 4, affinity={"podAffinity": wish})
    world.run()
    assert racks_of(world, "train") == ["r2", "r2"]
    assert racks_of(world, "large") == ["r0", "r1", "r1", "r1"]


def test_schedule_anyway_spreads_where_it_can() -> None:
    world = racks(3, 1)
    world.add_gang("train", 4, topologySpreadConstraints=spread(RACK, own("train"), whenUnsatisfiable="ScheduleAnyway"))
    world.run()
    assert racks_of(world, "train") == ["r0", "r0", "r0", "r1"]
    world = racks(3, 3)
    world.add_gang("train", 2, topologySpreadConstraints=spread(RACK, own("train"), whenUnsatisfiable="ScheduleAnyway"))
    world.run()
    assert racks_of(world, "train") == ["r0", "r1"]


def test_endless_search_is_abandoned_reported_and_blocks_no_gang() -> None:
    """Ten racks, ten rows, and no two members in one of either: three racks share two rows, so it cannot be."""
    world = World()
    for rack in range(10):
        for row in range(2 if rack < 3 else 10):
            world.add_nodes(f"n{rack}-{row}", labels={RACK: f"r{rack}", "row": f"w{row}"})
    rule = {"affinity": apart(term(RACK, own("train")), term("row", own("train")))}
    world.add_gang("train", 10, **rule)
    world.add_gang("next", 2)
    assert reason_of(world.run(), world, "train") == "TooManyWays"
    assert len(world.nodes_of("next")) == 2
    assert world.nodes_of("train") == {}


def test_several_rules_at_once_are_searched_for_the_one_way_there_is() -> None:
    """Rack by rack, the first free node of each would leave the last rack without a row of its own."""
    world = World()
    for rack, rows in enumerate(("ab", "bc", "cd", "a")):
        for row in rows:
            world.add_nodes(f"n{rack}-{row}", labels={RACK: f"r{rack}", "row": row})
    world.add_gang("train", 4, affinity=apart(term(RACK, own("train")), term("row", own("train"))))
    world.run()
    assert sorted(world.nodes_of("train").values()) == ["n0-b", "n1-c", "n2-d", "n3-a"]


def test_explain_counts_the_nodes_that_rules_close() -> None:
    world = racks(2, 2)
    foreign(world, "there", "n0", {"app": "x"})
    world.add_gang("train", 3, affinity=apart(term(RACK, {"app": "x"})))
    snapshot = world.state.snapshot()
    gang = snapshot.find("default", "train")
    assert gang is not None
    said = explain(snapshot, gang, now=world.now)
    assert (said.need, said.have) == (3, 2)
    assert f"2 beside pods they must keep away from ({RACK})" in [count.text() for count in said.nodes]


def peers_in_memory() -> int:
    gc.collect()
    return sum(isinstance(each, Peers) for each in gc.get_objects())


@pytest.mark.slow
def test_sets_of_pods_that_no_rule_is_about_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "FEW", 4)
    others = peers_in_memory()  # of tests before this one
    world = racks(2, 2)
    keeps_away = apart(term(RACK, {"app": "x"}))
    world.add_pod("stays", {"gpus": 1, "affinity": keeps_away}, labels={"app": "x"})
    world.run()
    for number in range(40):
        gang = f"g{number}"
        world.add_gang(gang, 2, gpus=1, affinity=apart(term(RACK, own(gang)), term(HOST, {"app": f"y{number}"})))
        world.run()
        assert racks_of(world, gang) == ["r0", "r1"]
        world.remove_gang(gang)
        world.state.remove_placement(world.placements.pop(f"default/{gang}"))
    assert peers_in_memory() < others + 30
    world.add_pod("comes", {"gpus": 1, "affinity": keeps_away}, labels={"app": "x"})
    world.run()
    world.add_gang("again", 2, gpus=1, affinity=apart(term(RACK, own("again")), term(RACK, {"app": "x"})))
    plan = world.run()
    assert world.find("stays").spec.node_name in ("n0", "n1")
    assert world.find("comes").spec.node_name in ("n2", "n3")
    assert reason_of(plan, world, "again") == "NotEnoughNodes"
