"""What a leader that knows too little may not undo: the API server's own word decides, not what is remembered."""

from __future__ import annotations

import json
import random

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from muster.fleet.remediation.cache import Known
from muster.fleet.remediation.draining.evictions import Evictions
from muster.fleet.remediation.executor import Carrier
from muster.fleet.remediation.lookups import Looker
from muster.fleet.remediation.metrics import remediation_metrics
from muster.fleet.remediation.plan import Plan, Quarantine, Release, ReplaceMachine, RunStep
from muster.fleet.remediation.repairs.replacement import Replacer
from muster.fleet.remediation.repairs.steps import StepSettings
from muster.fleet.remediation.snapshot import RemediationNode
from muster.kube.events import EventRecorder
from muster.kube.objects.node import Node
from muster.kube.objects.struct import to_dict
from tests.unit.remediation.remediationworld import ACT, World
from tests.unit.remediation.virtualward import NAMESPACE, WORKER, VirtualWard


def evictions_of(ward: VirtualWard) -> Evictions:
    client, metrics = ward.cluster.client("c"), remediation_metrics(CollectorRegistry())
    return Evictions(client, lambda: ward.loop.now, changed=lambda: None, outcomes=metrics.actions)


def carried_out(ward: VirtualWard, known: Known, *plans: Plan, replacer: Replacer | None = None) -> None:
    """By a leader that knows this much."""
    client = ward.cluster.client("old-leader")
    clock = lambda: ward.loop.now  # noqa: E731
    metrics = remediation_metrics(CollectorRegistry())
    evictions = Evictions(client, clock, changed=lambda: None, outcomes=metrics.actions)
    carrier = Carrier(
        client,
        known,
        Looker(client, clock, evictions, NAMESPACE),
        evictions,
        steps=StepSettings(namespace=NAMESPACE, image="i"),
        replacer=replacer,
        events=EventRecorder(client, "test"),
        metrics=metrics,
        namespace=NAMESPACE,
        clock=clock,
        rng=random.Random(1),
    )

    async def story() -> None:
        for plan in plans:
            await carrier.carry_out(plan, known.news_count)

    ward.loop.run(story())


def released() -> World:
    world = World(1)
    world.fault("n0", "quarantine")
    world.settle()
    world.test("n0")
    world.settle()
    return world


def after_a_release(world: World, *, tainted_in: int, released_in: int) -> set[str]:
    """Return the nodes with the taint after a Release of one generation meets a taint of another."""
    session = next(iter(world.sessions.values()))
    ward = VirtualWard()
    ward.add_node("n0")
    uid = ward.node("n0")["metadata"]["uid"]
    mark = {"session": session.name, "generation": tainted_in, "since": "", "why": ""}
    taint = {"key": "muster.dev/quarantine", "value": "true", "effect": "NoSchedule"}
    meta = {"annotations": {"muster.dev/quarantine-record": json.dumps(mark)}}
    ward.call("PATCH", "/api/v1/nodes/n0", {"metadata": meta, "spec": {"taints": [taint]}})
    known = Known(lambda: None)
    known.sessions[session.name] = session
    release = Release(node=RemediationNode(name="n0", uid=uid), session=session.name, generation=released_in)
    carried_out(ward, known, Plan(actions=(release,)))
    return ward.out_of_use()


def test_a_release_takes_nothing_back_that_came_after_it() -> None:
    assert after_a_release(released(), tainted_in=5, released_in=3) == {"n0"}


def test_release_removes_the_old_taint_of_a_reopened_session_that_is_not_in_quarantine() -> None:
    world = released()
    world.fault("n0", "condition")
    world.settle(1.0)
    assert world.rung("n0") == "Condition"
    assert after_a_release(world, tainted_in=2, released_in=3) == set()


def test_release_keeps_the_taint_of_a_session_that_is_in_quarantine_again() -> None:
    world = released()
    world.fault("n0", "quarantine", "31")
    world.settle(1.0)
    assert world.rung("n0") == "Quarantine"
    assert after_a_release(world, tainted_in=2, released_in=3) == {"n0"}


def test_no_node_is_put_into_quarantine_for_a_session_that_is_over_or_by_another_nodes_name() -> None:
    session = next(iter(released().sessions.values()))
    ward = VirtualWard()
    ward.add_node("n0")
    known = Known(lambda: None)
    known.sessions[session.name] = session
    node = RemediationNode(name="n0", uid=ward.node("n0")["metadata"]["uid"])
    over = Quarantine(node=node, session=session.name, generation=2, since=0.0, why="", event="Entered", fault_key="")
    other = Quarantine(
        node=RemediationNode(name="n0", uid="before"),
        session="open",
        generation=2,
        since=0.0,
        why="",
        event="Entered",
        fault_key="",
    )
    carried_out(ward, known, Plan(actions=(over, other)))
    assert ward.out_of_use() == set()


def described(ward: VirtualWard, world: World, since: str) -> str:
    """The API server has the world's one session and its node, with a change. Returns the UID."""
    ward.add_node("n0")
    name, known = next(iter(world.sessions.items()))
    session = to_dict(known)
    session["metadata"] = {"name": name}
    if since == "kept out":
        by = {"action": "Quarantine", "by": "ada", "time": "2026-01-01T00:00:00Z", "reason": "a cable"}
        session["spec"]["request"] = by
    kind = "/apis/muster.dev/v1alpha1/noderemediations"
    ward.call("POST", kind, session)
    ward.call("PATCH", f"{kind}/{name}/status", {"status": session["status"]})
    mark = {"session": name, "generation": 2, "since": "", "why": ""}
    meta = {
        "labels": {"muster.dev/health": "ignore"} if since == "opted out" else {},
        "annotations": {"muster.dev/quarantine-record": json.dumps(mark)},
    }
    taint = {"key": "muster.dev/quarantine", "value": "true", "effect": "NoSchedule"}
    spec = {"taints": [] if since == "let in" else [taint], "unschedulable": since == "cordoned"}
    ward.call("PATCH", "/api/v1/nodes/n0", {"metadata": meta, "spec": spec})
    return str(ward.node("n0")["metadata"]["uid"])


@pytest.mark.parametrize("since", ["nothing", "cordoned", "let in", "opted out", "kept out", "reset", "released"])
def test_a_machine_is_not_touched_by_a_leader_that_does_not_know_what_happened_since(since: str) -> None:
    """It decided, then stood still for as long as it took another user to go on."""
    world = World(1)
    world.fault("n0", "reset-gpu")
    world.settle()
    [step] = [each for each in world.done if isinstance(each, RunStep)]
    if since in ("reset", "released"):
        world.finish_steps()
        world.settle(1.0)
    if since == "released":
        world.test("n0")
        world.settle()
    ward = VirtualWard()
    uid = described(ward, world, since)
    mine = replace(step, node=replace(step.node, uid=uid))
    carried_out(ward, Known(lambda: None), Plan(actions=(mine,)))
    made = [each for each in ward.call("GET", f"{WORKER}/pods")["items"] if each["metadata"]["name"] == step.name]
    assert len(made) == (since == "nothing")


@pytest.mark.parametrize("since", ["nothing", "cordoned", "let in", "opted out", "kept out", "released"])
def test_nor_is_it_given_away(since: str) -> None:
    world = World(1)
    world.replaceable = frozenset({"n0"})
    world.fault("n0", "replace")
    for _ in range(12):
        world.step()
    gone = next(each for each in world.done if isinstance(each, ReplaceMachine))
    if since == "released":
        world.now += ACT.deadlines.replace_s
        world.step()
        world.now += 10.0
        world.test("n0")
        world.settle()

    class Provider:
        asked = 0

        def can(self, node: Node) -> bool:
            return True

        async def replace(self, node: Node) -> None:
            self.asked += 1

    ward, provider = VirtualWard(), Provider()
    mine = replace(gone, node=replace(gone.node, uid=described(ward, world, since)))
    carried_out(ward, Known(lambda: None), Plan(actions=(mine,)), replacer=provider)
    assert provider.asked == (since == "nothing")


@pytest.mark.parametrize("label", ["muster.dev/preflight", "muster.dev/remediation", "muster.dev/balloon"])
def test_our_label_on_a_foreign_pod_does_not_reboot_its_machine(label: str) -> None:
    ward = VirtualWard()
    ward.add_node("n0")
    looker = Looker(ward.cluster.client("c"), lambda: ward.loop.now, evictions_of(ward), NAMESPACE)
    spec = {"nodeName": "n0", "containers": [{"name": "c", "image": "i"}]}
    for namespace in (NAMESPACE, "default"):
        meta = {"name": "p", "labels": {label: "true"}}
        ward.call("POST", f"/api/v1/namespaces/{namespace}/pods", {"metadata": meta, "spec": spec})
        empty: list[bool] = []

        async def look(found: list[bool] = empty) -> None:
            found.append(await looker.is_empty("n0"))

        ward.loop.run(look())
        assert empty == [namespace == NAMESPACE]
