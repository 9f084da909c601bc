"""A transport whose answers a test scripts, for followers in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from muster.kube.connection.transport import Answer
from muster.kube.errors import ApiError, ServerTimeout, Unavailable
from muster.kube.objects.core import ConfigMap
from muster.readcache.hub.selection import ALL
from muster.readcache.hub.store import KindStore
from muster.readcache.hub.view import WireView
from muster.readcache.kinds import CachedKind
from muster.readcache.media import MediaType
from muster.readcache.wire import format_for

CONFIG_MAPS = CachedKind(ConfigMap.RESOURCE)
JSON = format_for(CONFIG_MAPS, MediaType.JSON)


def config_map(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}}


def frame(type_: str, obj: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": type_, "object": {"kind": "ConfigMap", "apiVersion": "v1", **obj}}).encode() + b"\n"


def bookmark(version: int, *, initial_end: bool = False) -> bytes:
    return JSON.bookmark(version, initial_end=initial_end)


def status(code: int, reason: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": reason,
        "reason": reason,
        "code": code,
    }


BREAK = object()
"""Break the connection."""
Step = bytes | float | object
Script = Callable[["Asked"], Iterable[Step] | ApiError]


@dataclass(frozen=True)
class Asked:
    """A request that arrived."""

    at: float
    path: str
    params: dict[str, str]
    headers: dict[str, str]

    @property
    def watches(self) -> bool:
        return "watch" in self.params

    @property
    def loads(self) -> bool:
        """It begins a whole state."""
        if self.watches:
            return "sendInitialEvents" in self.params
        return "fieldSelector" not in self.params and "continue" not in self.params


@dataclass
class Upstream:
    """A transport. `watch` and `answer` decide what the server does.

    A watch's script has chunks of bytes, pauses in seconds, and BREAK. After its last step the server ends the stream.
    """

    watch: Script
    answer: Callable[[Asked], Answer | ApiError]
    asked: list[Asked] = field(default_factory=list)
    open: int = 0

    @property
    def loads(self) -> list[Asked]:
        return [each for each in self.asked if each.loads]

    @property
    def watches(self) -> list[Asked]:
        return [each for each in self.asked if each.watches]

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
        asked = Asked(asyncio.get_running_loop().time(), path, dict(params), dict(headers))
        self.asked.append(asked)
        await asyncio.sleep(0.01)
        answer = self.answer(asked)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    @asynccontextmanager
    async def chunks(
        self, path: str, *, params: Mapping[str, str], stall_s: float, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        asked = Asked(asyncio.get_running_loop().time(), path, dict(params), dict(headers or {}))
        self.asked.append(asked)
        await asyncio.sleep(0.01)
        steps = self.watch(asked)
        if isinstance(steps, ApiError):
            raise steps
        self.open += 1
        try:
            yield _played(steps, stall_s)
        finally:
            self.open -= 1

    def stream(self, method: str, path: str, *, params: Mapping[str, str]) -> Any:
        raise NotImplementedError

    def websocket(self, path: str, *, params: Mapping[str, str], protocols: object) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        pass


async def _played(steps: Iterable[Step], stall_s: float) -> AsyncIterator[bytes]:
    for step in steps:
        if step is BREAK:
            raise Unavailable(0, "ConnectionLost", "lost")
        if isinstance(step, bytes):
            yield step
        elif isinstance(step, float):
            if step > stall_s:
                await asyncio.sleep(stall_s)
                raise ServerTimeout(0, "Timeout", "silent")
            await asyncio.sleep(step)


def listing(version: int, names: Mapping[str, int] | None = None, token: str = "") -> Answer:
    meta: dict[str, Any] = {"resourceVersion": str(version)} | ({"continue": token} if token else {})
    items = [config_map(name, at) for name, at in (names or {}).items()]
    body = {"kind": "ConfigMapList", "apiVersion": "v1", "metadata": meta, "items": items}
    return Answer(200, json.dumps(body, separators=(",", ":")).encode())


def objects(store: KindStore) -> dict[str, int]:
    """The version of each object, by name."""
    return {item.name: item.version for item in store.objects.items.values()}


class Seen:
    """A watch of the store, as a client of the cache has it."""

    def __init__(self, store: KindStore) -> None:
        self.events: list[tuple[str, str, int]] = []
        self.closed = ""
        store.subscribe(ALL, store.version, WireView(JSON), self._take, self._close)

    def _take(self, pieces: list[bytes]) -> None:
        for line in b"".join(pieces).splitlines():
            event = json.loads(line)
            meta = event["object"]["metadata"]
            self.events.append((event["type"], meta["name"], int(meta["resourceVersion"])))

    def _close(self, reason: str) -> None:
        self.closed = reason
