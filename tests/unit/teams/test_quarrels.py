"""Two managers at once, whose requests get lost and whose clocks are a day apart, while hands and kubelets act."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from muster.api.crd import KINDS, definition
from muster.api.names import ANNOTATION_TEAM_RECORD
from muster.embedded.apiserver.request import Request
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.metrics import kube_metrics
from muster.kube.objects.node import Node
from muster.sim.virtual.network import Calm, Fate, InProcessTransport, Trace, WatchFate
from muster.teams import executor
from tests.support.apicore import Cluster
from tests.support.teamclusters import TeamCluster
from tests.support.virtualtime import in_virtual_time

DAY_S = 86_400.0
NODES = 6
STEPS = 30


class Storm(Calm):
    """One write in four is not acted on, or acted on without an answer; watches break."""

    blows = True

    def request(self, method: str, path: str) -> Fate:
        fate, dice = super().request(method, path), self._rng.random()
        if method == "GET" or not self.blows or dice > 0.25:
            return fate
        return Fate(
            fate.there_s, fate.back_s, unsent=dice < 0.08, broken=0.08 <= dice < 0.16, refused=403 * (dice > 0.16)
        )

    def watch(self, path: str) -> WatchFate:
        return WatchFate(breaks_after_s=self._rng.uniform(0.05, 0.5)) if self.blows else WatchFate()


class Witness:
    """Sees each node as every manager's write left it."""

    def __init__(self) -> None:
        self.writes = 0
        self.key = ""

    def __call__(self, now: float, client: str, request: Request, code: int, body: bytes) -> None:
        if request.method != "PATCH" or not request.path.startswith("/api/v1/nodes/") or code != 200:
            return
        self.writes += 1
        node = json.loads(body)
        label = node["metadata"]["labels"].get(self.key)
        taints = [taint["value"] for taint in node["spec"].get("taints", ()) if taint["key"] == self.key]
        record = json.loads(node["metadata"]["annotations"][ANNOTATION_TEAM_RECORD])["team"]
        assert taints == ([label] if label else []), f"{client}: {label}, {taints}"
        assert (label or "") == record, f"{client}: {label}, {record}"


class Quarrel:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        core = Cluster()
        for kind in KINDS:
            core.ok("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition(kind))
        core.ok("POST", "/api/v1/namespaces", {"metadata": {"name": "muster-system"}})
        self._core = core.core
        self.witness, self.storms = Witness(), [Storm(random.Random(seed + number)) for number in range(2)]
        self.cluster = TeamCluster(self._client("people", Calm(self.rng), Trace()), "muster-system")
        self.witness.key = self.cluster.key
        self.failed: list[BaseException] = []

    def _client(self, name: str, fates: Calm, trace: Trace) -> Client:
        transport = InProcessTransport(self._core, name, fates, trace)
        metrics = kube_metrics(CollectorRegistry())
        rng = random.Random(name)
        return Client(ClusterConfig(server="http://none"), transport=transport, metrics=metrics, rng=rng)

    def manage(self) -> None:
        """Two managers, the second a day behind the first."""
        now = asyncio.get_running_loop().time
        for number, storm in enumerate(self.storms):
            trace = Trace()
            trace.listeners.append(self._witnessed)
            ahead_s = DAY_S * (1 - number)
            self.cluster.manage(
                self._client(f"manager {number}", storm, trace),
                clock=lambda ahead_s=ahead_s: now() + ahead_s,
                rng=random.Random(number),
                broken_after_s=0.05,
                healthy_after_s=0.2,
                request_timeout_s=0.5,
            )

    def _witnessed(self, *said: Any) -> None:
        try:
            self.witness(*said)
        except AssertionError as error:
            self.failed.append(error)

    async def happen(self) -> None:
        """One thing: another allocation, a hand on a node, a kubelet that fails or reports again."""
        names = sorted(await self.cluster.nodes())
        name, what = self.rng.choice(names), self.rng.randrange(6)
        if what < 2:
            await self.cluster.configure(vision=self.rng.randrange(4), speech=self.rng.randrange(4))
        elif what == 2:
            await self.cluster.client.patch(Node, name, {"metadata": {"labels": {self.cluster.key: None}}})
        elif what == 3:
            await self.cluster.client.patch(Node, name, {"spec": {"taints": None}})
        else:
            await self.cluster.set_ready(name, what == 4)
        await asyncio.sleep(self.rng.uniform(0.0, 0.05))


@pytest.fixture
def quarrel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Quarrel:
    monkeypatch.setattr(executor, "RETRY_S", 0.05)
    return Quarrel(request.param)


@pytest.mark.slow
@pytest.mark.parametrize("quarrel", range(5), indirect=True)
@in_virtual_time
async def test_two_managers_never_give_a_node_two_teams_and_agree_in_the_end(quarrel: Quarrel) -> None:
    cluster = quarrel.cluster
    await cluster.add_nodes(NODES)
    await cluster.configure(vision=2, speech=2)
    quarrel.manage()
    for _ in range(STEPS):
        await quarrel.happen()
    for storm in quarrel.storms:
        storm.blows = False
    for name in await cluster.nodes():
        await cluster.set_ready(name, True)
    await cluster.configure(vision=1, speech=3)
    await cluster.until_owned(vision=1, speech=3)
    assert quarrel.failed == []
    assert quarrel.witness.writes >= 4
