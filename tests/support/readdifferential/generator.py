"""Random requests: valid, odd and wrong ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from urllib.parse import quote

from muster.readcache.kinds import CachedKind
from muster.readcache.reads.continuation import INCONSISTENT, write_token
from tests.support.readdifferential.cluster import KINDS, NAMESPACES, NODES, PODS, WIDGETS
from tests.support.readdifferential.sides import Asked

JSON, PROTOBUF = "application/json", "application/vnd.kubernetes.protobuf"
ACCEPT = (
    *[JSON] * 12,
    *[PROTOBUF] * 8,
    *[f"{PROTOBUF},{JSON}"] * 12,
    "",
    "*/*",
    "application/*",
    f"{JSON};q=0.5,{PROTOBUF}",
    f"{PROTOBUF};q=0.2, {JSON};q=0.1",
    f"{JSON};charset=utf-8",
    f"{JSON};stream=watch",
    f"{PROTOBUF};stream=watch",
    f"{JSON};as=Table;v=v1;g=meta.k8s.io,{JSON}",
    f"{PROTOBUF};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    "application/yaml",
    "application/cbor",
    f"application/cbor,{JSON}",
    "text/html",
    "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    f"{JSON};pretty=1",
)
AGENTS = (*[""] * 40, "kubectl/v1.36", "curl/8", "Mozilla/5.0 (X11)")
LABELS = (
    "app=x",
    "app==x",
    "app!=x",
    "app in (x,y)",
    "app in (x, y),tier",
    "app notin (x,y)",
    "app",
    "!app",
    "app=",
    "app=x,tier=front",
    "size>2",
    "size<3",
    "app,!tier",
    "tier notin (front),app in (z)",
    "app in ()",
    "nope",
)
WRONG_LABELS = (
    "app in x",
    "a b",
    "=x",
    "app=x,",
    "app=x,,tier",
    f"app={'v' * 64}",
    "app in (x",
    "in in (x)",
    "app>x",
    "a/b/c=d",
    "-a",
    "app=a b",
)
FIELDS = (
    "metadata.name=o1",
    "metadata.name!=o1",
    "metadata.namespace=reads-a",
    "metadata.name=o2,metadata.namespace=reads-a",
    "metadata.name=none",
    "metadata.namespace!=reads-a",
)
OWN_FIELDS = {
    "pods": (
        "spec.nodeName=reads-n1",
        "spec.nodeName!=reads-n1",
        "spec.nodeName=",
        "status.phase=Pending",
        "status.phase!=Pending",
        "spec.nodeName=reads-n1,status.phase=Pending",
        "spec.host=reads-n2",
        "spec.restartPolicy=Always",
    ),
    "widgets": ("spec.colour=red", "spec.colour!=red", "spec.colour="),
    "nodes": (
        "metadata.name=reads-n1",
        "spec.unschedulable=false",
        "spec.unschedulable=true",
        "metadata.name!=reads-n2",
    ),
    "namespaces": ("metadata.name=reads-a", "status.phase=Active", "metadata.name!=reads-a"),
}
WRONG_FIELDS = (
    "foo=bar",
    "metadata.name",
    "metadata.name=a\\,b",
    "metadata.labels=x",
    "=x",
    "metadata.name=o1,",
    "spec.colour=a=b",
    "metadata.name = o1",
)
MATCHES = ("", "", "", "Exact", "NotOlderThan", "NotOlderThan", "exact", "Foo")
LIMITS = ("1", "2", "3", "5", "500", "0", "-1", "x", "")
BOOLEANS = ("true", "true", "1", "false", "0", "", "yes")
WATCH_S = "1"


class Generator:
    """Makes requests.

    Args:
        versions: returns versions of a kind that the cache's log has, the newest last.
        names: the names that objects may have.
    """

    def __init__(self, rng: random.Random, versions: Callable[[CachedKind], list[int]], names: list[str]) -> None:
        self._rng = rng
        self._versions = versions
        self._names = names

    def asked(self) -> tuple[CachedKind, Asked]:
        """Return a request and the kind that it reads."""
        rng = self._rng
        kind = rng.choice((PODS, WIDGETS, *KINDS))
        roll = rng.random()
        parameters = self._get(kind) if roll < 0.15 else self._watch(kind) if roll < 0.4 else self._list(kind)
        path = self._path(kind, named=roll < 0.15)
        query = "&".join(f"{key}={quote(value, safe='')}" for key, value in parameters.items())
        headers = {}
        if accept := rng.choice(ACCEPT):
            headers["Accept"] = accept
        if agent := rng.choice(AGENTS):
            headers["User-Agent"] = agent
        return kind, Asked(f"{path}?{query}" if query else path, headers)

    def _path(self, kind: CachedKind, *, named: bool) -> str:
        rng = self._rng
        namespace = rng.choice(("", *NAMESPACES, "reads-missing")) if kind.resource.namespaced else ""
        if not named:
            return kind.resource.path(namespace)
        if not kind.resource.namespaced:
            return kind.resource.path(None, rng.choice((*NODES, *NAMESPACES, "default", "none")))
        return kind.resource.path(namespace or "reads-a", rng.choice((*self._names, "none")))

    def _get(self, kind: CachedKind) -> dict[str, str]:
        return self._some({"resourceVersion": (0.9, lambda: self._version(kind)), "pretty": (0.03, lambda: "true")})

    def _list(self, kind: CachedKind) -> dict[str, str]:
        rng = self._rng
        if kind is PODS and rng.random() < 0.1:
            return self._indexed_page()
        return self._some(
            {
                "resourceVersion": (0.7, lambda: self._version(kind)),
                "resourceVersionMatch": (0.35, lambda: rng.choice(MATCHES)),
                "limit": (0.4, lambda: rng.choice(LIMITS)),
                "labelSelector": (0.4, self._labels),
                "fieldSelector": (0.4, lambda: self._fields(kind)),
                "sendInitialEvents": (0.03, lambda: rng.choice(BOOLEANS)),
                "allowWatchBookmarks": (0.05, lambda: rng.choice(BOOLEANS)),
                "continue": (0.08, lambda: self._token(kind)),
                "timeoutSeconds": (0.1, lambda: rng.choice(("1", "30", "x", "-1"))),
                "timeout": (0.05, lambda: rng.choice(("30s", "1m", "0s", "abc"))),
                "pretty": (0.04, lambda: rng.choice(BOOLEANS)),
                "watch": (0.03, lambda: rng.choice(("false", "0"))),
                "unknown": (0.03, lambda: "x"),
            }
        )

    def _indexed_page(self) -> dict[str, str]:
        """A page of about as many objects as an index has."""
        rng = self._rng
        page = {"fieldSelector": f"spec.nodeName={rng.choice(('', *NODES))}", "limit": rng.choice("12345")}
        return page | self._some({"labelSelector": (0.5, self._labels), "resourceVersion": (0.2, lambda: "0")})

    def _watch(self, kind: CachedKind) -> dict[str, str]:
        rng = self._rng
        initial = self._some(
            {
                "sendInitialEvents": (0.9, lambda: rng.choice(BOOLEANS)),
                "resourceVersionMatch": (0.9, lambda: rng.choice(("NotOlderThan", "NotOlderThan", *MATCHES))),
            }
        )
        return {
            "watch": rng.choice(("true", "1", "")),
            "timeoutSeconds": WATCH_S,
            **(initial if rng.random() < 0.5 else {}),
            **self._some(
                {
                    "resourceVersion": (0.8, lambda: self._version(kind)),
                    "labelSelector": (0.3, self._labels),
                    "fieldSelector": (0.4, lambda: self._fields(kind)),
                    "allowWatchBookmarks": (0.6, lambda: rng.choice(BOOLEANS)),
                    "limit": (0.05, lambda: rng.choice(LIMITS)),
                    "continue": (0.03, lambda: rng.choice(("", "abc"))),
                    "pretty": (0.03, lambda: "true"),
                }
            ),
        }

    def _some(self, choices: dict[str, tuple[float, Callable[[], str]]]) -> dict[str, str]:
        return {key: make() for key, (chance, make) in choices.items() if self._rng.random() < chance}

    def _version(self, kind: CachedKind) -> str:
        rng = self._rng
        roll = rng.random()
        if roll < 0.3:
            return "0"
        if roll < 0.4:
            return rng.choice(("", "00", "abc", "-1", "1.5", "18446744073709551616", "01", " 1", "\u0661"))
        if roll < 0.405:
            return str(self._versions(kind)[-1] + 10**6)  # both sides wait 3 s
        if roll < 0.45:
            return "1"
        version = rng.choice(self._versions(kind))
        return str(max(1, version - rng.randrange(2)))

    def _token(self, kind: CachedKind) -> str:
        rng = self._rng
        if rng.random() < 0.2:
            return rng.choice(("", "abc", "e30", "eyJ2IjoieCJ9"))
        key = rng.choice((*self._names, "reads-a/o3", "reads-a-b/o9", "reads-n1", "none", "../x", "a//b"))
        return write_token(key, rng.choice((INCONSISTENT, INCONSISTENT, 0, -7, 1, rng.choice(self._versions(kind)))))

    def _labels(self) -> str:
        return self._rng.choice(WRONG_LABELS if self._rng.random() < 0.1 else LABELS)

    def _fields(self, kind: CachedKind) -> str:
        rng = self._rng
        if rng.random() < 0.1:
            return rng.choice(WRONG_FIELDS)
        return rng.choice((*FIELDS, *OWN_FIELDS.get(kind.resource.plural, ()) * 2))
