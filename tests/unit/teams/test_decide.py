"""Snapshot in, exact plan out: who gets which nodes, and who keeps them."""

from __future__ import annotations

import msgspec
import pytest

from muster.api.names import ANNOTATION_TEAM_RECORD, LABEL_TEAM
from muster.kube.objects.node import NodeSpec, Taint
from muster.teams.plan import Plan, Why
from tests.unit.teams.world import NOW, World, node, shares

OPENAI = "openai.com/team"


def moves(plan: Plan) -> dict[str, tuple[str, str]]:
    return {change.node: (change.previous, change.record.team) for change in plan.changes}


def whys(plan: Plan) -> set[Why]:
    return {change.why for change in plan.changes}


def cautions(plan: Plan) -> dict[Why, str]:
    return {each.why: each.message for each in plan.cautions if each.why is not Why.UNKNOWN_TEAM}


def test_counts_and_percent_are_given_out_in_order_and_the_rest_has_no_owner() -> None:
    world = World(shares(vision=3, speech="25%"), nodes=8)
    plan = world.run()
    assert list(world.owners().values()) == ["vision"] * 3 + ["speech"] * 2 + [""] * 3
    assert whys(plan) == {Why.ALLOCATED}
    first = world.node("n00")
    assert first.metadata.labels[LABEL_TEAM] == "vision"
    assert first.spec.taints == (Taint(key=LABEL_TEAM, value="vision", effect="NoSchedule"),)
    record = msgspec.json.decode(first.metadata.annotations[ANNOTATION_TEAM_RECORD])
    assert record == {
        "team": "vision",
        "since": "2027-01-15T08:00:00Z",
        "why": "vision is entitled to 3 nodes of gpu=h100",
        "by": "muster",
        "key": LABEL_TEAM,
    }
    assert LABEL_TEAM not in world.node("n07").metadata.labels
    assert not world.node("n07").spec.taints
    assert world.plan().changes == ()


def test_the_key_is_configurable() -> None:
    world = World(shares(OPENAI, vision=1), nodes=1)
    world.run()
    assert world.node("n00").metadata.labels[OPENAI] == "vision"
    assert world.node("n00").spec.taints == (Taint(key=OPENAI, value="vision", effect="NoSchedule"),)


def test_another_key_moves_no_node() -> None:
    world = World(shares(vision=1, speech=1), nodes=3)
    world.run()
    before = world.owners()
    world.configure(shares(OPENAI, vision=1, speech=1))
    plan = world.run()
    assert whys(plan) == {Why.RESTORED}
    assert world.owners() == before
    assert LABEL_TEAM not in world.node("n00").metadata.labels
    assert [taint.key for taint in world.node("n00").spec.taints] == [OPENAI]
    assert world.plan().changes == ()


def test_a_team_that_grows_takes_from_the_one_that_shrinks_without_a_stop_in_between() -> None:
    world = World(shares(vision=5, speech=3), nodes=8)
    world.run()
    world.configure(shares(vision=2, speech=6))
    plan = world.run()
    assert moves(plan) == dict.fromkeys(("n00", "n01", "n02"), ("vision", "speech"))
    assert world.plan().changes == ()


def test_idle_nodes_go_first_then_lent_ones() -> None:
    world = World(shares(vision=4), nodes=4)
    world.run()
    world.add_pod("gang", on="n00", team="vision")
    world.add_pod("borrower", on="n01", team="speech", borrower=True)
    world.configure(shares(vision=2, speech=2))
    assert set(moves(world.plan())) == {"n02", "n03"}
    world.configure(shares(vision=1, speech=3))
    assert set(moves(world.plan())) == {"n01", "n02", "n03"}


def test_slots_of_a_gang_that_borrows_are_lent_as_well() -> None:
    world = World(shares(vision=2), nodes=2)
    world.run()
    world.place("train", "n00", "n01")
    world.configure(shares(speech=2))
    assert world.plan().changes == (), "their owner is not known yet"
    world.add_pod("train", on="n01", team="music", borrower=True)
    assert set(moves(world.plan())) == {"n00", "n01"}
    world.end_pod("train")
    assert world.plan().changes == ()


def test_a_node_under_a_running_gang_moves_when_that_ends() -> None:
    world = World(shares(vision=2), nodes=2)
    world.run()
    for name in ("n00", "n01"):
        world.add_pod(f"gang-{name}", on=name, team="vision")
    world.configure(shares(vision=1, speech=1))
    plan = world.run()
    assert (plan.changes, plan.leaving) == ((), {"n00"})
    assert world.standing("speech").pending == 1
    world.end_pod("gang-n01")
    plan = world.run()
    assert moves(plan) == {"n01": ("vision", "speech")}, "the first that is free goes"
    assert plan.leaving == {"n01"}
    assert world.standing("speech").pending == 0
    assert world.plan().leaving == frozenset()


def test_a_slot_that_is_kept_holds_its_node_without_a_pod() -> None:
    world = World(shares(vision=1), nodes=1)
    world.run()
    world.place("gang", "n00")
    world.configure(shares(speech=1))
    assert world.run().changes == ()
    world.place("gang", "n00", released=True)
    assert moves(world.run()) == {"n00": ("vision", "speech")}


def test_node_under_a_running_gang_moves_at_once_if_configured() -> None:
    world = World(shares(vision=2), nodes=2)
    world.run()
    world.add_pod("gang", on="n00", team="vision")
    world.configure(shares(LABEL_TEAM, "Move", vision=1, speech=1))
    assert moves(world.plan()) == {"n01": ("vision", "speech")}, "idle ones first all the same"
    world.configure(shares(LABEL_TEAM, "Move", speech=2))
    assert set(moves(world.plan())) == {"n00", "n01"}


def test_pods_of_the_system_hold_no_node() -> None:
    world = World(shares(vision=1), nodes=1)
    world.run()
    world.add_pod("dns", on="n00", scheduler="default-scheduler")
    world.configure(shares(speech=1))
    assert moves(world.run()) == {"n00": ("vision", "speech")}


def test_a_broken_node_is_replaced_and_nothing_moves_when_it_recovers() -> None:
    world = World(shares(vision=3), nodes=5)
    world.run()
    world.holdings.set_broken("n01", True)
    plan = world.run()
    assert moves(plan) == {"n01": ("vision", ""), "n03": ("", "vision")}
    assert whys(plan) == {Why.BROKEN, Why.REPLACES}
    for broken in (False, True, False, True):
        world.holdings.set_broken("n01", broken)
        assert world.run().changes == ()


def test_a_broken_node_under_a_gang_is_replaced_at_once_and_goes_later() -> None:
    world = World(shares(vision=2), nodes=3)
    world.run()
    world.add_pod("gang", on="n00", team="vision")
    world.holdings.set_broken("n00", True)
    assert moves(world.run()) == {"n02": ("", "vision")}
    assert world.plan().changes == ()
    world.end_pod("gang")
    assert moves(world.run()) == {"n00": ("vision", "")}


def test_irreplaceable_broken_nodes_are_shared_out() -> None:
    world = World(shares(vision=4, speech=4), nodes=8)
    world.run()
    world.holdings.set_broken("n00", True)
    assert world.run().changes == (), "one of them has to bear it: who has it already"
    for name in ("n01", "n02", "n03"):
        world.holdings.set_broken(name, True)
    plan = world.run()
    assert len(plan.changes) == 4
    assert [(s.owned, s.healthy) for s in world.plan().standings[:2]] == [(4, 2), (4, 2)]
    said = "4 broken nodes, and too few nodes without a team to replace them: healthy are vision 2 of 4, speech 2 of 4"
    assert cautions(world.plan())[Why.SHORT] == said


def test_excess_requests_are_cut_in_proportion_and_reported() -> None:
    world = World(shares(vision=60, speech=30, music="10%"), nodes=10)
    plan = world.run()
    assert world.owned() == {"vision": 7, "speech": 3}
    said = "91 nodes are asked for and 10 are there, cut in proportion: vision 7 of 60, speech 3 of 30, music 0 of 1"
    assert cautions(plan)[Why.OVER_ASKED] == said


def test_percent_add_up() -> None:
    world = World(shares(a="33.3%", b="33.3%", c="33.4%"), nodes=10)
    world.run()
    assert world.owned() == {"a": 3, "b": 3, "c": 4}


def test_a_node_labelled_by_hand_counts_and_is_left_alone() -> None:
    world = World(shares(vision=2), nodes=3)
    world.edit("n02", labels={LABEL_TEAM: "vision"})
    plan = world.run()
    assert moves(plan) == {"n00": ("", "vision")}
    assert world.owned() == {"vision": 2}
    assert world.standing("vision").by_hand == 1
    world.configure(shares(vision=0))
    assert moves(world.run()) == {"n00": ("vision", "")}
    assert cautions(world.plan())[Why.BY_HAND] == "vision has 1 node labelled by hand and asks for 0"


def test_nodes_by_hand_never_move_though_they_come_first() -> None:
    world = World(nodes=3)
    world.edit("n00", labels={LABEL_TEAM: "vision"})
    world.configure(shares(vision=2))
    assert moves(world.run()) == {"n01": ("", "vision")}
    world.configure(shares(vision=1))
    assert moves(world.run()) == {"n01": ("vision", "")}


def test_a_node_that_moves_and_lost_its_taint_is_written_once() -> None:
    world = World(shares(vision=1), nodes=1)
    world.run()
    world.edit("n00", taints=())
    world.configure(shares(speech=1))
    (change,) = world.run().changes
    assert (change.previous, change.record.team) == ("vision", "speech")


def test_nodes_of_several_givers_lie_together_at_their_takers() -> None:
    world = World(shares(vision=2, speech=2), nodes=4)
    world.run()
    world.configure(shares(music=2, art=2))
    world.run()
    assert list(world.owners().values()) == ["music", "music", "art", "art"]


def test_a_label_changed_by_hand_wins_over_our_record() -> None:
    world = World(shares(vision=1), nodes=2)
    world.run()
    world.edit("n00", labels={LABEL_TEAM: "music"})
    assert moves(world.run()) == {"n01": ("", "vision")}
    assert cautions(world.plan())[Why.BY_HAND] == "music has 1 node labelled by hand and is in none of its allocations"


def test_by_hand_cuts_what_others_get() -> None:
    world = World(shares(vision=2, speech=2), nodes=4)
    for name in ("n00", "n01", "n02"):
        world.edit(name, labels={LABEL_TEAM: "music"})
    world.run()
    assert world.owned() == {"music": 3, "vision": 1}


@pytest.mark.parametrize("what", ["taint", "label", "both", "value"])
def test_removed_label_and_taint_are_restored(what: str) -> None:
    world = World(shares(vision=1), nodes=1)
    world.run()
    before = world.node("n00")
    other = (Taint(key="example.com/other", effect="NoSchedule"),)
    if what == "value":
        world.edit("n00", taints=(Taint(key=LABEL_TEAM, value="music", effect="NoSchedule"), *other))
    else:
        taints = (*before.spec.taints, *other) if what == "label" else other
        world.edit("n00", labels={LABEL_TEAM: None} if what in ("label", "both") else None, taints=taints)
    world.now += 100
    assert whys(world.run()) == {Why.RESTORED}
    after = world.node("n00")
    assert after.metadata.labels == before.metadata.labels
    assert after.metadata.annotations == before.metadata.annotations, "it has had the node since then"
    assert set(after.spec.taints) == {*before.spec.taints, *other}


def test_a_record_that_cannot_be_read_is_none() -> None:
    world = World(shares(vision=0), nodes=1)
    first = world.node("n00")
    labels = {**first.metadata.labels, LABEL_TEAM: "vision"}
    meta = msgspec.structs.replace(
        first.metadata, labels=labels, annotations={ANNOTATION_TEAM_RECORD: "{"}, resource_version="2"
    )
    world.set_node(msgspec.structs.replace(first, metadata=meta))
    assert world.run().changes == ()
    assert world.standing("vision").by_hand == 1


def test_a_taint_by_hand_without_a_label_is_respected() -> None:
    world = World(nodes=1)
    world.edit("n00", taints=(Taint(key=LABEL_TEAM, value="music", effect="NoSchedule"),))
    world.configure(shares(vision=1))
    assert world.run().changes == ()


@pytest.mark.parametrize("text", ["", "allocations: []"])
def test_without_allocations_nodes_keep_their_owners(text: str) -> None:
    world = World(shares(vision=2), nodes=3)
    world.run()
    world.configure(text)
    assert world.run().changes == ()
    assert world.owned() == {"vision": 2}


def test_without_a_configuration_owners_stay_and_taints_are_put_back() -> None:
    world = World(shares(OPENAI, vision=2), nodes=3)
    world.run()
    world.edit("n00", taints=())
    world.holdings.configure(None)
    assert moves(world.run()) == {"n00": ("vision", "vision")}
    assert world.node("n00").spec.taints == world.node("n01").spec.taints


def test_nodes_of_a_pool_that_is_gone_go_back_once_idle() -> None:
    world = World(shares(vision=2), nodes=2)
    world.run()
    world.add_pod("gang", on="n00", team="vision")
    world.configure(shares(LABEL_TEAM, "Wait", "b200", vision=1))
    plan = world.run()
    assert moves(plan) == {"n01": ("vision", "")}
    assert whys(plan) == {Why.LEFT_POOL}
    world.end_pod("gang")
    assert moves(world.run()) == {"n00": ("vision", "")}


def test_borrowed_and_lent_are_counted_for_both() -> None:
    world = World(shares(vision=2, speech=1), nodes=4)
    world.run()
    world.holdings.set_namespace("default", "speech")
    world.add_pod("own", on="n00", team="vision")
    world.add_pod("borrower", on="n01", borrower=True)
    world.add_pod("on the rest", on="n03", borrower=True)
    vision, speech = world.standing("vision"), world.standing("speech")
    assert (vision.used, vision.lent, vision.borrowed) == (1, 1, 0)
    assert (speech.used, speech.lent, speech.borrowed) == (0, 0, 1), "nodes without owner are not lent"
    world.add_pod("who owns nothing", on="n00", team="music", borrower=True)
    music = world.standing("music")
    assert (music.owned, music.entitled, music.borrowed) == (0, 0, 1)
    world.end_pod("who owns nothing")
    world.holdings.set_namespace("default", "vision")
    vision, speech = world.standing("vision"), world.standing("speech")
    assert (vision.used, vision.lent, vision.borrowed, speech.borrowed) == (2, 0, 0, 0), "its own nodes it uses"


def test_a_team_without_a_namespace_is_named() -> None:
    world = World(shares(vision=1, speech=1), nodes=2)
    world.holdings.set_namespace("vision-train", "vision")
    messages = [each.message for each in world.plan().cautions if each.why is Why.UNKNOWN_TEAM]
    assert messages == ["no namespace belongs to speech, which is given nodes: label one muster.dev/team=speech"]


def test_nothing_is_decided_about_a_node_that_is_being_written() -> None:
    world = World(shares(vision=1), nodes=2)
    (change,) = world.plan().changes
    assert world.holdings.begin(change)
    assert not world.holdings.begin(change)
    assert (world.plan().changes, world.plan().leaving) == ((), {change.node})
    world.holdings.abandon(change.node)
    assert world.plan().changes == (change,)


def test_late_watch_events_undo_nothing() -> None:
    world = World(shares(vision=1), nodes=1)
    old = world.node("n00")
    world.run()
    world.set_node(old)
    assert world.plan().changes == ()
    again = msgspec.structs.replace(old, metadata=msgspec.structs.replace(old.metadata, uid="another"))
    world.holdings.remove_node("n00")
    world.set_node(again)
    assert len(world.plan().changes) == 1


def test_since_is_the_moment_of_the_change() -> None:
    world = World(shares(vision=1), nodes=1)
    (change,) = world.plan().changes
    assert change.record.since.timestamp() == NOW


def test_several_pools_do_not_mix() -> None:
    world = World(nodes=2)
    world.set_node(node("b0", gpu="b200"))
    world.set_node(msgspec.structs.replace(node("cpu", gpu=""), spec=NodeSpec()))
    text = "\n".join(
        f"- {{nodeSelector: {{gpu: {gpu}}}, team: {team}, amount: 100%}}"
        for gpu, team in (("h100", "vision"), ("b200", "speech"))
    )
    world.configure(f"allocations:\n{text}")
    world.run()
    assert world.owners() == {"b0": "speech", "cpu": "", "n00": "vision", "n01": "vision"}
