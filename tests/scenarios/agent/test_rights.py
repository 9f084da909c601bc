"""Policy muster-agents of the chart on a real API server: no agent ever writes another node's record.

Tokens are what kubelets would ask for: of the agents' service account, bound to a pod, and so to the pod's node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from muster.api.names import SYSTEM_NAMESPACE
from muster.api.node_health import NodeHealth, NodeHealthStatus
from muster.controlplane.chart import rendered
from muster.controlplane.goprograms import NotBuiltError
from muster.kube.client import JSON_PATCH, Client
from muster.kube.connection.config import ClusterConfig, load_config
from muster.kube.connection.credentials import StaticToken
from muster.kube.errors import AlreadyExists, ApiError, Forbidden, NotFound
from muster.kube.objects.auth import TokenRequest
from muster.kube.objects.core import ConfigMap, Namespace, Secret
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from tests.scenarios.agent.conftest import ACCOUNT, XID, Agent, Agents, account_of_agents
from tests.support.accessreviews import until_allowed
from tests.support.controlplane import REQUIRED, RealCluster
from tests.support.namespaces import install_kinds
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.real]

NOW = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.fixture
def admin_config(real_control_plane: RealCluster) -> ClusterConfig:
    return load_config(real_control_plane.kubeconfig)


@pytest.fixture
async def chart(admin_config: ClusterConfig, tmp_path: Path) -> AsyncIterator[Agents]:
    """What the chart installs for agents but the DaemonSet, for agents that the tests start themselves."""
    try:
        objects = rendered(
            ["health-agents", "health-policy"], namespace=SYSTEM_NAMESPACE, build=False, values=["health.enabled=true"]
        )
    except NotBuiltError as error:
        if REQUIRED:
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    async with Client(admin_config, timeout_s=20) as client:
        await install_kinds(client)
        with contextlib.suppress(AlreadyExists):
            await client.create(Namespace(metadata=ObjectMeta(name=SYSTEM_NAMESPACE)))
        made = []
        agents = Agents(client, admin_config, SYSTEM_NAMESPACE, tmp_path)
        try:
            for each in objects:
                if each["kind"] != "DaemonSet":
                    await client.create(each)
                    made.append(each)
            await until("the policy is at work", lambda: _at_work(agents), ignoring=(ApiError,))
            yield agents
        finally:
            await agents.end()
            for each in made:
                await _delete(client, each)


async def _at_work(agents: Agents) -> bool:
    """The policy refuses a user who may do everything but is not an agent."""
    token = (await agents.client.create_token(ACCOUNT, TokenRequest(), namespace=SYSTEM_NAMESPACE)).status.token
    async with as_bearer(agents, token) as client:
        try:
            await client.create(NodeHealth(metadata=ObjectMeta(name=f"probe-{uuid.uuid4().hex[:8]}")))
        except Forbidden as error:
            return "bound to no node" in error.message
    return False


async def _delete(client: Client, body: dict[str, object]) -> None:
    meta = body["metadata"]
    assert isinstance(meta, dict)
    resource = await client.resource(str(body["apiVersion"]), str(body["kind"]))
    await client.request("DELETE", resource.path(meta.get("namespace"), meta["name"]))


def as_bearer(agents: Agents, token: str) -> Client:
    config = load_config(agents.kubeconfig(token))
    return Client(dataclasses.replace(config, credentials=StaticToken(token)), timeout_s=20)


async def say(client: Client, node: str, status: NodeHealthStatus) -> NodeHealth:
    """Write a status as an agent does."""
    patch = [{"op": "add", "path": "/status", "value": status}]
    return await client.patch(NodeHealth, node, patch, subresource="status", content_type=JSON_PATCH)


async def test_an_agent_writes_its_own_nodes_record_and_never_another_ones(chart: Agents) -> None:
    mine, other = (await chart.machine()).node, (await chart.machine()).node
    uids = {name: (await chart.client.get(Node, name)).uid for name in (mine, other)}
    await chart.client.create(NodeHealth(metadata=ObjectMeta(name=other)))  # the administrator is exempt
    async with as_bearer(chart, await chart.token(mine)) as client:
        await client.create(NodeHealth(metadata=ObjectMeta(name=mine)))
        assert (await say(client, mine, NodeHealthStatus(node_uid=uids[mine], time=NOW))).status.time == NOW

        with pytest.raises(Forbidden, match=f"bound to node {mine}"):
            await say(client, other, NodeHealthStatus(node_uid=uids[other], time=NOW))
        with pytest.raises(Forbidden, match=f"bound to node {mine}"):
            await client.create(NodeHealth(metadata=ObjectMeta(name="not-there-yet")))
        with pytest.raises(Forbidden, match=r"status\.nodeUID"):
            await say(client, mine, NodeHealthStatus(node_uid=uids[other], time=NOW))
    assert (await chart.client.get(NodeHealth, other)).status == NodeHealthStatus()
    assert (await chart.client.get(NodeHealth, mine)).status.node_uid == uids[mine]


async def test_only_agents_write_records_whatever_roles_others_have(chart: Agents) -> None:
    node = (await chart.machine()).node
    await chart.client.create(NodeHealth(metadata=ObjectMeta(name=node)))
    name = f"stranger-{uuid.uuid4().hex[:8]}"
    rules = await account_of_agents(chart.client, SYSTEM_NAMESPACE, name)
    async with as_bearer(chart, await chart.token(node, name)) as stranger:
        await until_allowed(stranger, rules[0])
        with pytest.raises(Forbidden, match="only a node's own agent"):
            await say(stranger, node, NodeHealthStatus(time=NOW))
    unbound = (await chart.client.create_token(ACCOUNT, TokenRequest(), namespace=SYSTEM_NAMESPACE)).status.token
    async with as_bearer(chart, unbound) as nowhere:
        with pytest.raises(Forbidden, match="bound to no node"):
            await say(nowhere, node, NodeHealthStatus(time=NOW))


async def test_an_agent_may_do_nothing_else(chart: Agents) -> None:
    node = (await chart.machine()).node
    async with as_bearer(chart, await chart.token(node)) as client:
        for kind in (Node, Pod, NodeHealth, Secret, ConfigMap):
            with pytest.raises(Forbidden):
                await client.list(kind)
        with pytest.raises(Forbidden):
            await client.get(Node, node)
        await client.create(NodeHealth(metadata=ObjectMeta(name=node)))
        with pytest.raises(Forbidden):
            await client.delete(NodeHealth, node)
        with pytest.raises(Forbidden):
            await client.patch(NodeHealth, node, {"metadata": {"labels": {"a": "b"}}})


async def test_the_agent_itself_works_with_the_charts_rights_and_cannot_pose_as_another(chart: Agents) -> None:
    machine, other = await chart.machine(), await chart.machine()
    machine.say(XID)
    await chart.start(machine)
    health = await chart.until_found(machine.node, "xid", "79")
    assert health.node_uid == (await chart.client.get(Node, machine.node)).uid

    other.say(XID)
    poses = Agent(other, chart.kubeconfig(await chart.token(machine.node)), "")
    try:
        await until("it says why it cannot", lambda: "correct --node" in poses.said())
    finally:
        poses.child.stop()
    with pytest.raises(NotFound):
        await chart.client.get(NodeHealth, other.node)
