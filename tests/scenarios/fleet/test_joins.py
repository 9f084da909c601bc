"""Nodes join at a bounded pace, which falls when the API server refuses requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from muster.api.names import TAINT_JOINING
from muster.fleet.joins.account import account_of
from muster.fleet.joins.config import CONFIG_KEY, CONFIG_MAP
from muster.fleet.joins.controller import JoinController
from muster.fleet.joins.pace import Verdict
from muster.fleet.joins.record import ANNOTATION_JOIN_PACE, record_of
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import ApiError, TooManyRequests
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from tests.scenarios.scheduler.conftest import POOL, Cluster
from tests.support.anyserver import BY_JOINS
from tests.support.apiserver import ApiServer
from tests.support.waiting import until

PENDING = {"key": TAINT_JOINING, "value": "pending", "effect": "NoSchedule"}
FOREIGN = {"key": "example.com/owner", "value": "another", "effect": "NoSchedule"}
START, MOST = 4, 6


@dataclass
class Joining:
    """A cluster that nodes join, and what is seen of it once in each period, before any node is opened in that."""

    cluster: Cluster
    kind: str
    controller: JoinController = field(init=False)
    opened: list[tuple[int, int]] = field(default_factory=list)
    """Nodes opened since the period before, and how many were allowed."""
    refuse: bool = False
    before: int = 0
    halved: tuple[int, int, Verdict] | None = None
    _at_refusal: int = 0

    @property
    def client(self) -> Client:
        return self.cluster.client

    async def nodes(self) -> list[Node]:
        return (await self.client.list(Node, label_selector=f"{POOL}={self.cluster.namespace}")).items

    async def open_nodes(self) -> set[str]:
        return {node.name for node in await self.nodes() if all(t.key != TAINT_JOINING for t in node.spec.taints)}

    async def register(self, name: str, *taints: dict[str, str]) -> None:
        """As a kubelet does; its node is not Ready yet."""
        meta = {"name": name, "labels": {POOL: self.cluster.namespace}}
        await self.client.create(
            {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"taints": list(taints)}}, kind=Node
        )
        self.cluster.nodes.append(name)

    async def join(self, count: int) -> list[str]:
        names = [f"{self.cluster.namespace}-{number:02}" for number in range(count)]
        for name in names:
            await self.register(name, PENDING)
        for name in names:
            await self.cluster.set_ready(name, True)
        return names

    async def configure(self) -> None:
        selector = f"{{{POOL}: {self.cluster.namespace}}}"
        text = f"nodeSelector: {selector}\nperiodSeconds: 1\nstartNodes: {START}\nmaxNodes: {MOST}\n"
        meta = ObjectMeta(name=CONFIG_MAP, namespace=self.cluster.namespace)
        await self.client.create(ConfigMap(metadata=meta, data={CONFIG_KEY: text}))

    async def scrape(self) -> str:
        """What the controller asks for at the begin of each period; the API server's own page."""
        allowed = self.controller.pace.allowance
        now = len(await self.open_nodes())
        self.opened.append((now - self.before, allowed))
        self.before = now
        if self._at_refusal and self.halved is None:
            self.halved = self._at_refusal, allowed, self.controller.pace.verdict
        if self.refuse and now and not self._at_refusal:
            await self.refuse_requests(20)
            self._at_refusal = allowed
        return (await self.client.request("GET", "/metrics")).decode()

    async def refuse_requests(self, count: int) -> None:
        """The API server answers so many requests with 429."""
        refused = 0
        while refused < count:
            # Together: a flow without a share of the server may still have one request under way where none else is.
            refused += sum(await asyncio.gather(*(self._is_refused() for _ in range(40))))

    async def _is_refused(self) -> bool:
        try:
            if self.kind == "embedded":  # which has no flow control: nothing else there is refused so
                await self.client.evict("guarded", namespace=self.cluster.namespace)
            else:
                user = {"Impersonate-User": self.cluster.namespace}
                await self.client.request("GET", "/api/v1/nodes", headers=user, retry_refused=False)
        except TooManyRequests:
            return True
        except ApiError:
            return False
        return False


@pytest.fixture
async def joining(api_server: ApiServer) -> AsyncIterator[Joining]:
    async with Client(load_config(api_server.kubeconfig)) as client:
        cluster = Cluster(client, api_server.kubeconfig)
        made = Joining(cluster, api_server.kind)
        task: asyncio.Task[None] | None = None
        try:
            await cluster.start()
            made.controller = JoinController(
                client, cluster.namespace, scrape=made.scrape, registry=CollectorRegistry()
            )
            task = asyncio.create_task(made.controller.run())
            yield made
            if task.done():
                task.result()
        finally:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await cluster.close()


@BY_JOINS
async def test_no_more_nodes_than_the_pace_are_opened_in_a_period(joining: Joining) -> None:
    await joining.configure()
    names = set(await joining.join(30))

    async def all_open() -> bool:
        return await joining.open_nodes() == names

    await until("all nodes have joined", all_open)
    assert all(opened <= allowed <= MOST for opened, allowed in joining.opened)
    assert sum(opened > 0 for opened, _ in joining.opened) >= 4, "of 30 nodes at most 6 join at a time"
    for node in await joining.nodes():
        record = record_of(node)
        assert record is not None
        assert record.opened
        assert "nodes in 1 s" in record.why
        account = account_of(node, (), None)
        assert account is not None
        assert account.state == "Joined"


async def test_the_pace_falls_when_the_api_server_refuses_requests(joining: Joining) -> None:
    async with refusals(joining):
        joining.refuse = True
        await joining.configure()
        names = set(await joining.join(30))

        async def all_open() -> bool:
            return await joining.open_nodes() == names

        await until("all nodes have joined all the same", all_open)
    assert joining.halved is not None
    before, after, verdict = joining.halved
    assert verdict is Verdict.OVERLOADED
    assert after == max(1, before // 2)

    async def said() -> bool:
        events = [event for event in await joining.cluster.events() if event.reason == "JoinsSlowed"]
        return any("refused" in event.message for event in events)

    await until("operators see the Event", said)
    config = await joining.client.get(ConfigMap, CONFIG_MAP, joining.cluster.namespace)
    assert json.loads(config.metadata.annotations[ANNOTATION_JOIN_PACE])["periodSeconds"] == 1


async def test_a_new_node_is_held_back_before_it_is_ready_and_others_are_left_alone(joining: Joining) -> None:
    cluster = joining.cluster
    old = f"{cluster.namespace}-old"
    await joining.register(old)
    await asyncio.sleep(1.1)  # what was made in the second of the ConfigMap counts as made after it
    await joining.configure()
    new = f"{cluster.namespace}-new"
    await joining.register(new, FOREIGN)

    async def held() -> bool:
        return new not in await joining.open_nodes()

    await until("the new node is held back", held)
    await cluster.set_ready(old, True)
    await cluster.set_ready(new, True)

    async def opened() -> Node | None:
        node = next(node for node in await joining.nodes() if node.name == new)
        return node if all(taint.key != TAINT_JOINING for taint in node.spec.taints) else None

    node = await until("it is opened once it is Ready", opened)
    assert FOREIGN["key"] in {taint.key for taint in node.spec.taints}
    before = next(node for node in await joining.nodes() if node.name == old)
    assert record_of(before) is None


@contextlib.asynccontextmanager
async def refusals(joining: Joining) -> AsyncIterator[None]:
    """Let some requests be refused with 429: evictions, or those of a user with no share of the server."""
    client, name = joining.client, joining.cluster.namespace
    if joining.kind == "embedded":
        pod = joining.cluster.pod("guarded", 0, 1)
        pod["metadata"] = {"name": "guarded", "namespace": name, "labels": {"app": "guarded"}}
        await client.create({**pod, "spec": {**pod["spec"], "schedulerName": "missing"}})
        selector = {"matchLabels": {"app": "guarded"}}
        budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "all"}}
        await client.request(
            "POST",
            f"/apis/policy/v1/namespaces/{name}/poddisruptionbudgets",
            body=json.dumps({**budget, "spec": {"minAvailable": 1, "selector": selector}}).encode(),
        )
        node = f"{name}-guarded"
        await joining.register(node)
        await client.bind("guarded", node, namespace=name, uid=(await joining.cluster.pods())[0].uid)
        status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        await client.request(
            "PATCH",
            f"/api/v1/namespaces/{name}/pods/guarded/status",
            body=json.dumps(status).encode(),
            headers={"Content-Type": "application/merge-patch+json"},
        )
        joining.cluster.nodes.remove(node)
        await client.patch(Node, node, {"metadata": {"labels": {POOL: "none"}}})
        try:
            yield
        finally:
            await client.delete(Node, node)
        return
    group = "flowcontrol.apiserver.k8s.io/v1"
    level = {
        "apiVersion": group,
        "kind": "PriorityLevelConfiguration",
        "metadata": {"name": name},
        "spec": {
            "type": "Limited",
            "limited": {
                "nominalConcurrencyShares": 0,
                "lendablePercent": 0,
                "borrowingLimitPercent": 0,
                "limitResponse": {"type": "Reject"},
            },
        },
    }
    subject = {"kind": "User", "user": {"name": name}}
    rule = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": True, "namespaces": ["*"]}
    schema = {
        "apiVersion": group,
        "kind": "FlowSchema",
        "metadata": {"name": name},
        "spec": {
            "priorityLevelConfiguration": {"name": name},
            "matchingPrecedence": 50,
            "rules": [{"subjects": [subject], "resourceRules": [rule]}],
        },
    }
    for made in (level, schema):
        await client.create(made)
    try:
        yield
    finally:
        for plural in ("flowschemas", "prioritylevelconfigurations"):
            await client.request("DELETE", f"/apis/{group}/{plural}/{name}")
