"""Sees pods bound, on a connection and an account of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import msgspec

from bench.gang_spike.shape import NAMESPACE
from muster.kube.client import Client
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import KubeStruct
from muster.kube.watch import BOOKMARK, DELETED


class _Spec(KubeStruct):
    node_name: str = ""


class BoundPod(KubeObject):
    """A pod and its node."""

    RESOURCE: ClassVar[Resource] = Pod.RESOURCE

    spec: _Spec = msgspec.field(default_factory=_Spec)


class Watcher:
    """The bound pods that a watch has seen.

    Attributes:
        node_of: bound pod's name -> node.
        first_s, last_s: the event loop's time at the first and the newest pod seen bound.
    """

    def __init__(self) -> None:
        self.node_of: dict[str, str] = {}
        self.first_s = self.last_s = 0.0
        self._moved = asyncio.Event()

    async def until(self, bound: int, timeout_s: float) -> bool:
        """Wait until exactly so many pods are bound. Returns whether that was in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while len(self.node_of) != bound:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return False
        return True

    def sharing(self) -> list[str]:
        """Nodes that more than one pod was bound to; one takes all of it."""
        return [node for node, pods in Counter(self.node_of.values()).items() if pods > 1]

    def _bound(self, pod: BoundPod, now: float) -> None:
        if pod.name not in self.node_of:
            self.node_of[pod.name] = pod.spec.node_name
            self.first_s, self.last_s = self.first_s or now, now

    async def follow(self, client: Client, resource_version: str) -> None:
        """Follow the watch until cancelled; it is resumed where it breaks."""
        clock = asyncio.get_running_loop().time
        while True:
            batches = client.watch_batches(BoundPod, NAMESPACE, resource_version=resource_version, timeout_s=3600)
            async for batch in batches:
                now = clock()
                for event in batch:
                    resource_version = event.resource_version
                    if event.type == DELETED:
                        self.node_of.pop(event.object.name, None)
                    elif event.type != BOOKMARK and event.object.spec.node_name:
                        self._bound(event.object, now)
                self._moved.set()


@asynccontextmanager
async def watching(client: Client) -> AsyncIterator[Watcher]:
    """Watch pods from now on."""
    listing = await client.list(BoundPod, NAMESPACE)
    watcher = Watcher()
    task = asyncio.create_task(watcher.follow(client, listing.resource_version))
    try:
        yield watcher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
