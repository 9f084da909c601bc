"""Issue 13.6: a dry run says what the scheduler would start now with other settings, and changes nothing."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from muster.api.scheduling import BackfillPolicy
from muster.scheduler.explain.dry_run import DryRun, dry_run
from muster.scheduler.gangs.priority import JobFacts
from tests.unit.scheduler.test_fair import FairWorld
from tests.unit.scheduler.world import World


def reserved() -> World:
    """One of two nodes is in use; the first gang needs both, and a restartable job waits behind it."""
    world = World()
    world.add_nodes("n0", "n1")
    world.add_gang("runs", 1)
    world.run()
    world.add_gang("head", 2)
    world.set_job("small", JobFacts(restartable=True))
    world.add_gang("small", 1)
    return world


def tried(world: World, cluster: BackfillPolicy, **changes: Any) -> DryRun:
    usual = msgspec.structs.replace(world.settings, policy=cluster)
    return dry_run(world.state, msgspec.structs.replace(usual, **changes), usual, world.now)


def test_preemptible_would_backfill_what_strict_does_not() -> None:
    dry = tried(reserved(), "strict", policy="preemptible")
    (small,) = dry.starts
    assert (small.gang, small.nodes, small.backfilled_for) == ("default/small", 1, "default/head")
    assert dry.cluster_starts == ()
    assert dry.only_here == (small,)
    assert list(dry.lines()) == [
        "with policy preemptible, order arrival: 1 gang of 2 would start now",
        "  default/small: 1 node, backfilled on nodes reserved for default/head",
        "the cluster has policy strict, order arrival: 0 gangs would start now",
        "  not with the cluster's: default/small",
    ]


@pytest.mark.parametrize("policy", ["strict", "easy"])
def test_other_policies_name_what_only_the_cluster_starts(policy: BackfillPolicy) -> None:
    dry = tried(reserved(), "preemptible", policy=policy)
    assert dry.starts == ()
    assert [each.gang for each in dry.only_cluster] == ["default/small"]
    assert dry.data()["onlyCluster"] == ["default/small"]


def test_a_gang_that_is_backfilled_already_is_listed_and_not_started_again() -> None:
    world = reserved()
    world.run()
    dry = tried(world, "preemptible", policy="strict")
    assert (dry.starts, dry.cluster_starts, dry.waiting) == ((), (), 1)
    assert dry.backfilled == ("default/small",)


def test_the_cluster_is_as_before() -> None:
    world = reserved()
    before = world.decide()
    tried(world, "strict", policy="easy")
    after = world.decide()
    assert (after.actions, after.waiting) == (before.actions, before.waiting)


def test_a_single_pod_and_a_gang_that_preempts_are_named() -> None:
    world = World()
    world.add_nodes("n0", "n1")
    world.add_gang("low", 1)
    world.run()
    world.add_gang("high", 2, priority=1000)
    dry = tried(world, "strict", policy="easy")
    assert [(each.gang, each.after_others) for each in dry.starts] == [("default/high", True)]
    world = World()
    world.add_nodes("n0")
    world.add_pod("alone")
    dry = tried(world, "strict", policy="easy")
    assert [(each.gang, each.nodes) for each in dry.starts] == [("default/alone", 1)]


def test_another_order_starts_another_users_job() -> None:
    world = FairWorld(order="arrival")
    world.add_nodes("n0", "n1")
    world.submit("a0", "ann")
    world.run()
    world.now += 3600.0
    world.submit("a1", "ann")
    world.submit("b0", "bob")
    dry = tried(world, "preemptible", order="fair")
    assert [each.gang for each in dry.starts] == ["default/b0"]
    assert [each.gang for each in dry.cluster_starts] == ["default/a1"]


def test_data_is_json_with_both_rules() -> None:
    dry = tried(reserved(), "strict", policy="preemptible", pool_policies={"h100": "easy"})
    assert json.loads(json.dumps(dry.data())) == {
        "rules": {"policy": "preemptible", "pools": {"h100": "easy"}, "order": "arrival"},
        "clusterRules": {"policy": "strict", "pools": {}, "order": "arrival"},
        "starts": [{"gang": "default/small", "nodes": 1, "backfilledFor": "default/head", "afterOthers": False}],
        "clusterStarts": [],
        "waiting": 2,
        "backfilled": [],
        "onlyHere": ["default/small"],
        "onlyCluster": [],
    }
