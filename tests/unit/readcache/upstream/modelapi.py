"""A model of kube-apiserver's list and watch of one kind, in virtual time: late events, rare bookmarks, faults.

Bookmarks come each minute and about 2 s before a watch's timeout, as storage/cacher sends them (nextBookmarkTime).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from muster.kube.connection.transport import Answer, NotSent
from muster.kube.errors import Gone, Unavailable
from tests.unit.readcache.upstream.scripted import bookmark, config_map, frame, listing

_TICK_S = 1.0
_BEFORE_TIMEOUT_S = 2.0
_MINUTE_S = 60.0


@dataclass
class ModelApi:
    """A transport.

    Attributes:
        lag_s: most that an event takes from the server to a watch.
        lists: requests for a whole state, paged or by WatchList.
        watches: other watches.
        away: refuse everything.
    """

    rng: random.Random
    lag_s: float = 0.5
    version: int = 100
    compacted: int = 0
    away: bool = False
    objects: dict[str, int] = field(default_factory=dict)
    events: list[tuple[int, str, str]] = field(default_factory=list)
    lists: int = 0
    watches: int = 0
    probes: int = 0
    snapshots: list[tuple[int, list[tuple[str, int]]]] = field(default_factory=list)
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, name: str) -> int:
        """Create or change an object."""
        self.version += 1
        self.events.append((self.version, "MODIFIED" if name in self.objects else "ADDED", name))
        self.objects[name] = self.version
        self._wake()
        return self.version

    def delete(self, name: str) -> int:
        self.version += 1
        if self.objects.pop(name, None) is not None:
            self.events.append((self.version, "DELETED", name))
            self._wake()
        return self.version

    def write_elsewhere(self) -> int:
        """Change an object of another kind."""
        self.version += 1
        return self.version

    def break_watches(self) -> None:
        self.broken.set()
        self.broken = asyncio.Event()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str],
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
        fence: object = None,
    ) -> Answer:
        self._check()
        await asyncio.sleep(self.rng.uniform(0, 0.05))
        self._check()
        if "PartialObjectMetadata" in headers["Accept"]:
            return await self._identities(params)
        alone = "fieldSelector" in params
        self.probes += alone
        self.lists += not alone
        answer = listing(self.version, {} if alone else self.objects)
        await asyncio.sleep(self.rng.uniform(0, 0.05))
        return answer

    async def _identities(self, params: Mapping[str, str]) -> Answer:
        """A page of two objects of one snapshot."""
        if "continue" in params:
            number, start = map(int, params["continue"].split("."))
        else:
            number, start = len(self.snapshots), 0
            self.snapshots.append((self.version, sorted(self.objects.items())))
        version, items = self.snapshots[number]
        more = {"continue": f"{number}.{start + 2}"} if start + 2 < len(items) else {}
        meta = {"resourceVersion": str(version)} | more
        await asyncio.sleep(self.rng.uniform(0, 0.3))
        self._check()
        page = [config_map(name, at) for name, at in items[start : start + 2]]
        return Answer(200, json.dumps({"metadata": meta, "items": page}).encode())

    @asynccontextmanager
    async def chunks(
        self, path: str, *, params: Mapping[str, str], stall_s: float, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        self._check()
        await asyncio.sleep(self.rng.uniform(0, 0.02))
        self._check()
        initial = "sendInitialEvents" in params
        version = self.version if initial else int(params["resourceVersion"])
        if version < self.compacted:
            raise Gone(410, "Expired", "too old resource version")
        self.lists += initial
        self.watches += not initial
        first = [frame("ADDED", config_map(name, at)) for name, at in self.objects.items()] if initial else []
        if initial:
            first.append(bookmark(version, initial_end=True))
        yield self._stream(first, version, float(params["timeoutSeconds"]))

    async def _stream(self, first: list[bytes], version: int, timeout_s: float) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        broken, end = self.broken, loop.time() + timeout_s
        due = min(loop.time() + _MINUTE_S, end - _BEFORE_TIMEOUT_S)
        place = next((at for at, event in enumerate(self.events) if event[0] > version), len(self.events))
        for each in first:
            yield each
        while loop.time() < end:
            if broken.is_set():
                raise Unavailable(0, "ConnectionLost", "lost")
            while place < len(self.events):
                at, type_, name = self.events[place]
                place += 1
                await asyncio.sleep(self.rng.uniform(0, self.lag_s))
                if broken.is_set():
                    raise Unavailable(0, "ConnectionLost", "lost")
                yield frame(type_, config_map(name, at))
            if loop.time() >= due:
                due = loop.time() + _MINUTE_S if end - _BEFORE_TIMEOUT_S <= loop.time() else end - _BEFORE_TIMEOUT_S
                yield bookmark(self.version)
            changed = self.changed
            try:
                async with asyncio.timeout(self.rng.uniform(0.75, 1.25) * _TICK_S):
                    await changed.wait()
            except TimeoutError:
                pass

    def stream(self, method: str, path: str, *, params: Mapping[str, str]) -> Any:
        raise NotImplementedError

    def websocket(self, path: str, *, params: Mapping[str, str], protocols: object) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.away:
            raise NotSent(0, "ConnectionRefused", "refused")

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()
