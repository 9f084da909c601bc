"""A small API server for what a real one cannot be made to do on demand: 410 at will, stalls, broken streams.

It speaks the real list/watch protocol (resource versions, pages, bookmarks, sendInitialEvents) over a real socket, for
core/v1 kinds and leases.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web

from muster.embedded.apiserver.verbs.patches import merge_patch
from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.credentials import Anonymous, Credentials
from muster.kube.objects.meta import KubeObject, ObjectMeta

K = TypeVar("K", bound=KubeObject)

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


def status(code: int, reason: str, message: str = "", details: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message or reason,
        "reason": reason,
        "details": details,
        "code": code,
    }


def identity(obj: K) -> K:
    """Return only the identity and the version of the object."""
    meta = obj.metadata
    kept = ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version)
    return type(obj)(metadata=kept)


@dataclass
class Watch:
    """One open watch; a test may break it."""

    resource: str
    version: int
    params: dict[str, str]
    queue: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)


@dataclass
class FakeApi:
    url: str = ""
    version: int = 100
    compacted: int = 0
    objects: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    events: list[tuple[int, str, str, dict[str, Any]]] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    before: list[Callable[[web.Request], Any]] = field(default_factory=list)
    pages: dict[str, tuple[int, list[dict[str, Any]]]] = field(default_factory=dict)
    watch_list: bool = True

    def config(self, credentials: Credentials | None = None) -> ClusterConfig:
        return ClusterConfig(server=self.url, credentials=credentials or Anonymous())

    def count(self, method: str, *, watch: bool | None = None) -> int:
        return sum(
            1
            for verb, _, params, _ in self.requests
            if verb == method and watch in (None, params.get("watch") == "true")
        )

    def put(
        self, name: str, *, resource: str = "configmaps", namespace: str = "default", uid: str = "", **body: Any
    ) -> int:
        """Create or change an object and tell the watches; returns its version."""
        self.version += 1
        known = self.objects.setdefault(resource, {})
        old = known.get(f"{namespace}/{name}")
        if old is not None and uid and old["metadata"]["uid"] != uid:
            raise AssertionError("delete it first")
        meta = {
            "name": name,
            "namespace": namespace,
            "uid": uid or (old["metadata"]["uid"] if old else f"uid-{self.version}"),
            "resourceVersion": str(self.version),
            **body.pop("metadata", {}),
        }
        known[f"{namespace}/{name}"] = obj = {"metadata": meta, **body}
        self._emit("MODIFIED" if old else "ADDED", resource, obj)
        return self.version

    def remove(self, name: str, *, resource: str = "configmaps", namespace: str = "default") -> None:
        self.version += 1
        obj = self.objects[resource].pop(f"{namespace}/{name}")
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        self._emit("DELETED", resource, obj)

    def _emit(self, type_: str, resource: str, obj: dict[str, Any]) -> None:
        obj = copy.deepcopy(obj)
        self.events.append((self.version, resource, type_, obj))
        for watch in self.watches:
            if watch.resource == resource:
                watch.queue.put_nowait({"type": type_, "object": obj})

    def bookmark(self, annotations: dict[str, str] | None = None) -> None:
        self.version += 1
        for watch in self.watches:
            watch.queue.put_nowait(self._bookmark(annotations))

    def _bookmark(self, annotations: dict[str, str] | None = None) -> dict[str, Any]:
        meta = {"resourceVersion": str(self.version), "creationTimestamp": None, "annotations": annotations or {}}
        return {"type": "BOOKMARK", "object": {"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta}}

    def compact(self) -> None:
        """Forget history: watches from before and pages begun are Gone."""
        self.version += 1
        self.compacted = self.version
        self.pages.clear()

    def end_watches(self, how: object = None) -> None:
        """End open watches: cleanly (None), "drop" the connection, or with a last raw line (bytes)."""
        for watch in self.watches:
            watch.queue.put_nowait(how)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        params = dict(request.query)
        self.requests.append((request.method, request.path, params, body))
        self.headers.append(dict(request.headers))
        for hook in list(self.before):
            answer = hook(request)
            if asyncio.iscoroutine(answer):
                answer = await answer
            if answer is not None:
                assert isinstance(answer, web.StreamResponse)
                return answer
        parts = request.path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        resource, name = parts[0], parts[1] if len(parts) > 1 else ""
        if request.method == "GET" and not name:
            if params.get("watch") == "true":
                return await self._watch(request, resource, params)
            return self._list(resource, namespace, params)
        return self._one(request.method, resource, namespace, name, body)

    def _list(self, resource: str, namespace: str, params: dict[str, str]) -> web.Response:
        token = params.get("continue", "")
        if token:
            if token not in self.pages:
                return web.json_response(status(410, "Expired", "continue token is too old"), status=410)
            version, rest = self.pages.pop(token)
        else:
            version = self.version
            rest = [
                obj
                for key, obj in sorted(self.objects.get(resource, {}).items())
                if not namespace or key.startswith(namespace + "/")
            ]
        limit = int(params.get("limit", "0")) or len(rest)
        page, rest = rest[:limit], rest[limit:]
        meta: dict[str, Any] = {"resourceVersion": str(version)}
        if rest:
            meta["continue"] = f"token-{len(self.requests)}"
            self.pages[meta["continue"]] = (version, rest)
        return web.json_response({"kind": "List", "apiVersion": "v1", "metadata": meta, "items": page})

    async def _watch(self, request: web.Request, resource: str, params: dict[str, str]) -> web.StreamResponse:
        since = int(params.get("resourceVersion") or 0)
        initial = params.get("sendInitialEvents") == "true"
        if initial and not self.watch_list:
            return web.json_response(status(422, "Invalid", "sendInitialEvents is forbidden"), status=422)
        if not initial and since < self.compacted:
            return web.json_response(status(410, "Expired", f"too old resource version: {since}"), status=410)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        watch = Watch(resource, since, params)
        if initial:
            for obj in self.objects.get(resource, {}).values():
                watch.queue.put_nowait({"type": "ADDED", "object": copy.deepcopy(obj)})
            watch.queue.put_nowait(self._bookmark({"k8s.io/initial-events-end": "true"}))
        else:
            for version, kind, type_, obj in self.events:
                if kind == resource and version > since:
                    watch.queue.put_nowait({"type": type_, "object": obj})
        self.watches.append(watch)
        try:
            while True:
                item = await watch.queue.get()
                if item is None:
                    return response
                if item == "drop":
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                await response.write(item if isinstance(item, bytes) else json.dumps(item).encode() + b"\n")
        finally:
            self.watches.remove(watch)

    def _one(self, method: str, resource: str, namespace: str, name: str, body: bytes) -> web.Response:
        key = f"{namespace}/{name}"
        known = self.objects.setdefault(resource, {})
        sent = json.loads(body) if body else {}
        if method == "POST":
            name = sent["metadata"]["name"]
            key = f"{namespace}/{name}"
            if key in known:
                return web.json_response(status(409, "AlreadyExists", f"{name} exists"), status=409)
        elif key not in known:
            return web.json_response(status(404, "NotFound", f"{name} not found"), status=404)
        if method == "PUT":
            expected = sent["metadata"].get("resourceVersion")
            if expected and expected != known[key]["metadata"]["resourceVersion"]:
                return web.json_response(status(409, "Conflict", "the object has been modified"), status=409)
        if method == "PATCH":
            sent = merge_patch(known[key], sent)
        if method == "DELETE":
            self.remove(name, resource=resource, namespace=namespace)
            return web.json_response({"kind": "Status", "status": "Success"})
        if method != "GET":
            fields = {k: v for k, v in sent.items() if k not in ("metadata", "apiVersion", "kind")}
            self.put(name, resource=resource, namespace=namespace, **fields)
        return web.json_response(known[key], status=201 if method == "POST" else 200)


@asynccontextmanager
async def fake_api() -> AsyncIterator[FakeApi]:
    api = FakeApi()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield api
    finally:
        api.end_watches()
        await runner.cleanup()
