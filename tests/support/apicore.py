"""An API server without sockets, on a clock that tests move."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from muster.embedded.apiserver.core import Answer, ApiCore
from muster.embedded.apiserver.request import Request, Response
from muster.embedded.apiserver.types.bootstrap import bootstrap
from muster.embedded.apiserver.verbs.watches import WatchResponse
from muster.embedded.controllers.runner import Controllers
from muster.embedded.store import Store
from muster.kube.connection.pki import new_signing_key
from muster.readcache.hub.limits import Limits


class Clock:
    def __init__(self) -> None:
        self.time = 1_800_000_000.0

    def now(self) -> float:
        return self.time


class Cluster:
    """A core with its controllers, stepped by hand."""

    def __init__(self, *, grace_s: float | None = 40.0, log_capacity: int = 1000) -> None:
        self.clock = Clock()
        self.store = Store(limits=Limits(log_events=log_capacity))
        self.core = ApiCore(self.store, self.clock, random.Random(1), new_signing_key()[0])
        bootstrap(self.core, "CA")
        self.controllers = Controllers(self.core, grace_s)
        self.controllers.step()

    def handle(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        path, _, text = path.partition("?")
        query = dict(pair.split("=", 1) for pair in text.split("&")) if text else {}
        query = {key: value.replace("%3D", "=") for key, value in query.items()}
        data = msgspec.json.encode(body) if body is not None else b""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.core.handle(Request(method, path, query, named, data))

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        answer = self.handle(method, path, body, **headers)
        assert isinstance(answer, Response)
        return answer.code, answer.json()

    def ok(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        code, answer = self.send(method, path, body, **headers)
        assert code in (200, 201, 202), answer
        return answer

    def watch(self, path: str) -> WatchResponse:
        answer = self.handle("GET", path + ("&" if "?" in path else "?") + "watch=true")
        assert isinstance(answer, WatchResponse)
        return answer

    def advance(self, seconds: float, step_s: float = 1.0) -> None:
        """Let time pass, the controllers working at each step."""
        end = self.clock.time + seconds
        while self.clock.time < end:
            self.clock.time = min(end, self.clock.time + step_s)
            self.controllers.step()


async def events(watch: WatchResponse) -> list[Any]:
    """Return the events that wait now."""
    batch = await watch.batch()
    return [msgspec.json.decode(line) for line in (batch or b"").splitlines()]


def pod(name: str, /, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    spec.setdefault("containers", [{"name": "c", "image": "x"}])
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}


PODS = "/api/v1/namespaces/default/pods"


def bind(cluster: Cluster, name: str, node: str) -> None:
    cluster.ok("POST", f"{PODS}/{name}/binding", {"target": {"kind": "Node", "name": node}})
