"""A pool of nodes of one test's own, a ConfigMap about it, and the controller of teams."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry

from muster.api.names import ANNOTATION_TEAM_RECORD, TEAMS_CONFIG_KEY, TEAMS_CONFIG_MAP
from muster.kube.client import Client
from muster.kube.leader import LeaderElector
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.teams.controller import TeamsController
from tests.support.waiting import until

SELECTOR = "muster.dev/test-pool"
LEASE = "muster-teams-test"


class TeamCluster:
    """Nodes that say they are ready, labelled for this test alone, and managers of them."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.pool = uuid.uuid4().hex[:10]
        self.key = f"muster.dev/team-{self.pool}"
        self._tasks: list[asyncio.Task[None]] = []

    async def add_nodes(self, count: int) -> list[str]:
        names = [f"{self.pool}-n{number}" for number in range(count)]
        for name in names:
            meta = {"name": name, "labels": {SELECTOR: self.pool}}
            await self.client.create({"apiVersion": "v1", "kind": "Node", "metadata": meta})
            await self.set_ready(name, True)
        return names

    async def set_ready(self, name: str, ready: bool) -> None:
        condition = {"type": "Ready", "status": str(ready), "reason": "Test", "message": ""}
        await self.client.patch(Node, name, {"status": {"conditions": [condition]}}, subresource="status")

    async def configure(self, **amounts: Any) -> None:
        """Write the ConfigMap with these shares of the pool."""
        selector = f"{{{SELECTOR}: {self.pool!r}}}"
        lines = [f"- {{nodeSelector: {selector}, team: {team}, amount: {each}}}" for team, each in amounts.items()]
        await self.configure_text("\n".join([f"teamKey: {self.key}", "allocations:", *lines]))

    async def configure_text(self, text: str) -> None:
        meta = ObjectMeta(name=TEAMS_CONFIG_MAP, namespace=self.namespace)
        config = ConfigMap(metadata=meta, data={TEAMS_CONFIG_KEY: text})
        known = (await self.client.list(ConfigMap, self.namespace)).items
        if any(each.name == TEAMS_CONFIG_MAP for each in known):
            await self.client.patch(
                ConfigMap, TEAMS_CONFIG_MAP, {"data": {TEAMS_CONFIG_KEY: text}}, namespace=self.namespace
            )
        else:
            await self.client.create(config)

    def manage(self, client: Client | None = None, *, lease: str = "", **options: Any) -> TeamsController:
        """Start a manager; with a lease it works only while it holds that."""
        client = client or self.client
        settings = {"broken_after_s": 0.2, "healthy_after_s": 60.0, "request_timeout_s": 5.0, **options}
        settings.setdefault("registry", CollectorRegistry())
        identity = f"manager-{len(self._tasks)}"
        controller = TeamsController(client, self.namespace, identity, **settings)
        if not lease:
            self._tasks.append(asyncio.create_task(controller.run()))
            return controller
        elector = LeaderElector(
            client, lease, self.namespace, identity, lease_duration_s=3, renew_deadline_s=2, retry_period_s=0.3
        )
        self._tasks.append(asyncio.create_task(elector.run()))
        self._tasks.append(asyncio.create_task(elector.while_leading(lambda term: controller.run(term=term), "teams")))
        return controller

    async def nodes(self) -> Mapping[str, Node]:
        found = (await self.client.list(Node, label_selector=f"{SELECTOR}={self.pool}")).items
        return {node.name: node for node in found}

    async def owners(self) -> dict[str, int]:
        """Nodes by owner, where label, taint and record agree; what they do not agree on is under "torn"."""
        counted: Counter[str] = Counter()
        for node in (await self.nodes()).values():
            label = node.metadata.labels.get(self.key, "")
            taints = [taint.value for taint in node.spec.taints if taint.key == self.key]
            recorded = f'"team":"{label}"' in node.metadata.annotations.get(ANNOTATION_TEAM_RECORD, '"team":""')
            counted[label if taints == [label] * bool(label) and recorded else "torn"] += 1
        return {owner: count for owner, count in sorted(counted.items()) if owner}

    async def until_owned(self, **expected: int) -> None:
        async def as_expected() -> bool:
            return await self.owners() == expected

        await until(f"nodes are owned as {expected}, not {await self.owners()}", as_expected)

    async def stop(self) -> None:
        """End all managers."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def end_first(self) -> None:
        """End the manager that was started first, with its elector."""
        first, self._tasks = self._tasks[:2], self._tasks[2:]
        for task in first:
            task.cancel()
        await asyncio.gather(*first, return_exceptions=True)

    async def clean(self) -> None:
        await self.stop()
        for name in await self.nodes():
            await self.client.delete(Node, name)
