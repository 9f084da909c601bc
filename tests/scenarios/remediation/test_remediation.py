"""From a finding to a node that is trusted again, or to a person; with the controller killed anywhere in between."""

from __future__ import annotations

import asyncio

from muster.api.names import HEALTH_POLICY_KEY
from muster.api.node_remediation import NodeRemediation
from muster.fleet.remediation.decide import HARDWARE
from muster.kube.objects.core import Event
from muster.kube.objects.node import Node
from muster.kube.objects.policy import PodDisruptionBudget
from tests.scenarios.remediation.conftest import OPEN, Relay, Ward
from tests.support.anyserver import BY_REMEDIATION
from tests.support.waiting import until

REBOOT, DRAIN, QUARANTINE = "79", "drained", "48"
POLICY = """
version: 1
revision: test
extends: default
codes:
  xid:
    79: {action: reboot}
    48: {action: quarantine}
    950: {what: a driver of ours, action: reboot, fault: software}
    951: {what: moves, action: drain, fault: hardware}
"""


async def test_a_broken_node_is_emptied_rebooted_tested_and_given_back(ward: Ward) -> None:
    [node, other] = await ward.add_nodes(2)
    await ward.configure(**{HEALTH_POLICY_KEY: POLICY})
    await ward.add_pod("work", node)
    await ward.add_pod("elsewhere", other)
    ward.start()
    await ward.finds(node, REBOOT)
    await ward.until_rung(node, "Reboot")
    await until("the machine has booted", lambda: ward.rebooted)
    assert not await ward.pods_on(node)
    assert await ward.out_of_use() == {node}
    seen = await ward.client.get(Node, node)
    assert HARDWARE in {each.type for each in seen.status.conditions if each.status == "True"}

    async def booted() -> bool:
        session = await ward.session(node)
        return session is not None and "Booted" in [step.event for step in session.status.history]

    await until("the boot is seen", booted)
    await ward.tests(node)
    session = await ward.until_rung(node, "Released")
    await ward.until_out_of_use()
    assert ward.rebooted == [node]
    assert await ward.pods_on(other) == {"elsewhere"}
    rungs = [step.rung for step in session.status.history]
    assert [rung for at, rung in enumerate(rungs) if not at or rungs[at - 1] != rung] == [
        "Observe",
        "Quarantine",
        "Drain",
        "Reboot",
    ]
    assert any("xid/79" in step.reason for step in session.status.history)
    assert await ward.client.get(Node, node) is not None


async def test_killed_at_each_rung_it_is_carried_on_by_the_next_leader(ward: Ward) -> None:
    """Killed whenever anything was written; each continues where the one before was, and nothing is done twice."""
    [node] = await ward.add_nodes(1)
    await ward.configure(**{HEALTH_POLICY_KEY: POLICY})
    await ward.add_pod("work", node)
    await ward.finds(node, REBOOT)
    generation, kills = -1, 0

    async def moved() -> NodeRemediation | None:
        session = await ward.session(node)
        return session if session is not None and session.status.generation > generation else None

    while await ward.rung(node) != "Released":
        ward.start()
        session = await until("the next step is written", moved)
        await ward.stop()
        generation, kills = session.status.generation, kills + 1
        if any(step.event == "Booted" for step in session.status.history):
            await ward.tests(node)
    ward.start()
    await ward.until_out_of_use()
    assert ward.rebooted == [node]
    assert kills >= 2  # a look may find several steps taken


@BY_REMEDIATION
async def test_a_shared_fault_stops_at_a_person(ward: Ward) -> None:
    nodes = await ward.add_nodes(8)
    text = OPEN.replace("shared: {nodes: 0}", "shared: {nodes: 4}")
    await ward.configure(text, **{HEALTH_POLICY_KEY: POLICY})
    for node in nodes[:6]:
        await ward.finds(node, "950")
    ward.start()
    for node in nodes[:6]:
        session = await ward.until_rung(node, "NeedsOperator")
        assert "950" in session.status.message
    await ward.finds(nodes[7], QUARANTINE)
    await ward.until_out_of_use(nodes[7])

    async def reported() -> int:
        events = (await ward.client.list(Event, ward.namespace)).items
        return len([each for each in events if each.reason == "SharedFault"])

    await until("the operator sees the Event", reported)
    assert await reported() == 1
    assert not ward.rebooted


async def test_an_api_server_that_is_away_during_a_drain_is_waited_for(ward: Ward, relay: Relay) -> None:
    [node] = await ward.add_nodes(1)
    await ward.configure(**{HEALTH_POLICY_KEY: POLICY})
    await ward.guard(node, "never")
    async with relay.client() as client:
        ward.start(client)
        await ward.finds(node, REBOOT)
        await ward.until_rung(node, "Drain")
        await relay.cut()
        await ward.client.delete(PodDisruptionBudget, "never", namespace=ward.namespace)
        await asyncio.sleep(0.5)  # it finds no object there, and must do nothing
        assert await ward.rung(node) == "Drain"
        assert await ward.pods_on(node) == {"guarded"}
        await relay.open()
        await until("the machine has booted", lambda: ward.rebooted)
        assert not await ward.pods_on(node)
        await ward.stop()


async def test_a_budget_that_never_allows_is_honoured_until_a_person_is_asked(ward: Ward) -> None:
    [node] = await ward.add_nodes(1)
    text = OPEN + "deadlines: {drainSeconds: 3}\n"
    await ward.configure(text, **{HEALTH_POLICY_KEY: POLICY})
    await ward.guard(node, "never")
    ward.start()
    await ward.finds(node, REBOOT)
    await ward.until_rung(node, "NeedsOperator")
    assert await ward.pods_on(node) == {"guarded"}
    assert await ward.out_of_use() == {node}
    assert not ward.rebooted


async def test_two_budgets_on_one_pod_go_to_a_person(ward: Ward) -> None:
    """Kubernetes answers 500 to each eviction then: waiting does not help."""
    [node] = await ward.add_nodes(1)
    await ward.configure(**{HEALTH_POLICY_KEY: POLICY})
    await ward.guard(node, "one", "two")
    ward.start()
    await ward.finds(node, REBOOT)
    session = await ward.until_rung(node, "NeedsOperator")
    assert "more than one PodDisruptionBudget" in session.status.message
    assert await ward.pods_on(node) == {"guarded"}


async def test_recreated_node_of_the_same_name_gets_its_own_session(ward: Ward) -> None:
    [node] = await ward.add_nodes(1)
    await ward.configure(**{HEALTH_POLICY_KEY: POLICY})
    ward.mends = False
    ward.start()
    await ward.finds(node, REBOOT)
    old = await ward.until_rung(node, "Reboot")
    await ward.cluster.remove_node(node)
    await ward.add_nodes(1)

    async def closed() -> bool:
        return (await ward.client.get(NodeRemediation, old.name)).status.state == "Released"

    await until("the old session is closed", closed)
    assert await ward.session(node) is None
    assert await ward.out_of_use() == set()


@BY_REMEDIATION
async def test_observed_only_a_node_stays_as_it_is_and_a_bad_text_changes_nothing(ward: Ward) -> None:
    nodes = await ward.add_nodes(2)
    await ward.configure("", **{HEALTH_POLICY_KEY: POLICY})
    ward.start()
    await ward.finds(nodes[0], REBOOT)
    session = await ward.until_rung(nodes[0], "Observe")
    assert "observed only" in session.status.message
    await ward.configure("mode: act\nworking: {all: -1}\n", **{HEALTH_POLICY_KEY: POLICY})

    async def reported() -> list[str]:
        events = (await ward.client.list(Event, ward.namespace)).items
        return [each.message for each in events if each.reason == "BadConfig"]

    [message] = await until("the operator sees the Event", reported)
    assert "line 2: working.all: -1 is not possible" in message
    await ward.finds(nodes[1], REBOOT)
    await ward.until_rung(nodes[1], "Observe")
    assert await ward.out_of_use() == set()


@BY_REMEDIATION
async def test_foreign_cordon_and_taints_stay(ward: Ward) -> None:
    [node] = await ward.add_nodes(1)
    foreign = {"key": "example.com/owner", "value": "x", "effect": "NoSchedule"}
    await ward.client.patch(Node, node, {"spec": {"unschedulable": True, "taints": [foreign]}})
    await ward.configure(**{HEALTH_POLICY_KEY: POLICY})
    ward.start()
    await ward.finds(node, QUARANTINE)
    await ward.until_out_of_use(node)
    await ward.tests(node)
    await ward.until_rung(node, "Released")
    await ward.until_out_of_use()
    seen = await ward.client.get(Node, node)
    assert seen.spec.unschedulable
    assert "example.com/owner" in {taint.key for taint in seen.spec.taints}
