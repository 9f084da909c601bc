"""The same reasons everywhere: in reports about gangs (Events, conditions, messages of jobs) and in metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from muster.api.names import LABEL_POOL, LABEL_TEAM
from muster.scheduler.actions.gang_events import PATIENCE_S, Reporter
from muster.scheduler.decide import decide
from muster.scheduler.explain.queue_head_metrics import HeadNodes
from muster.scheduler.explain.why_waiting import explain
from muster.scheduler.metrics import SchedulerMetrics
from muster.scheduler.plan import Plan
from muster.scheduler.reasons import NodeReason, NodeWhy, Reason, Why
from tests.unit.scheduler.test_reporting import Recorder
from tests.unit.scheduler.test_rules import HOST, RACK, apart, foreign, near, racks, spread, term
from tests.unit.scheduler.world import World

UNDER_WAY = {Why.BINDING, Why.RELEASING, Why.LEAVING}
"""Events of their own say these: Placed and GangBound, GangReleased, Preempting."""
OF_SLOTS = {NodeWhy.GONE, NodeWhy.REPLACED, NodeWhy.BIND_FAILED}
"""Why a slot gets another node: not the state of a node. Said when the gang is placed again."""

OF_VICTIMS = {NodeWhy.PROTECTED, NodeWhy.EVICTION_REFUSED, NodeWhy.LENT}
"""Why a victim stays; test_eviction and test_borrowing check that it is reported."""
OF_TESTS = {NodeWhy.UNTESTED, NodeWhy.TESTED_TOO_LONG_AGO}
"""Where nodes need tests: test_trust sees that it is said."""


@pytest.mark.parametrize("why", list(Why))
def test_why_a_gang_waits_is_in_events_messages_and_metrics(why: Why) -> None:
    world, events, reported = World(), Recorder(), list[str]()
    reporter = Reporter(None, events, None, lambda _, why, text: reported.append(f"[{why}]"))  # type: ignore[arg-type]
    registry = CollectorRegistry()
    world.add_gang("train", 2)
    snapshot = world.state.snapshot()
    plan = Plan(waiting={world.gang("train").key: Reason(why, 2, 1, "something")})
    SchedulerMetrics(registry).planned(plan, 0.0, world.now)
    for now in (world.now, world.now + PATIENCE_S):
        reporter.waiting(snapshot, plan, now)
    assert registry.get_sample_value("muster_scheduler_waiting_gangs", {"reason": why.value}) == 1
    said = [] if why in UNDER_WAY else [f"[{why.value}]"]
    assert [text[text.rindex("[") :] for text in events.said] == reported == said


def affinity(**rules: Any) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": rules}}}


def by_field(name: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "NotIn", "values": [name]}
    return affinity(nodeSelectorTerms=[{"matchFields": [field]}])


TAINT = [{"key": "t", "effect": "NoSchedule"}]
NODES: dict[NodeWhy, tuple[Callable[[World], None], dict[str, Any]]] = {
    NodeWhy.NOT_READY: (lambda world: world.add_nodes("x", ready=False), {}),
    NodeWhy.UNSCHEDULABLE: (lambda world: world.add_nodes("x", unschedulable=True), {}),
    NodeWhy.EXCLUDED: (lambda world: world.add_nodes("x"), by_field("x")),
    NodeWhy.SELECTOR: (lambda world: world.add_nodes("x"), {"nodeSelector": {HOST: "n0"}}),
    NodeWhy.AFFINITY: (
        lambda world: world.add_nodes("x"),
        affinity(nodeSelectorTerms=[{"matchExpressions": [{"key": HOST, "operator": "Exists"}]}]),
    ),
    NodeWhy.TAINT: (lambda world: world.add_nodes("x", taints=TAINT), {}),
    NodeWhy.OTHER_TEAM: (
        lambda world: world.add_nodes("x", taints=[{**TAINT[0], "key": LABEL_TEAM, "value": "a"}]),
        {},
    ),
    NodeWhy.TOO_SMALL: (lambda world: world.add_nodes("x", gpus=1), {}),
    NodeWhy.OTHER_GPU_COUNT: (
        lambda world: world.add_nodes("x", gpus=16),
        {"whole": "nvidia.com/gpu=8"},
    ),
    NodeWhy.MIXED_POOL: (lambda world: world.add_nodes("x", labels={LABEL_POOL: "a"}), {}),
    NodeWhy.OUTSIDE_POOLS: (lambda world: world.add_nodes("x", labels={LABEL_POOL: "a"}), {}),
    NodeWhy.CHANGES_HANDS: (lambda world: world.state.set_leaving(frozenset({"n0"})), {}),
    NodeWhy.HOST_PORT: (
        lambda world: foreign(
            world, "web", "n0", {}, containers=[{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]
        ),
        {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]},
    ),
    NodeWhy.POD_AFFINITY: (
        lambda world: foreign(world, "db", "n0", {"app": "db"}) or world.add_nodes("x", labels={HOST: "x"}),
        {"affinity": near(term(HOST, {"app": "db"}))},
    ),
    NodeWhy.POD_ANTI_AFFINITY: (
        lambda world: foreign(world, "db", "n0", {"app": "db"}),
        {"affinity": apart(term(RACK, {"app": "db"}))},
    ),
    NodeWhy.TOPOLOGY_SPREAD: (
        lambda world: [foreign(world, f"db-{n}", "n0", {"app": "db"}) for n in range(3)] and None,
        {"topologySpreadConstraints": spread(RACK, {"app": "db"}, minDomains=3)},
    ),
    NodeWhy.IN_USE: (lambda world: foreign(world, "web", "n0", {}, gpus=8), {}),
    NodeWhy.FREE: (lambda world: None, {}),
}


@pytest.mark.parametrize("why", list(NODES))
def test_reasons_about_nodes_are_in_events_and_metrics(why: NodeWhy) -> None:
    world, events, registry = racks(1), Recorder(), CollectorRegistry()
    arrange, spec = NODES[why]
    arrange(world)
    world.add_gang("train", 9, **spec)
    snapshot = world.state.snapshot()
    plan = decide(snapshot, world.now, world.settings)
    HeadNodes(SchedulerMetrics(registry)).look(snapshot, plan, world.now)
    Reporter(None, events, None).waiting(snapshot, plan, world.now)  # type: ignore[arg-type]
    assert registry.get_sample_value("muster_scheduler_nodes", {"reason": why.value}) == 1
    (count,) = [each for each in explain(snapshot, world.gang("train"), now=world.now).nodes if each.why is why]
    assert why is NodeWhy.FREE or count.text() in events.said[0]


def test_every_reason_about_nodes_is_looked_at_here() -> None:
    """Volumes' reach is decided like node affinity; the gang that a node is kept for is named to the gang behind."""
    assert {*NODES, *OF_SLOTS, *OF_VICTIMS, *OF_TESTS, NodeWhy.VOLUME, NodeWhy.RESERVED} == set(NodeWhy)
    assert len({NodeReason(why, "x").text() for why in NodeWhy}) == len(NodeWhy), "no two are said in the same words"
