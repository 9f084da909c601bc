"""An API server that answers reviews, as a transport of the client, and requests to admit."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from prometheus_client import CollectorRegistry

from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.transport import Answer, NotSent
from muster.kube.metrics import kube_metrics
from muster.kube.objects.meta import Resource
from muster.readcache.kinds import CachedKind
from muster.readcache.request import Request, Target

PODS = CachedKind(Resource("", "v1", "pods", "Pod"))


class ReviewServer:
    """Knows tokens and rights. Set its attributes to change what it answers.

    Attributes:
        users: token -> user name.
        allowed: (user name, verb, namespace).
        away: no connection can be made.
        status: answered to every review instead, None for the review.
        evaluation_error: of denials.
        audiences: of valid tokens.
        held: reviews wait until this is set.
        asked: number of reviews by kind.
        bodies: every review.
    """

    def __init__(self) -> None:
        self.users: dict[str, str] = {}
        self.allowed: set[tuple[str, str, str]] = set()
        self.away = False
        self.status: int | None = None
        self.evaluation_error = ""
        self.audiences: tuple[str, ...] = ()
        self.held: asyncio.Event | None = None
        self.asked: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []

    def client(self) -> Client:
        config = ClusterConfig(server="http://none")
        metrics = kube_metrics(CollectorRegistry())
        return Client(config, transport=self, metrics=metrics, retry_for_s=0.0)  # type: ignore[arg-type]

    async def request(self, method: str, path: str, *, body: bytes, **_: Any) -> Answer:
        assert method == "POST"
        review = json.loads(body)
        kind = path.rpartition("/")[2]
        self.asked[kind] += 1
        self.bodies.append(review)
        status = self._status(kind, review["spec"])
        if self.held is not None:
            await self.held.wait()
        if self.away:
            raise NotSent(0, "ConnectionRefused", "refused")
        if self.status is not None:
            echoed = {"kind": "Status", "code": self.status, "message": f"cannot take {body.decode()}"}
            return Answer(self.status, json.dumps(echoed).encode())
        return Answer(201, json.dumps({**review, "status": status}).encode())

    def _status(self, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        if kind == "tokenreviews":
            name = self.users.get(spec["token"])
            if name is None:
                return {"authenticated": False, "error": "[invalid bearer token]"}
            user = {"username": name, "groups": ["system:authenticated"], "uid": f"uid-{name}"}
            return {"authenticated": True, "user": user, "audiences": list(self.audiences)}
        wanted = spec["resourceAttributes"]
        allowed = (spec["user"], wanted["verb"], wanted.get("namespace", "")) in self.allowed
        return {"allowed": allowed} if allowed else {"allowed": False, "evaluationError": self.evaluation_error}

    async def close(self) -> None:
        pass


def reading(namespace: str = "a", verb: str = "list") -> Target:
    return Target(verb, PODS, namespace)  # type: ignore[arg-type]


def request(token: str = "", peer: str = "10.0.0.1", *headers: tuple[str, str], **query: str) -> Request:
    authorization = (("authorization", f"Bearer {token}"),) if token else ()
    return Request("GET", "/x", "/x", query, (*authorization, *headers), peer)
