"""What a leader that knows too little may not undo: the API server's own word decides, not what is remembered."""

from __future__ import annotations

import json
import random

from prometheus_client import CollectorRegistry

from muster.fleet.remediation.carrying import Carrier
from muster.fleet.remediation.evicting import Evictions
from muster.fleet.remediation.known import Known
from muster.fleet.remediation.looking import Looker
from muster.fleet.remediation.metrics import remediation_metrics
from muster.fleet.remediation.plan import Plan, Quarantine, Release
from muster.fleet.remediation.snapshot import NodeView
from muster.fleet.remediation.steps import StepSettings
from muster.kube.events import EventRecorder
from tests.unit.remediation.remediationworld import World
from tests.unit.remediation.virtualward import NAMESPACE, VirtualWard


def carried_out(ward: VirtualWard, known: Known, *plans: Plan) -> None:
    """By a leader that knows this much."""
    client = ward.cluster.client("old-leader")
    clock = lambda: ward.loop.now  # noqa: E731
    metrics = remediation_metrics(CollectorRegistry())
    evictions = Evictions(client, clock, changed=lambda: None, outcomes=metrics.actions)
    carrier = Carrier(
        client,
        known,
        Looker(client, clock, evictions),
        evictions,
        steps=StepSettings(namespace=NAMESPACE, image="i"),
        replacer=None,
        events=EventRecorder(client, "test"),
        metrics=metrics,
        namespace=NAMESPACE,
        clock=clock,
        rng=random.Random(1),
    )

    async def story() -> None:
        for plan in plans:
            await carrier.carry_out(plan)

    ward.loop.run(story())


def released() -> World:
    world = World(1)
    world.fault("n0", "quarantine")
    world.settle()
    world.test("n0")
    world.settle()
    return world


def test_a_release_takes_nothing_back_that_came_after_it() -> None:
    session = next(iter(released().sessions.values()))
    ward = VirtualWard()
    ward.add_node("n0")
    uid = ward.node("n0")["metadata"]["uid"]
    mark = {"session": session.name, "generation": 5, "since": "", "why": ""}
    taint = {"key": "muster.dev/quarantine", "value": "true", "effect": "NoSchedule"}
    meta = {"annotations": {"muster.dev/quarantine-record": json.dumps(mark)}}
    ward.call("PATCH", "/api/v1/nodes/n0", {"metadata": meta, "spec": {"taints": [taint]}})
    known = Known(lambda: None)
    known.sessions[session.name] = session
    node = NodeView(name="n0", uid=uid)
    carried_out(ward, known, Plan(actions=(Release(node=node, session=session.name, generation=3),)))
    assert ward.out_of_use() == {"n0"}


def test_no_node_is_put_into_quarantine_for_a_session_that_is_over_or_by_another_nodes_name() -> None:
    session = next(iter(released().sessions.values()))
    ward = VirtualWard()
    ward.add_node("n0")
    known = Known(lambda: None)
    known.sessions[session.name] = session
    node = NodeView(name="n0", uid=ward.node("n0")["metadata"]["uid"])
    over = Quarantine(node=node, session=session.name, generation=2, since=0.0, why="")
    other = Quarantine(node=NodeView(name="n0", uid="before"), session="open", generation=2, since=0.0, why="")
    carried_out(ward, known, Plan(actions=(over, other)))
    assert ward.out_of_use() == set()
