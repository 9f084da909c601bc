"""A store of pods for tests of reads, and requests to it."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote

import msgspec

from muster.kube.objects.meta import Resource
from muster.readcache.freshness import NotFresh
from muster.readcache.hub.store import KindStore
from muster.readcache.kinds import CachedKind
from muster.readcache.media import MediaType
from muster.readcache.reads.bookmarks import BookmarkTimer
from muster.readcache.reads.freshness import Limits
from muster.readcache.reads.reads import Reads
from muster.readcache.reads.selecting import indexes_of
from muster.readcache.reads.targets import kind_key, parse_target
from muster.readcache.reads.watches import Watch
from muster.readcache.request import Answer, Forward, Request
from muster.readcache.wire import format_for

PODS = CachedKind(Resource("", "v1", "pods", "Pod"))
NODES = CachedKind(Resource("", "v1", "nodes", "Node", namespaced=False))
JOBS = CachedKind(Resource("muster.dev", "v1alpha1", "trainingjobs", "TrainingJob"), custom=True, protobuf=False)
KINDS = {kind_key(kind): kind for kind in (PODS, NODES, JOBS)}


def pod(
    name: str, version: int, *, namespace: str = "a", node: str = "", labels: Mapping[str, str] | None = None
) -> bytes:
    """The bytes of a pod in a list."""
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return msgspec.json.encode({"metadata": {**meta, "labels": dict(labels or {})}, "spec": {"nodeName": node}})


def request(path: str, *, method: str = "GET", **headers: str) -> Request:
    """A request as the server reads it. Underscores in names of headers become dashes."""
    plain, _, query = path.partition("?")
    values: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        values.setdefault(key, value)
    sent = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Request(method, path, unquote(plain), values, sent)


class PodSource:
    """Pods as JSON.

    Attributes:
        fresh: whether upstream answers.
        newest: the version of a list made now.
        proof_by_state: upstream's state of that version was found equal, so that the store's version stays.
        age: seconds since upstream was lost.
    """

    def __init__(self) -> None:
        self.kind = PODS
        self.format = format_for(PODS, MediaType.JSON)
        self.store = KindStore(self.format, indexes_of(PODS), loop=asyncio.get_running_loop())
        self.fresh = True
        self.newest = 0
        self.proof_by_state = False
        self.age = 0.0

    async def confirm(self, timeout_s: float) -> int:
        if not self.fresh:
            raise NotFresh("upstream does not answer")
        if self.proof_by_state:
            return max(self.newest, self.store.version)
        self.store.bookmark(self.newest, 0.0)
        return self.store.version

    def age_s(self) -> float:
        return self.age

    def apply(self, type_: str, data: bytes) -> None:
        """Apply an event of upstream."""
        self.store.apply(type_, data, self.format.head(data), 0.0)


class Cache:
    """Reads of pods."""

    def __init__(self, *datas: bytes, version: int = 10, limits: Limits | None = None) -> None:
        self.source = PodSource()
        if version:
            self.source.store.replace(datas, version, 0.0)
        self.bookmarks = BookmarkTimer(asyncio.get_running_loop(), random.Random(1))
        self._reads = Reads(
            self, self.bookmarks, random.Random(2), limits or Limits(version_wait_s=0.05, load_wait_s=0.05)
        )

    def get(self, kind: CachedKind, media: MediaType) -> PodSource | None:
        return self.source if kind == PODS and media is MediaType.JSON else None

    async def ask(self, path: str, **headers: str) -> Answer | Watch | Forward:
        """Answer a request; Forward also if it is not one for the cache."""
        asked = request(path, **headers)
        target = parse_target(asked, KINDS)
        if target is None:
            return Forward("not for the cache")
        answer = await self._reads.answer(target, asked)
        return dataclasses.replace(answer, body=tuple(answer.body)) if isinstance(answer, Answer) else answer


def body(answer: Answer | Watch | Forward) -> bytes:
    """The bytes of an answer that ends, or of a watch's initial state."""
    assert not isinstance(answer, Forward), answer
    return b"".join(answer.body if isinstance(answer, Answer) else answer.initial())


async def settled() -> None:
    """Let the hub pass on what is pending."""
    for _ in range(5):
        await asyncio.sleep(0)


def names(answer: Answer | Watch | Forward) -> list[str]:
    """The names of a list's objects, in order."""
    return [item["metadata"]["name"] for item in msgspec.json.decode(body(answer))["items"]]
