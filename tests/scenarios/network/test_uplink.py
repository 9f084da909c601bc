"""Issue 16 B: agents connect to the hub with tokens of the API server, and get the fair shares of their pods."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from muster.api.names import LABEL_GANG, LABEL_TEAM
from muster.controlplane.children import Child
from muster.controlplane.ports import free_port
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.errors import NotFound
from muster.kube.objects.auth import BoundObjectReference, TokenRequest, TokenRequestSpec
from muster.kube.objects.container import Container
from muster.kube.objects.core import ConfigMap, ServiceAccount
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod, PodSpec
from muster.network.config import CONFIG_KEY, CONFIG_MAP
from muster.network.uplink.controller import UplinkController
from muster.network.uplink.hub import Hub
from muster.network.uplink.link import Link, tls_dial
from muster.network.uplink.program import AGENT_ACCOUNT, SERVICE, hub_server
from muster.network.uplink.wire import AUDIENCE, Pair, PodDemand
from tests.support.apiserver import ApiServer
from tests.support.namespaces import install_kinds, make_namespace
from tests.support.waiting import until

M = 10**6
LINE = Pair(1000 * M, 1000 * M)
CONFIG = """
uplink:
  enabled: true
  budget: {{in: {budget}M, out: 100M}}
  staticShare: {{in: 1M, out: 1M}}
  floor: {{in: 100k, out: 100k}}
  teams: {{red: 3, blue: 1}}
  nodeSelector: {{test: {test}}}
"""


class Fleet:
    """The nodes, pods and agents of a test."""

    def __init__(self, client: Client, namespace: str, folder: Path) -> None:
        self.client, self.namespace, self._folder = client, namespace, folder
        self.test = uuid.uuid4().hex[:8]
        self.port = 0
        self.hub: Hub | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._nodes: list[str] = []

    async def configure(self, budget: int, enabled: bool = True) -> None:
        text = CONFIG.format(budget=budget, test=self.test)
        data = {CONFIG_KEY: text if enabled else text.replace("enabled: true", "enabled: false")}
        await self.client.patch(ConfigMap, CONFIG_MAP, {"data": data}, namespace=self.namespace)

    async def node(self) -> str:
        name = f"node-{uuid.uuid4().hex[:8]}"
        await self.client.create(Node(metadata=ObjectMeta(name=name, labels={"test": self.test})))
        self._nodes.append(name)
        return name

    async def pod(self, node: str, account: str = "default", **labels: str) -> Pod:
        meta = ObjectMeta(name=f"pod-{uuid.uuid4().hex[:8]}", namespace=self.namespace, labels=labels)
        spec = PodSpec(node_name=node, service_account_name=account, containers=(Container(name="main", image="main"),))
        return await self.client.create(Pod(metadata=meta, spec=spec))

    async def token(self, node: str, account: str = AGENT_ACCOUNT, audience: str = AUDIENCE) -> str:
        """A token as the kubelet of the node asks for it."""
        pod = await self.pod(node, account)
        bound = BoundObjectReference(kind="Pod", api_version="v1", name=pod.name, uid=pod.uid)
        spec = TokenRequestSpec(audiences=(audience,), bound_object_ref=bound)
        return (await self.client.create_token(account, TokenRequest(spec=spec), namespace=self.namespace)).status.token

    async def link(self, node: str, token: str) -> Link:
        authorities = self._folder / "ca.crt"
        published = await self.client.get(ConfigMap, SERVICE, self.namespace)
        await asyncio.to_thread(authorities.write_text, published.data["ca.crt"])
        dial = tls_dial(("127.0.0.1", self.port), f"{SERVICE}.{self.namespace}.svc", authorities)
        link = Link(node, dial, lambda: token)
        self.start(link.run())
        return link

    def start(self, work: Any) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for name in self._nodes:
            with contextlib.suppress(Exception):
                await self.client.delete(Node, name)


@pytest.fixture
async def fleet(cluster_config: ClusterConfig, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Client(cluster_config, timeout_s=20) as client:
        namespace = f"uplink-{uuid.uuid4().hex[:8]}"
        await make_namespace(client, namespace)
        await client.create(ServiceAccount(metadata=ObjectMeta(name=AGENT_ACCOUNT, namespace=namespace)))
        await client.create(ConfigMap(metadata=ObjectMeta(name=CONFIG_MAP, namespace=namespace)))
        registry = CollectorRegistry()
        fleet = Fleet(client, namespace, tmp_path)
        await fleet.configure(400)
        async with hub_server(client, namespace, "127.0.0.1", 0, registry=registry) as server:
            fleet.port, fleet.hub = server.port, server.hub
            fleet.start(server.work)
            fleet.start(UplinkController(client, namespace, server.hub, registry=registry).run())
            try:
                yield fleet
            finally:
                await fleet.end()


def rate(link: Link, pod: Pod) -> int:
    found = link.rates.pods.get(pod.uid) if link.rates is not None else None
    return found.in_bps // M if found is not None else 0


def follow(fleet: Fleet, link: Link) -> None:
    """Confirm the rates of a link as an agent that applies them at once."""

    async def confirm() -> None:
        while True:
            await link.changed.wait()
            link.changed.clear()
            assert link.rates is not None
            link.applied(link.rates, link.rates.total)

    fleet.start(confirm())


async def test_pods_of_two_nodes_share_the_budget_by_the_weights_of_their_teams(fleet: Fleet) -> None:
    links, pods = [], []
    for team in ("red", "blue"):
        node = await fleet.node()
        pod = await fleet.pod(node, **{LABEL_TEAM: team, LABEL_GANG: f"job-{team}"})
        link = await fleet.link(node, await fleet.token(node))
        follow(fleet, link)
        link.report(LINE, {pod.uid: PodDemand(10 * M, 0, LINE.in_bps, 0)})
        links.append(link)
        pods.append(pod)
    await until("the shares are 3:1", lambda: (rate(links[0], pods[0]), rate(links[1], pods[1])) == (299, 100))
    assert fleet.hub is not None
    page = fleet.hub.page()
    assert page is not None
    assert {(row.team, row.job, row.pod) for row in page.subjects} == {
        (team, f"job-{team}", pod.name) for team, pod in zip(("red", "blue"), pods, strict=True)
    }
    await fleet.configure(40)
    await until("the shares of the new budget", lambda: (rate(links[0], pods[0]), rate(links[1], pods[1])) == (29, 10))
    links[0].report(LINE, {})
    await until("the idle share is used", lambda: rate(links[1], pods[1]) == 39)
    await fleet.configure(40, enabled=False)
    await until("the agents are sent away", lambda: all("Off" in link.problem for link in links))


async def test_token_of_another_node_account_or_audience_is_refused(fleet: Fleet) -> None:
    node, other = await fleet.node(), await fleet.node()
    await until("the hub is open", lambda: fleet.hub is not None and fleet.hub.page() is not None)
    wrong_node = await fleet.link(node, await fleet.token(other))
    wrong_account = await fleet.link(node, await fleet.token(node, "default"))
    wrong_audience = await fleet.link(node, await fleet.token(node, audience="https://kubernetes.default.svc"))
    forged = await fleet.link(node, "forged")
    await until("the node is refused", lambda: "WrongNode" in wrong_node.problem)
    for link in (wrong_account, wrong_audience, forged):
        await until("the token is refused", lambda link=link: "Unauthenticated" in link.problem)
    assert fleet.hub is not None
    assert not fleet.hub.sessions


async def test_process_of_the_controller_serves_the_hub_and_the_page_of_the_command(
    api_server: ApiServer, cluster_config: ClusterConfig, tmp_path: Path
) -> None:
    namespace, metrics = f"uplink-{uuid.uuid4().hex[:8]}", free_port()
    async with Client(cluster_config, timeout_s=20) as client:
        await install_kinds(client)
        await make_namespace(client, namespace)
        await client.create(ServiceAccount(metadata=ObjectMeta(name=AGENT_ACCOUNT, namespace=namespace)))
        await client.create(ConfigMap(metadata=ObjectMeta(name=CONFIG_MAP, namespace=namespace)))
        fleet = Fleet(client, namespace, tmp_path)
        await fleet.configure(400)
        fleet.port = free_port()
        command = (
            f"{sys.executable} -m muster.cli.main controller --kubeconfig={api_server.kubeconfig} --lease-duration=3 "
            f"--namespace={namespace} --metrics-listen=127.0.0.1:{metrics} --uplink-listen=127.0.0.1:{fleet.port}"
        )
        controller = Child(command.split(), tmp_path / "controller.log", dict(os.environ))
        try:
            node = await fleet.node()
            pod = await fleet.pod(node, **{LABEL_TEAM: "red", LABEL_GANG: "train"})
            await until("the authority is published", lambda: _published(client, namespace), ignoring=(NotFound,))
            link = await fleet.link(node, await fleet.token(node))
            follow(fleet, link)

            def measured() -> bool:  # the node reports each measurement, as its enforcer does
                link.report(LINE, {pod.uid: PodDemand(10 * M, 0, LINE.in_bps, 0)})
                return rate(link, pod) == 399

            await until("the pod has the budget", measured)
            show = ["-m", "muster.cli.main", "network", "uplink", f"--url=http://127.0.0.1:{metrics}", "-o", "json"]
            done = await asyncio.to_thread(
                subprocess.run, [sys.executable, *show], capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, done.stderr
            (row,) = json.loads(done.stdout)["subjects"]
            assert (row["job"], row["team"], row["node"], row["rate"][0] // M) == ("train", "red", node, 399)
            await asyncio.to_thread(controller.stop, 10)
            await until("the connection is lost", lambda: not link.connected)
            assert rate(link, pod) == 399
        finally:
            await asyncio.to_thread(controller.stop, 10)
            await fleet.end()


async def _published(client: Client, namespace: str) -> ConfigMap:
    return await client.get(ConfigMap, SERVICE, namespace)
