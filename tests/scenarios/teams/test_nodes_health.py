"""`muster nodes` and `muster health`: one named state each, what happened, what decides, and what people ask for."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from muster.api.names import HEALTH_CONFIG_MAP, HEALTH_POLICY_KEY, remediation_name
from muster.api.node_health import NodeHealth, NodeHealthStatus, ObservedFinding
from muster.api.node_remediation import (
    NodeRemediation,
    NodeRemediationSpec,
    NodeRemediationStatus,
    RemediationStep,
    Rung,
)
from muster.api.preflight import Preflight, PreflightFailure, PreflightSpec
from muster.fleet.preflight.config import CONFIG_KEY as TESTS_KEY
from muster.fleet.preflight.config import CONFIG_MAP as TESTS_CONFIG_MAP
from muster.fleet.remediation.config import CONFIG_KEY as LADDER_KEY
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from tests.scenarios.teams.conftest import Typed
from tests.support.anyserver import BY_COMMAND
from tests.support.teamclusters import TeamCluster
from tests.support.waiting import until

THEN = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
SEEN = ObservedFinding(
    check="xid", component="0000:3b:00.0", code="79", count=3, first_time=THEN, last_time=THEN, message="off the bus"
)


async def remediated(cluster: TeamCluster, name: str, rung: Rung, **status: Any) -> NodeRemediation:
    """A session of the node, as the controller writes it."""
    uid = (await cluster.client.get(Node, name)).uid
    spec = NodeRemediationSpec(node=name, node_uid=uid, cause=(SEEN,))
    made = await cluster.client.create(
        NodeRemediation(metadata=ObjectMeta(name=remediation_name(name, uid)), spec=spec)
    )
    steps = (
        RemediationStep("Quarantine", THEN + timedelta(seconds=1), 1, "xid/79 (catalogue.yaml:12): off the bus"),
        *((RemediationStep(rung, THEN + timedelta(seconds=2), 2, "xid/79"),) if rung != "Quarantine" else ()),
    )
    said = NodeRemediationStatus(rung=rung, generation=2, since=THEN, history=steps, **status)
    return await cluster.client.patch(NodeRemediation, made.name, {"status": said}, subresource="status")


async def has_test(cluster: TeamCluster, name: str, *, passed: bool) -> None:
    node = await cluster.client.get(Node, name)
    failures = () if passed else (PreflightFailure("matmul", "wrong", message="3 of 512 results are wrong"),)
    boot = node.status.node_info.boot_id if node.status.node_info is not None else ""
    spec = PreflightSpec(
        node_uid=node.uid, boot_id=boot, level=2, passed=passed, time=THEN + timedelta(minutes=5), failures=failures
    )
    await cluster.client.create(Preflight(metadata=ObjectMeta(name=name), spec=spec))


async def give_gpus(cluster: TeamCluster, *names: str) -> None:
    for name in names:
        patch = {"status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}}}
        await cluster.client.patch(Node, name, patch, subresource="status")


async def test_each_node_has_one_state(cluster: TeamCluster, typed: Typed) -> None:
    idle, lost, draining, handed, untested, cordoned = names = await cluster.add_nodes(6)
    await give_gpus(cluster, *names)
    await cluster.set_ready(lost, False)
    for name in names:
        if name != untested:
            await has_test(cluster, name, passed=True)
    sessions = [
        await remediated(cluster, draining, "Drain", message="two pods are left"),
        await remediated(
            cluster, handed, "Human", state="NeedsOperator", message="no provider here can replace the machine"
        ),
    ]
    await cluster.client.patch(Node, cordoned, {"spec": {"unschedulable": True}})
    try:
        found = {each["node"]: each for each in (await typed.json("nodes"))["nodes"]}
        assert {name: found[name]["state"] for name in names} == {
            idle: "Idle",
            lost: "NotReady",
            draining: "Draining",
            handed: "NeedsOperator",
            untested: "Untested",
            cordoned: "Cordoned",
        }
        assert (found[idle]["testLevel"], found[idle]["gpus"]) == (2, 8)
        assert found[untested]["why"] == "no test yet"
        assert found[draining]["why"] == "two pods are left"
        why = await typed.ok("nodes", "why", draining)
        assert "remediation: Draining, on rung Drain since 2026-03-04T05:06:07Z" in why
        said = (await typed.ok("nodes")).splitlines()
        (line,) = [line for line in said if line.startswith(handed)]
        assert "NeedsOperator" in line
        assert line.endswith("no provider here can replace the machine")
    finally:
        for session in sessions:
            await cluster.client.delete(NodeRemediation, session.name)
        for name in set(names) - {untested}:
            await cluster.client.delete(Preflight, name)


@BY_COMMAND
async def test_history_is_in_order(cluster: TeamCluster, typed: Typed) -> None:
    (name,) = await cluster.add_nodes(1)
    session = await remediated(cluster, name, "Drain")
    await has_test(cluster, name, passed=False)
    try:
        found = (await typed.json("nodes", "history", name))["history"]
        assert [each["what"] for each in found] == ["Found", "Quarantine", "Drain", "Tested"]
        said = (await typed.ok("nodes", "history", name)).splitlines()
        assert said[0] == "2026-03-04 05:06:07Z  Found       xid 79 on 0000:3b:00.0, 3 times: off the bus"
        assert said[-1] == "2026-03-04 05:11:07Z  Tested      level 2 failed: matmul: 3 of 512 results are wrong"
    finally:
        await cluster.client.delete(NodeRemediation, session.name)
        await cluster.client.delete(Preflight, name)
    code, out, err = await typed.fails("nodes", "history", f"{name}x")
    assert (code, out) == (4, "")
    assert f"no node '{name}x'" in err


async def test_request_is_recorded_with_user_and_reason(cluster: TeamCluster, typed: Typed) -> None:
    (name,) = await cluster.add_nodes(1)
    node = await cluster.client.get(Node, name)
    session = remediation_name(name, node.uid)
    code, _, err = await typed.fails("nodes", "release", name, "--reason", "it is well")
    assert code != 0
    assert f"node {name} is not in quarantine because of Muster" in err
    asking = asyncio.create_task(typed.fails("nodes", "quarantine", name, "--reason", "a cable"))

    async def there() -> bool:
        return any(each.name == session for each in (await cluster.client.list(NodeRemediation)).items)

    await until("it is asked for", there)
    made = await cluster.client.get(NodeRemediation, session)
    asked = made.spec.request
    assert asked is not None
    assert (asked.action, asked.reason, made.spec.node_uid) == ("Quarantine", "a cable", node.uid)
    assert asked.by
    said = NodeRemediationStatus(rung="Quarantine", generation=1, history=(RemediationStep("Quarantine", THEN, 1),))
    await cluster.client.patch(NodeRemediation, session, {"status": said}, subresource="status")
    try:
        code, _, err = await asking
        assert (code, f"node {name} is in quarantine" in err) == (0, True), err
        await typed.ok("nodes", "release", name, "--reason", "it is mended")
        again = (await cluster.client.get(NodeRemediation, session)).spec.request
        assert again is not None
        assert (again.action, again.reason) == ("Release", "it is mended")
        for words in ("", " ", "x" * 600):
            code, _, err = await typed.fails("nodes", "release", name, "--reason", words)
            assert (code, "--reason has to say what for" in err) == (2, True), err
    finally:
        await cluster.client.delete(NodeRemediation, session)


async def test_ineffective_configuration_is_reported_as_failure(cluster: TeamCluster, typed: Typed) -> None:
    await cluster.add_nodes(1)
    texts = {
        HEALTH_CONFIG_MAP: {HEALTH_POLICY_KEY: "version: 1\nrevision: mine\n", LADDER_KEY: "mode: acct\n"},
        TESTS_CONFIG_MAP: {TESTS_KEY: "image: a\natOnec: 3\n"},
    }
    for name, data in texts.items():
        meta = ObjectMeta(name=name, namespace=cluster.namespace)
        await cluster.client.create(ConfigMap(metadata=meta, data=data))
    code, out, _ = await typed.fails("health", "-o", "json")
    assert code == 1
    assert [(each["configMap"], each["key"]) for each in json.loads(out)["configProblems"]] == [
        (HEALTH_CONFIG_MAP, LADDER_KEY),
        (TESTS_CONFIG_MAP, TESTS_KEY),
    ]
    code, _, err = await typed.fails("health")
    assert code == 1
    assert f"NOT IN FORCE: remediation.yaml of ConfigMap {cluster.namespace}/muster-health" in err
    assert "line 1: mode: Invalid enum value 'acct'; did you mean act?" in err
    assert "line 2: atOnec: unknown field; did you mean atOnce?" in err
    for name, key, text in (
        (HEALTH_CONFIG_MAP, LADDER_KEY, "mode: act\n"),
        (TESTS_CONFIG_MAP, TESTS_KEY, "image: a\n"),
    ):
        await cluster.client.patch(ConfigMap, name, {"data": {key: text}}, namespace=cluster.namespace)
    await typed.ok("health")


@BY_COMMAND
async def test_deciding_rule_is_named_with_its_line(cluster: TeamCluster, typed: Typed) -> None:
    broken, well, silent = await cluster.add_nodes(3)
    now = datetime.now(UTC)
    seen = ObservedFinding(
        check="xid", component="0000:3b:00.0", code="79", count=3, first_time=now, last_time=now, message="off the bus"
    )
    for name, findings in ((broken, (seen,)), (well, ())):
        uid = (await cluster.client.get(Node, name)).uid
        await cluster.client.create(NodeHealth(metadata=ObjectMeta(name=name)))
        status = NodeHealthStatus(node_uid=uid, time=now, findings=findings)
        await cluster.client.patch(NodeHealth, name, {"status": status}, subresource="status")
    try:
        found = await typed.json("health")
        assert {each["node"]: each["action"] for each in found["nodes"]}[broken] == "reboot"
        assert well not in [each["node"] for each in found["nodes"]]
        assert silent in found["silent"]
        assert not {broken, well} & set(found["silent"])
        said = await typed.ok("health")
        assert any(line.startswith(broken) and "xid/79 (catalogue.yaml:" in line for line in said.splitlines())
        said = await typed.ok("health", "explain", broken)
        assert "decided by xid/79 (catalogue.yaml:" in said
        assert "0000:3b:00.0, 3 times: off the bus" in said
        assert (await typed.json("health", "explain", well))["action"] == "none"

        meta = ObjectMeta(name=HEALTH_CONFIG_MAP, namespace=cluster.namespace)
        text = "version: 1\nrevision: mine\nextends: default\ncodes:\n  xid:\n    79: {action: human}\n"
        await cluster.client.create(ConfigMap(metadata=meta, data={HEALTH_POLICY_KEY: text}))
        found = await typed.json("health", "explain", broken)
        assert (found["action"], found["where"]) == ("human", "muster-health/policy.yaml:6")
        patch = {"data": {HEALTH_POLICY_KEY: text.replace("human", "beer")}}
        await cluster.client.patch(ConfigMap, HEALTH_CONFIG_MAP, patch, namespace=cluster.namespace)
        code, out, _ = await typed.fails("health", "explain", broken, "-o", "json")
        found = json.loads(out)
        assert (code, found["action"]) == (1, "reboot")
        (problem,) = found["configProblems"]
        assert problem["problems"].startswith("muster-health/policy.yaml:6:18: xid/79: action: Invalid enum value")
    finally:
        for name in (broken, well):
            await cluster.client.delete(NodeHealth, name)
    code, _, err = await typed.fails("health", "explain", f"{well}x")
    assert (code, f"no node '{well}x'" in err) == (4, True)
    code, _, err = await typed.fails("health", "explain")
    assert (code, "name a node, or a log" in err) == (2, True)
