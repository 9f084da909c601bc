"""Restartable gangs run on nodes that are reserved for a gang before them, and give them back when it can start."""

from __future__ import annotations

import msgspec
import pytest

from muster.scheduler.explain.why_waiting import explain
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.plan import WritePlacement
from muster.scheduler.queue.unmet_demand import lacking
from tests.unit.scheduler.world import World, reason_of

RESTARTABLE = JobFacts(restartable=True, grace_s=10.0)
MIN_RUN_S = 60.0


def waiting_head(*, policy: str = "preemptible", **settings: object) -> World:
    """Three nodes; on two of them runs a gang that never ends; a gang waits for all three."""
    world = World()
    world.settings = msgspec.structs.replace(world.settings, policy=policy, **settings)
    world.add_nodes("a", "b", "c")
    world.add_gang("running", 2)
    world.run()
    world.add_gang("head", 3)
    return world


def add_restartable(world: World, name: str, size: int = 1, **spec: object) -> None:
    world.set_job(name, RESTARTABLE)
    world.add_gang(name, size, **spec)


def end(world: World, name: str) -> None:
    """The job succeeds and its pods are gone."""
    world.set_job(name, JobFacts(ended="Succeeded"))
    world.remove_gang(name)


def run_and_leave(world: World) -> None:
    """Run; gangs that are asked to leave do so at once."""
    world.run()
    for placement in list(world.placements.values()):
        if placement.status.phase == "Preempting":
            world.remove_gang(placement.spec.gang)
    world.run()


def leaving(world: World, name: str) -> str:
    return world.placements[f"default/{name}"].status.reason or ""


def test_a_restartable_gang_runs_on_a_reserved_node_and_its_placement_says_for_whom_it_is_reserved() -> None:
    world = waiting_head()
    add_restartable(world, "small")
    plan = world.run()
    assert set(world.nodes_of("small").values()) == {"c"}
    backfill = world.placements["default/small"].spec.backfill
    assert backfill is not None
    assert (backfill.gang, backfill.gang_uid) == ("default/head", "uid-head")
    assert reason_of(plan, world, "head") == "NotEnoughNodes"


@pytest.mark.parametrize("policy", ["strict", "easy"])
def test_other_policies_backfill_no_restartable_gang(policy: str) -> None:
    world = waiting_head(policy=policy)
    add_restartable(world, "small")
    world.run()
    assert world.nodes_of("small") == {}


@pytest.mark.parametrize(("pool", "nodes"), [("slow", 0), ("fast", 1)])
def test_a_pool_may_have_a_policy_of_its_own(pool: str, nodes: int) -> None:
    world = World()
    world.settings = msgspec.structs.replace(world.settings, pool_policies={"slow": "strict"})
    taint = {"key": "muster.dev/pool", "effect": "NoSchedule"}
    world.add_nodes("a", "b", labels={"muster.dev/pool": pool}, taints=[taint])
    everywhere = {"tolerations": [{"operator": "Exists"}]}
    world.add_gang("running", 1, **everywhere)
    world.run()
    world.add_gang("head", 2, **everywhere)
    add_restartable(world, "small", **everywhere)
    world.run()
    assert len(world.nodes_of("small")) == nodes


def test_a_gang_that_cannot_restart_cheaply_waits_behind_the_head() -> None:
    world = waiting_head()
    world.set_job("stiff", JobFacts(restartable=False))
    world.add_gang("stiff", 1)
    plan = world.run()
    assert world.nodes_of("stiff") == {}
    assert reason_of(plan, world, "stiff") == "BehindInQueue"


def test_the_head_gets_its_nodes_as_soon_as_it_fits_without_backfilled_gangs() -> None:
    world = waiting_head()
    add_restartable(world, "small")
    world.run()
    world.now += MIN_RUN_S + 1
    end(world, "running")
    run_and_leave(world)
    assert len(world.nodes_of("head")) == 3
    assert world.nodes_of("small") == {}


def test_nodes_that_become_free_go_to_the_head_before_more_gangs_are_backfilled() -> None:
    world = waiting_head()
    add_restartable(world, "first")
    world.run()
    world.now += MIN_RUN_S + 1
    add_restartable(world, "second", 2)
    end(world, "running")
    run_and_leave(world)
    assert len(world.nodes_of("head")) == 3
    assert world.nodes_of("second") == {}


def test_a_backfilled_gang_is_asked_to_leave_and_the_reason_is_typed() -> None:
    world = waiting_head()
    add_restartable(world, "small")
    world.run()
    world.now += MIN_RUN_S + 1
    end(world, "running")
    world.run()
    assert leaving(world, "small") == "Backfilled"
    assert world.placements["default/head"].spec.preempting


def test_a_gang_that_was_backfilled_a_moment_ago_works_a_while_and_nothing_more_is_backfilled_meanwhile() -> None:
    world = waiting_head()
    add_restartable(world, "small")
    world.run()
    began = world.now
    end(world, "running")
    add_restartable(world, "late", 2)
    plan = world.run()
    assert set(world.nodes_of("small").values()) == {"c"}
    assert leaving(world, "small") == ""
    assert world.nodes_of("late") == {}, "the head starts soon"
    assert plan.wake_at is not None
    assert plan.wake_at <= began + MIN_RUN_S + 1
    world.now = plan.wake_at + 1
    run_and_leave(world)
    assert len(world.nodes_of("head")) == 3


def test_an_earlier_gang_gives_nothing_to_a_later_one() -> None:
    """A gang that is behind the backfilled one in the queue does not get its nodes."""
    world = waiting_head()
    add_restartable(world, "small")
    world.run()
    world.now += MIN_RUN_S + 1
    world.add_gang("later", 1)
    end(world, "head")
    world.run()
    assert leaving(world, "small") == ""
    assert world.nodes_of("later") == {}


def test_a_gang_that_was_asked_too_often_is_the_first_to_be_backfilled() -> None:
    world = waiting_head(backfill_asks_max=2)
    add_restartable(world, "early")
    world.set_job("often", msgspec.structs.replace(RESTARTABLE, asked=2))
    world.add_gang("often", 1)
    world.run()
    assert set(world.nodes_of("often").values()) == {"c"}
    assert world.nodes_of("early") == {}


def test_those_that_were_asked_least_often_leave_first() -> None:
    world = World()
    world.add_nodes("a", "b", "c", "d")
    world.add_gang("running", 2)
    world.run()
    world.add_gang("head", 3)
    world.set_job("tired", msgspec.structs.replace(RESTARTABLE, asked=2))
    world.add_gang("tired", 1)
    add_restartable(world, "fresh")
    world.run()
    assert world.nodes_of("tired")
    assert world.nodes_of("fresh")
    world.now += MIN_RUN_S + 1
    end(world, "running")
    run_and_leave(world)
    assert len(world.nodes_of("head")) == 3
    assert world.nodes_of("tired")
    assert world.nodes_of("fresh") == {}


def test_a_backfilled_gang_keeps_its_record_when_it_gets_another_node() -> None:
    world = waiting_head()
    add_restartable(world, "small")
    world.run()
    world.add_nodes("d")
    world.remove_node("c")
    world.remove_gang("small")
    world.add_member("small", 0, 1, attempt=1)
    world.run()
    assert set(world.nodes_of("small").values()) == {"d"}
    assert world.placements["default/small"].spec.backfill is not None


def test_gangs_of_another_shape_are_backfilled_too() -> None:
    world = waiting_head()
    add_restartable(world, "tiny", gpus=1)
    add_restartable(world, "tiny-too", gpus=1)
    world.run()
    assert world.nodes_of("tiny")
    assert world.nodes_of("tiny-too")


def test_a_large_gang_that_does_not_fit_keeps_no_smaller_one_from_a_reserved_node() -> None:
    world = waiting_head()
    for number in range(60):
        add_restartable(world, f"large-{number}", 2)
    add_restartable(world, "small")
    world.run()
    assert world.nodes_of("small")


def test_a_single_pod_that_declares_it_is_bound_with_a_record_and_evicted_for_the_head() -> None:
    world = waiting_head()
    pod = world.add_pod("single", annotations={"muster.dev/restartable": "true"})
    world.now += 1.0
    world.run()
    bound = world.pods[pod.uid]
    assert bound.spec.node_name == "c"
    assert bound.metadata.annotations["muster.dev/backfilled-for"] == "default/head"
    world.now += MIN_RUN_S + 1
    end(world, "running")
    run_and_leave(world)
    assert len(world.nodes_of("head")) == 3


def test_nodes_of_backfilled_gangs_are_not_added_again() -> None:
    """Muster's scaling adds what the head lacks with these nodes, not without them."""
    world = waiting_head()
    add_restartable(world, "small")
    plan = world.run()
    lacks = {each.name: sum(count for _, count in each.classes) for each in lacking(world.state.snapshot(), plan)}
    assert lacks == {"default/head": 2}


def test_after_its_clock_was_set_back_the_head_does_not_wait_for_a_time_to_come() -> None:
    world = waiting_head()
    add_restartable(world, "small")
    world.run()
    world.now -= 5000.0
    end(world, "running")
    run_and_leave(world)
    assert len(world.nodes_of("head")) == 3


def test_changed_settings_apply_only_to_gangs_that_are_backfilled_later() -> None:
    world = waiting_head(backfill_min_run_s=100.0)
    add_restartable(world, "small")
    world.run()
    began = world.now
    backfill = world.placements["default/small"].spec.backfill
    assert backfill is not None
    assert (backfill.min_run_seconds, backfill.delay_seconds) == (100.0, 120.0)
    world.settings = msgspec.structs.replace(world.settings, backfill_min_run_s=1.0, policy="strict")
    world.forget_all()  # a new leader keeps the promise too
    world.now = began + 50
    end(world, "running")
    world.run()
    assert leaving(world, "small") == ""
    world.now = began + 101
    world.run()
    assert leaving(world, "small") == "Backfilled"


def test_explain_counts_nodes_of_backfilled_gangs_as_given_back() -> None:
    """The head needs three nodes: one is backfilled and comes back by itself, so only two are missing."""
    world = waiting_head()
    add_restartable(world, "small")
    world.run()
    found = explain(world.state.snapshot(), world.gang("head"), now=world.now)
    assert [change.text() for change in found.changes] == ["default/running ends", "+2 nodes"]
    assert "1 in use (by default/small, backfilled until then)" in [each.text() for each in found.nodes]


def _ends_slowly(world: World, name: str) -> None:
    """The job succeeds; its pods still stop."""
    world.set_job(name, JobFacts(ended="Succeeded"))
    for pod in [pod for pod in world.pods.values() if pod.metadata.labels.get("muster.dev/gang") == name]:
        world.terminate(pod.name)


def test_no_gang_is_backfilled_while_the_last_pods_on_reserved_nodes_stop() -> None:
    """Base seed 2263: gangs that ended one after the other let one more start each time, and the head never fitted."""
    world = waiting_head()
    _ends_slowly(world, "running")
    add_restartable(world, "small")
    world.run()
    assert world.nodes_of("small") == {}
    world.remove_gang("running")
    world.run()
    assert set(world.nodes_of("head").values()) == {"a", "b", "c"}


def test_no_gang_is_backfilled_while_a_backfilled_gang_stops_and_another_rests() -> None:
    world = World()
    world.add_nodes("a", "b", "c")
    world.add_gang("running", 1)
    world.run()
    world.add_gang("head", 3)
    add_restartable(world, "first", 2)
    world.run()
    end(world, "running")
    world.run()
    _ends_slowly(world, "first")
    add_restartable(world, "small")
    world.run()
    assert world.nodes_of("small") == {}


def test_pods_that_do_not_stop_in_time_keep_no_gang_from_being_backfilled() -> None:
    world = waiting_head()
    _ends_slowly(world, "running")
    add_restartable(world, "small")
    world.run()
    world.now += world.settings.leave_slack_s + 1.0
    world.run()
    assert set(world.nodes_of("small").values()) == {"c"}


def test_a_pod_of_a_gang_that_keeps_its_slot_gives_no_room() -> None:
    world = waiting_head()
    world.terminate(
        next(pod.name for pod in world.pods.values() if pod.metadata.labels["muster.dev/gang"] == "running")
    )
    add_restartable(world, "small")
    world.run()
    assert set(world.nodes_of("small").values()) == {"c"}


@pytest.mark.parametrize("in_flight", [True, False])
def test_no_gang_is_backfilled_on_a_node_that_the_head_gets_once_a_slot_has_moved(*, in_flight: bool) -> None:
    """Base seed 3000113: while a slot moved off a node, a gang was backfilled on its other half."""
    world = World()
    world.add_nodes("a")
    world.add_gang("moves", 1, gpus=4)
    world.carry_out(world.decide().actions[0])
    world.add_nodes("b", labels={"zone": "b"})
    world.add_gang("running", 1, gpus=4, nodeSelector={"zone": "b"})
    for action in world.decide().actions:
        if action.gang == world.gang("running").key:
            world.carry_out(action)
    moves = world.gang("moves")
    world.state.avoid(moves, 0, "a")
    move = next(action for action in world.decide().actions if isinstance(action, WritePlacement))
    assert [slot.node for slot in move.placement.spec.slots] == ["b"]
    if in_flight:
        world.state.begin_write(moves, move.placement)
    world.add_gang("head", 1)
    add_restartable(world, "small", gpus=4)
    written = [action.gang for action in world.decide().actions if isinstance(action, WritePlacement)]
    assert written == ([] if in_flight else [moves.key])
    world.state.end_write(moves, None)
    world.run()
    assert (world.nodes_of("moves"), world.nodes_of("head")) == ({0: "b"}, {0: "a"})


def test_record_of_a_backfilled_gang_is_written_once_if_the_gang_in_front_waits_for_one_lost_node() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("head", 2, gpus=4)
    world.run()
    lost = next(pod for pod in world.pods.values() if pod.spec.node_name == "a")
    world.remove_pod(lost.name)
    world.remove_node("a")
    world.add_member("head", int(lost.metadata.labels["muster.dev/slot"]), 2, gpus=4, attempt=1)
    world.set_job("small", RESTARTABLE)
    world.add_gang("small", 1, gpus=4)
    world.run()
    assert set(world.nodes_of("small").values()) == {"b"}
    assert world.decide().actions == ()
