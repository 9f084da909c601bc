"""Starts the data cache of a node when a pod of the node first asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp

from muster.api.cache_ticket import CACHE_CONFIG_MAP, TICKET_KEY
from muster.api.names import SYSTEM_NAMESPACE
from muster.embedded import programs
from muster.embedded.layout import ClusterSpec, Layout
from muster.kube.client import Client
from muster.kube.errors import ApiError
from muster.kube.objects.core import ConfigMap

_PERIOD_S = 0.1
_TICKET_KEY_S = 3.0


class NodeCaches:
    """Adds the caches of nodes to the programs of the daemon. A node without a request has no process and no files."""

    def __init__(self, layout: Layout, spec: ClusterSpec, add: Callable[[programs.Program], None]) -> None:
        """`add` gets each cache once."""
        self._layout = layout
        self._waiting = set(range(spec.nodes)) if spec.has_caches else set()
        self._spec = spec
        self._add = add

    async def run(self, client: Client) -> None:
        """Start the caches of nodes whose kubelet has created the folder for the socket. Ends with the last one."""
        ticket_key = None
        while self._waiting:
            asked = self.asked()
            if asked and ticket_key is None:
                ticket_key = await self._read_ticket_key(client)
            for number in asked:
                self._add(programs.cache(self._layout, self._spec, number, ticket_key))
                self._waiting.discard(number)
            await asyncio.sleep(_PERIOD_S)

    def asked(self) -> list[int]:
        """Return the numbers of nodes that need a cache and have none."""
        names = self._spec.node_names()
        return [number for number in sorted(self._waiting) if self._layout.cache(names[number]).sockets.is_dir()]

    async def _read_ticket_key(self, client: Client) -> Path | None:
        """Write the key that verifies tickets of jobs to a file, and return its path.

        The controller publishes the key when it begins to lead. Returns None if it has not done so within 3 s: the
        cache then identifies jobs by the user of their process.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _TICKET_KEY_S
        while loop.time() < deadline:
            try:
                found = await client.get(ConfigMap, CACHE_CONFIG_MAP, SYSTEM_NAMESPACE)
                key = found.data.get(TICKET_KEY, "")
            except (ApiError, OSError, aiohttp.ClientError):
                key = ""
            if key:
                return self._written(key)
            await asyncio.sleep(_PERIOD_S)
        print("no key for tickets of jobs in ConfigMap muster-cache: caches start without one", flush=True)
        return None

    def _written(self, key: str) -> Path | None:
        path = self._layout.caches / TICKET_KEY
        try:
            path.write_text(key)
        except OSError as error:
            print(f"cannot write {path}: {error}; caches start without it", flush=True)
            return None
        return path
