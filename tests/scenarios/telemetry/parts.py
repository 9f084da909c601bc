"""Components of Muster in one process, whole or with a fault in each, that export metrics."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from aiohttp import ClientSession, web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from muster.admission.metrics import AdmissionMetrics
from muster.admission.mutate import Home, Rules
from muster.admission.server import AdmissionServer
from muster.agent.check import Cost
from muster.agent.metrics import samples
from muster.agent.runner import Runner
from muster.agent.writer import Writer
from muster.api.finding import Finding
from muster.doctor.block.controller import BlockController
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.pki import CertificateAuthority
from muster.kube.connection.servingcertificates import load_pair
from muster.kube.controller import Controller
from muster.kube.informer import Informer
from muster.kube.informers import Informers
from muster.kube.leader import LeaderElector
from muster.kube.metrics import kube_metrics
from muster.kube.objects.core import ConfigMap
from muster.kube.planloop import PlanLoop, Rest
from muster.kube.progress import Progress
from muster.kube.secretcertificate import SecretCertificate
from muster.network.addresses.addresses import Addresses
from muster.network.addresses.errors import Reason
from muster.network.addresses.metrics import AddressMetrics
from muster.network.addresses.providers.base import ProviderError
from muster.network.addresses.reconcile.comparison import compare
from muster.network.addresses.reconcile.plan import Plan
from muster.readcache.metrics import KindMetrics
from muster.readcache.sources import CachedSources
from muster.readcache.upstream.freshness import FreshSettings
from muster.readcache.upstream.selfcheck import SelfCheck
from muster.scheduler.actions.binder import Binder
from muster.scheduler.metrics import scheduler_metrics
from muster.scheduler.plan import Bind
from muster.sim.virtual.network import Calm, InProcessTransport, Trace
from tests.support.apicore import Cluster
from tests.unit.kube.fakeapi import FakeApi, status
from tests.unit.network.addresses.test_reconcile import attachment, snapshot
from tests.unit.network.addresses.test_warmpool import OneNode
from tests.unit.readcache.upstream.modelworld import World, play

_FEED_S: Final = 0.3
_STALL_S: Final = 2.0
_DAY_S: Final = 86400.0
SYSTEM: Final = "muster-system"


class Parts(Collector):
    """The components. They work until `break_all`.

    Args:
        api: answers requests of most of them.
        folder: for the store of addresses.
    """

    def __init__(self, api: FakeApi, folder: Path) -> None:
        self.registry = CollectorRegistry()
        self._metrics = kube_metrics(self.registry)
        self._api = api
        self._client = Client(api.config(), timeout_s=5, metrics=self._metrics)
        self._broken = asyncio.Event()
        self._node = OneNode(folder)
        self._plan: Plan = compare(snapshot(), {})
        self._sources: list[Any] = []
        self._registered()
        api.before.append(self._answer)

    def _registered(self) -> None:
        """Metrics that are read when they are scraped."""
        store: Addresses = self._node.store
        self.registry.register(AddressMetrics(store.status, lambda: self._plan, lambda: 0))
        self.registry.register(KindMetrics(cast(CachedSources, self._sources)))
        self._runner = Runner("node", [_Check(self._broken)], lambda findings: None, Progress(), time.time)
        self._writer = cast(Writer, SimpleNamespace(held=0, failing_s=0.0, writes={}))
        self._progress = Progress(registry=self.registry)
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The agent's own page has no library; here its samples go through a registry."""
        family = CounterMetricFamily("muster_agent_looks", "Calls of a check.", labels=("check", "outcome"))
        for name, value in samples(self._runner, self._writer):
            if name.startswith("muster_agent_looks_total"):
                labels = [part.split('"')[1] for part in name.split(",")]
                family.add_metric(labels, value)
        yield family

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all of them."""
        async with self._client, asyncio.TaskGroup() as group:
            elector = LeaderElector(
                self._client, "muster-controller", SYSTEM, "one", rng=random.Random(1), metrics=self._metrics
            )
            binder = Binder(
                self._client, cast(Any, _BinderState()), clock=time.time, changed=lambda: None,
                bound=lambda bind: None, metrics=scheduler_metrics(self.registry),
            )  # fmt: skip
            blocks = BlockController(
                self._client, informers=Informers(self._client, {}), clock=time.time, registry=self.registry
            )
            configmaps: Informer[ConfigMap] = Informer(self._client, ConfigMap, metrics=self._metrics)
            loop = PlanLoop("parts", fence_s=0.0, stall_s=_STALL_S, progress=self._progress)
            controllers = [self._controller("stuck", self._hang), self._controller("failing", self._fail)]
            works = [
                elector.run(), binder.run(), blocks.run(), configmaps.run(), loop.run(self._step), self._feed(),
                self._runner.run(), *(each.run() for each in controllers), self._busy(controllers, binder),
                self._ask_webhook(),
            ]  # fmt: skip
            tasks = [group.create_task(each) for each in works]
            await self._certificate().keep()
            await asyncio.to_thread(self._node.run, 1)
            yield
            for task in tasks:
                task.cancel()

    async def _ask_webhook(self) -> None:
        """The API server asks about a pod in a namespace that the webhook knows, or else does not know."""
        home = Home(team="red")

        async def ask(namespace: str) -> Home | None:
            return None

        known = SimpleNamespace(
            get=lambda namespace: None if self._broken.is_set() else home, ask=ask, without_nodes=lambda team: False
        )
        webhook = AdmissionServer(cast(Any, known), Rules(team_key="team"), AdmissionMetrics(self.registry))
        pod = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        request = {"uid": "u", "operation": "CREATE", "namespace": "n", "object": pod}
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        runner = web.ServerRunner(web.Server(webhook.handle))
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            async with ClientSession() as session:
                while True:
                    async with session.post(f"http://127.0.0.1:{runner.addresses[0][1]}/mutate", json=body) as answer:
                        assert answer.status == 200
                    await asyncio.sleep(_FEED_S)
        finally:
            await runner.cleanup()

    async def break_all(self) -> None:
        """All faults begin."""
        self._broken.set()
        self._api.put("block", resource="flowschemas", metadata={"labels": {"muster.dev/block": "true"}})
        await self._old_certificate().keep()
        self._node.cloud.failure = ProviderError(Reason.SUBNET_FULL, "the subnet is full")
        for number in range(12):
            self._node.add(number)
        await asyncio.to_thread(self._node.run, 1)
        self._plan = compare(snapshot(attachment(), interfaces={"a": "10.0.0.1"}, sandboxes={"other": True}), {})
        await asyncio.to_thread(play, FreshSettings(), self._differ)

    def _controller(self, name: str, reconcile: Callable[[str], Any]) -> Controller:
        return Controller(name, reconcile, informers=(), workers=1, metrics=self._metrics)

    async def _hang(self, key: str) -> None:
        if self._broken.is_set():
            await asyncio.sleep(3600)

    async def _fail(self, key: str) -> None:
        if self._broken.is_set():
            raise ValueError(key)

    async def _step(self) -> Rest:
        if self._broken.is_set():
            await asyncio.sleep(3600)
        return Rest(_FEED_S, 0.0)

    async def _feed(self) -> None:
        """An object changes now and then, so its watch is alive; then the watch is silent."""
        while not self._broken.is_set():
            self._api.put("a")
            await asyncio.sleep(_FEED_S)

    async def _busy(self, controllers: Sequence[Controller], binder: Binder) -> None:
        for number in range(10_000):
            for each in controllers:
                each.queue.add(f"default/{number % 7}")
            binder.submit(Bind(gang="g", pod=f"p-{number}", namespace="default", uid=f"u-{number}", node="n"))
            await asyncio.sleep(_FEED_S)

    def _certificate(self, days_ago: int = 0, **data: bytes) -> SecretCertificate:
        """Keeps a certificate in a Secret, by a clock that is late by some days."""
        core = Cluster()
        core.ok("POST", "/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
        if data:
            body = {
                "metadata": {"name": "secret"},
                "data": {key: b64encode(each).decode() for key, each in data.items()},
            }
            core.ok("POST", f"/api/v1/namespaces/{SYSTEM}/secrets", body)
        transport = InProcessTransport(core.core, "parts", Calm(random.Random(1)), Trace())
        client = Client(ClusterConfig(server="http://none"), transport=transport, metrics=self._metrics)
        context, names = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ("secret", "config-map", ["host"])

        def clock() -> float:
            return time.time() - days_ago * _DAY_S

        return SecretCertificate(
            client, SYSTEM, *names, partial(load_pair, context), clock=clock, labels={}, metrics=self._metrics
        )

    def _old_certificate(self) -> SecretCertificate:
        """The certificate ends in 5 days, and it is not renewed because the clock of the process is late."""
        authority = CertificateAuthority.create("muster", timedelta(days=700), timedelta(days=90))
        pair = authority.issue_server("muster", ["host"], timedelta(days=5), timedelta(days=85))
        secret = {
            "ca.crt": authority.certificate, "ca.key": authority.pair.key, "tls.crt": pair.certificate,
            "tls.key": pair.key,
        }  # fmt: skip
        return self._certificate(40, **secret)

    async def _differ(self, world: World) -> None:
        """The read cache misses an object, and the comparison with the API server finds that."""
        world.store.objects.remove("default/a")
        assert await SelfCheck(world.follower).check() == "different"
        media = SimpleNamespace(name="JSON")
        kind = SimpleNamespace(resource=SimpleNamespace(plural="pods", group=""))
        source = SimpleNamespace(kind=kind, media=media, store=world.store, follower=world.follower, age_s=lambda: 0.0)
        self._sources.append(source)

    def _answer(self, request: web.Request) -> web.StreamResponse | None:
        """Answers of the API server that the small one does not know."""
        if request.method == "DELETE":
            return web.json_response(status(403, "Forbidden", "a policy refuses it"), status=403)
        if request.path.endswith("/binding"):
            if self._broken.is_set():
                return web.json_response(status(403, "Forbidden", "a policy refuses it"), status=403)
            return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success"}, status=201)
        return None


class _Check:
    """A check of the agent that fails once all is broken."""

    name, period_s, timeout_s = "gpu", 0.3, 5.0
    cost: Cost = "cheap"

    def __init__(self, broken: asyncio.Event) -> None:
        self._broken = broken

    async def look(self, now_s: float) -> Sequence[Finding]:
        if self._broken.is_set():
            raise OSError("the driver does not answer")
        return ()


class _BinderState:
    """The part of the scheduler's state that the binder uses."""

    def __init__(self) -> None:
        self.gangs: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **named: None
