"""The node agent as a process, on both API servers: what it writes, when, and what nothing may keep it from."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import muster
from muster.api.node_health import NodeHealth
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import ApiError
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from tests.scenarios.agent.conftest import XID, Agents, account_of_agents
from tests.support.anyserver import BY_AGENT
from tests.support.apiserver import EmbeddedServer
from tests.support.namespaces import install_kinds, make_namespace
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ROWS = "NVRM: Xid (PCI:0000:86:00): 63, pid=1, Row Remapper: New row marked for remapping."
LINK = "mlx5_core 0000:5e:00.0 eth1: Link down"
FLOOD = 800_000
LOOKS = 'muster_agent_looks_total{check="kernel-log",outcome="ok"}'
WRITES = 'muster_agent_writes_total{outcome="ok"}'
HERE = "tests.scenarios.agent.illchecks"


async def test_faults_from_before_its_start_and_after_it_are_in_the_nodes_record(agents: Agents) -> None:
    machine = await agents.machine(policyVersion="acme-7")
    machine.say("eth0: renamed from veth0", XID)
    agent = await agents.start(machine)
    health = await agents.until_found(machine.node, "xid", "79")
    node = await agents.client.get(Node, machine.node)
    assert (health.node_uid, health.boot_id) == (node.uid, machine.boot_id)
    assert (health.driver, health.gpus) == ("570.86.15", 8)
    assert (health.agent_version, health.policy_version) == (muster.__version__, "acme-7")
    assert [(each.component, each.count) for each in health.findings] == [("0000:3b:00.0", 1)]
    owners = (await agents.client.get(NodeHealth, machine.node)).metadata.owner_references
    assert [(each.kind, each.uid) for each in owners] == [("Node", node.uid)], "it goes with its node"
    machine.say(LINK, at_s=200)
    await until("the link too", lambda: _checks(agents, machine.node, {"xid", "nic"}))
    assert agent.page("/healthz") == "ok\n"


async def _checks(agents: Agents, node: str, wanted: set[str]) -> bool:
    return {each.check for each in (await agents.health(node)).findings} == wanted


async def test_it_writes_nothing_while_nothing_changes(agents: Agents) -> None:
    machine = await agents.machine()
    machine.say(XID)
    agent = await agents.start(machine)
    await agents.until_found(machine.node, "xid", "79")
    await until("it looks", lambda: agent.metric(LOOKS) > 3)
    before, version = agent.metric(WRITES), await _version(agents, machine.node)
    looks = agent.metric(LOOKS)
    await until("many looks", lambda: agent.metric(LOOKS) > looks + 30)
    if agent.metric(WRITES) == before:  # else a heartbeat was due just now
        assert await _version(agents, machine.node) == version
    assert agent.metric(WRITES) <= before + 1


async def _version(agents: Agents, node: str) -> str:
    return (await agents.client.get(NodeHealth, node)).metadata.resource_version


async def test_heartbeat_shows_that_the_agent_lives(agents: Agents) -> None:
    machine = await agents.machine(heartbeatSeconds=0.5)
    await agents.start(machine)
    first = await until("a record", lambda: _time(agents, machine.node))
    await until("a later one", lambda: _later(agents, machine.node, first))


async def _time(agents: Agents, node: str) -> object:
    return (await agents.health(node)).time


async def _later(agents: Agents, node: str, than: object) -> bool:
    return (await agents.health(node)).time != than


async def test_an_agent_that_is_killed_and_started_again_says_nothing_twice(agents: Agents) -> None:
    machine = await agents.machine()
    machine.say(XID, XID, LINK)
    agent = await agents.start(machine)
    before = await agents.until_found(machine.node, "xid", "79", count=2)
    os.kill(agent.child.pid, signal.SIGKILL)
    machine.say(ROWS, at_s=300)
    await agents.start(machine)
    after = await agents.until_found(machine.node, "xid", "63")
    known = [(each.check, each.component, each.code, each.count, each.first_time) for each in before.findings]
    assert [(f.check, f.component, f.code, f.count, f.first_time) for f in after.findings if f.code != "63"] == known


@BY_AGENT
async def test_a_flood_is_one_finding_with_its_number_and_hides_nothing(agents: Agents) -> None:
    machine = await agents.machine()
    machine.say(*[XID] * (FLOOD // 2), LINK, *[XID] * (FLOOD // 2), ROWS)
    agent = await agents.start(machine)
    health = await agents.until_found(machine.node, "xid", "63")
    assert sorted((each.code, each.count) for each in health.findings) == [("63", 1), ("79", FLOOD), ("link-down", 1)]
    assert health.dropped == 0
    assert agent.page("/healthz") == "ok\n"


@BY_AGENT
async def test_the_log_is_followed_through_rotation(agents: Agents) -> None:
    machine = await agents.machine()
    machine.say(XID)
    await agents.start(machine)
    await agents.until_found(machine.node, "xid", "79")
    machine.say(XID, at_s=101)
    machine.log.rename(machine.log.with_name("kern.log.1"))
    machine.log.touch()
    machine.say(XID, ROWS, at_s=102)
    health = await agents.until_found(machine.node, "xid", "63")  # what is new takes with it what has grown
    assert [(each.code, each.count) for each in health.findings] == [("79", 3), ("63", 1)]


@BY_AGENT
async def test_a_log_that_is_not_there_is_said_and_read_once_it_is(agents: Agents) -> None:
    machine = await agents.machine()
    machine.log.unlink()
    await agents.start(machine)
    await agents.until_found(machine.node, "kernel-log", "missing")
    machine.say(XID)
    await agents.until_found(machine.node, "xid", "79")


@BY_AGENT
async def test_checks_that_hang_raise_leave_or_lie_are_findings_and_stop_no_other(agents: Agents) -> None:
    machine = await agents.machine()
    ill = ("hangs", "raises", "leaves", "lies")
    plugged_in = [*(f"{name}={HERE}:{name}" for name in ill), "gone=muster.agent.gone:make"]
    agent = await agents.start(machine, ",".join(plugged_in))
    await agents.until_found(machine.node, "agent", "hung")

    async def all_said() -> bool:
        health = await agents.health(machine.node)
        said = {(each.component, each.code) for each in health.findings if each.check == "agent"}
        return {("hangs", "hung"), ("gone", "failed"), *((name, "failed") for name in ill[1:])} <= said

    await until("each is said", all_said)
    machine.say(XID)
    await agents.until_found(machine.node, "xid", "79")
    assert agent.page("/healthz") == "ok\n", "a check that hangs is not a reason to start again"
    assert agent.child.exit_code is None


@BY_AGENT
async def test_unknown_checks_may_be_configured(agents: Agents) -> None:
    later = {"later": {"options": {"x": 1}}, "kernel-log": {"options": {"file": "var/log/kern.log", "new": True}}}
    machine = await agents.machine(checks=later, futureField={"a": 1})
    machine.say(XID)
    await agents.start(machine)
    await agents.until_found(machine.node, "agent", "unknown")
    await agents.until_found(machine.node, "xid", "79")


async def test_a_node_back_under_the_same_name_starts_with_a_clean_record(agents: Agents) -> None:
    machine = await agents.machine()
    machine.say(XID)
    agent = await agents.start(machine)
    await agents.until_found(machine.node, "xid", "79")
    agent.child.stop()
    await agents.client.delete(Node, machine.node)
    new = await agents.client.create(Node(metadata=ObjectMeta(name=machine.node)))
    machine.log.write_text("")
    machine.say(LINK)
    await agents.start(machine)

    async def clean() -> bool:
        health = await agents.health(machine.node)
        return health.node_uid == new.uid and {each.check for each in health.findings} == {"nic"}

    await until("the new node's record", clean, ignoring=(ApiError,))


@BY_AGENT
async def test_settings_that_are_wrong_end_it_with_what_to_change(agents: Agents) -> None:
    machine = await agents.machine(heartbeatSeconds="often")
    agent = await agents.start(machine)
    await until("it ends", lambda: agent.child.exit_code is not None)
    assert agent.child.exit_code == 2
    assert "heartbeatSeconds" in agent.said()


async def test_findings_during_an_api_server_outage_are_written_afterwards(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "server")
    server.start()
    config = load_config(server.kubeconfig)
    namespace = "muster-system"
    try:
        async with Client(config, timeout_s=20) as client:
            await install_kinds(client)
            await make_namespace(client, namespace)
            await account_of_agents(client, namespace)
            agents = Agents(client, config, namespace, tmp_path)
            machine = await agents.machine()
            machine.say(LINK)
            agent = await agents.start(machine)
            try:
                await until("the link", lambda: _checks(agents, machine.node, {"nic"}))
                server.kill()
                machine.say(XID, at_s=200)
                await until("a write failed", lambda: "is not written" in agent.said())
                server.start()
                await agents.until_found(machine.node, "xid", "79")
            finally:
                await agents.end()
    finally:
        server.stop()
