"""A client that knows what its informers have: the process that uses it decides by that, and not by what exists.

async with HearingClient(load_config(kubeconfig)) as client:
    task = asyncio.create_task(SchedulerController(client, ...).run(stop))
    changed = await admin.patch(Node, name, ...)
    await client.until_heard(changed)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from muster.kube.client import Client
from muster.kube.objects.meta import KubeObject, Listing
from muster.kube.watch import WatchEvent
from tests.support.waiting import until


class HearingClient(Client):
    """Notes the newest version of each kind that its user has listed or watched. Nothing else may list through it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._heard: dict[type[Any], int] = {}

    async def list(self, kind: type[Any], *arguments: Any, **options: Any) -> Listing[Any]:
        listing = await super().list(kind, *arguments, **options)
        self._note(kind, listing.resource_version)
        return listing

    async def watch_batches(
        self, kind: type[Any], *arguments: Any, **options: Any
    ) -> AsyncGenerator[Sequence[WatchEvent[Any]], None]:
        async for batch in super().watch_batches(kind, *arguments, **options):
            yield batch
            for event in batch:
                self._note(kind, event.object.metadata.resource_version)

    def _note(self, kind: type[Any], version: str) -> None:
        self._heard[kind] = max(self._heard.get(kind, 0), int(version or 0))

    async def until_heard(self, changed: KubeObject) -> None:
        """Wait until its user has this object as it is, or a newer state of the kind."""
        kind, version = type(changed), int(changed.metadata.resource_version)
        await until(f"{changed.name} is heard of", lambda: self._heard.get(kind, 0) >= version)
