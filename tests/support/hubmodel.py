"""A model of the hub: what a watch must see, computed from the whole history; and a loop that tests step by hand."""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from muster.kube.objects.selectors import parse_selector
from muster.readcache.hub.selection import Selection

NODE = "spec.nodeName"


class Turns:
    """An event loop whose turns are run by hand. Each look at its clock takes `step_s`."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now = 0.0
        self.errors: list[Any] = []
        self.turns = 0
        self._step_s = step_s
        self._ready: deque[Callable[[], object]] = deque()

    def time(self) -> float:
        self.now += self._step_s
        return self.now

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._ready.append(lambda: callback(*args))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context["exception"])

    def turn(self) -> None:
        """Run what is ready now."""
        self.turns += 1
        for _ in range(len(self._ready)):
            self._ready.popleft()()

    def idle(self) -> None:
        """Run until nothing is ready."""
        end = self.turns + 5_000
        while self._ready:
            self.turn()
            assert self.turns < end, "the hub never rests"


class Head(NamedTuple):
    name: str
    namespace: str
    uid: str
    version: int
    labels: dict[str, str]
    fields: dict[str, str]


class Format:
    """Objects as small JSON."""

    media_type = "test"

    def head(self, data: bytes) -> Head:
        obj = json.loads(data)
        namespace, _, name = obj["key"].rpartition("/")
        return Head(name, namespace, obj["uid"], obj["version"], {"app": obj["app"]}, {NODE: obj["node"]})

    def at_version(self, data: bytes, version: int) -> bytes:
        return json.dumps({**json.loads(data), "version": version}).encode()

    def frame(self, type_: str, data: bytes) -> bytes:
        return json.dumps({"type": type_, **json.loads(data)}).encode() + b"\n"


@dataclasses.dataclass(frozen=True)
class Thing:
    key: str
    uid: str
    version: int
    app: str
    node: str

    @property
    def data(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A selection in its own words. None: any."""

    namespace: str = ""
    app: str | None = None
    not_app: str | None = None
    node: str | None = None
    not_node: str | None = None
    name: str | None = None

    def has(self, thing: Thing | None) -> bool:
        return (
            thing is not None
            and (not self.namespace or thing.key.startswith(self.namespace + "/"))
            and (self.app is None or thing.app == self.app)
            and (self.not_app is None or thing.app != self.not_app)
            and (self.node is None or thing.node == self.node)
            and (self.not_node is None or thing.node != self.not_node)
            and (self.name is None or thing.key.rpartition("/")[2] == self.name)
        )

    @property
    def selection(self) -> Selection:
        labels = [f"app={self.app}"] * (self.app is not None) + [f"app!={self.not_app}"] * (self.not_app is not None)
        fields = [(NODE, True, self.node or "")] * (self.node is not None)
        fields += [(NODE, False, self.not_node or "")] * (self.not_node is not None)
        fields += [("metadata.name", True, self.name or "")] * (self.name is not None)
        return Selection(self.namespace, parse_selector(",".join(labels)), tuple(fields), (NODE,))


Seen = tuple[str, str, int, str, str]  # type, key, version, app, node


@dataclasses.dataclass
class History:
    """Every state that there was: the things after each version."""

    version: int = 1
    things: dict[str, Thing] = dataclasses.field(default_factory=dict)
    changes: list[tuple[int, Thing | None, Thing | None]] = dataclasses.field(default_factory=list)

    def put(self, key: str, app: str, node: str) -> Thing:
        self.version += 1
        old = self.things.get(key)
        uid = old.uid if old is not None else f"uid-{self.version}"
        thing = Thing(key, uid, self.version, app, node)
        self.changes.append((self.version, old, thing))
        self.things = {**self.things, key: thing}
        return thing

    def delete(self, key: str) -> Thing:
        """Returns the last state, with the version of the removal."""
        self.version += 1
        old = self.things[key]
        self.changes.append((self.version, old, None))
        self.things = {other: thing for other, thing in self.things.items() if other != key}
        return dataclasses.replace(old, version=self.version)

    def expire(self, namespace: str) -> list[Thing]:
        """Delete all things of a namespace at one version, as etcd deletes the keys of a lease."""
        keys = [key for key in self.things if key.startswith(namespace + "/")]
        version = self.version
        gone = []
        for key in keys:
            self.version = version
            gone.append(self.delete(key))
        return gone

    def at(self, version: int) -> dict[str, Thing]:
        """The things at a version."""
        things: dict[str, Thing] = {}
        for changed, old, new in self.changes:
            if changed > version:
                break
            if new is not None:
                things[new.key] = new
            elif old is not None:
                del things[old.key]
        return things

    def seen(self, wanted: Wanted, after: int, until: int) -> list[Seen]:
        """What a watch from `after` has seen at `until`."""
        found: list[Seen] = []
        for version, old, new in self.changes:
            if after < version <= until:
                if wanted.has(new):
                    assert new is not None
                    type_ = "MODIFIED" if wanted.has(old) else "ADDED"
                    found.append((type_, new.key, version, new.app, new.node))
                elif wanted.has(old):
                    assert old is not None
                    found.append(("DELETED", old.key, version, old.app, old.node))
        return found


def read(pieces: list[bytes]) -> list[Seen]:
    """The events in pieces of a stream."""
    lines = map(json.loads, b"".join(pieces).splitlines())
    return [(line["type"], line["key"], line["version"], line["app"], line["node"]) for line in lines]
