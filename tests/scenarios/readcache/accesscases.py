"""Requests that are put both to a real API server and to the cache's access checks, and how the answers compare."""

from __future__ import annotations

import dataclasses
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, quote, urlencode

import aiohttp
from yarl import URL

from muster.kube.connection.config import load_config
from muster.kube.connection.pki import KeyPair
from muster.kube.objects.meta import Resource
from muster.readcache.access.access import Access, Admitted
from muster.readcache.kinds import CachedKind
from muster.readcache.request import Forward, Refusal, Request, Target

KINDS = {
    kind.resource.plural: kind
    for kind in map(
        CachedKind,
        (
            Resource("", "v1", "pods", "Pod"),
            Resource("", "v1", "configmaps", "ConfigMap"),
            Resource("", "v1", "secrets", "Secret"),
            Resource("", "v1", "nodes", "Node", namespaced=False),
            Resource("", "v1", "namespaces", "Namespace", namespaced=False),
            Resource("batch", "v1", "jobs", "Job"),
        ),
    )
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A read: `token` and `headers` say by whom."""

    token: str
    verb: str
    plural: str
    namespace: str = ""
    name: str = ""
    query: Mapping[str, str] = dataclasses.field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def kind(self) -> CachedKind:
        return KINDS[self.plural]

    @property
    def target(self) -> Target:
        return Target(self.verb, self.kind, self.namespace, self.name)  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        path = self.kind.resource.path(self.namespace or None, self.name)
        query = {**self.query, **({"watch": "1", "timeoutSeconds": "1"} if self.verb == "watch" else {})}
        return f"{path}?{urlencode(query, quote_via=quote)}" if query else path

    @property
    def all_headers(self) -> list[tuple[str, str]]:
        return [*([("Authorization", f"Bearer {self.token}")] if self.token else []), *self.headers]

    def request(self, peer: str = "127.0.0.1", certificate: bytes | None = None) -> Request:
        path, _, query = self.url.partition("?")
        first: dict[str, str] = {}
        for key, value in parse_qsl(query, keep_blank_values=True):
            first.setdefault(key, value)
        headers = tuple((key.lower(), value) for key, value in self.all_headers)
        return Request("GET", self.url, path, first, headers, peer, certificate)


class Plane:
    """Sends cases to a real API server; an async context manager."""

    def __init__(self, url: str, context: ssl.SSLContext | None) -> None:
        self._url = url
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context or True, limit=16))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def answer(self, case: Case) -> tuple[int, dict[str, Any]]:
        """Return the status code, and the Status that came with a refusal."""
        url = URL(self._url + case.url, encoded=True)
        async with self._session.get(url, headers=[*case.all_headers, ("Accept", "application/json")]) as response:
            return response.status, {} if response.status == 200 else json.loads(await response.read())


def ssl_context(kubeconfig: Path, pair: KeyPair | None = None) -> ssl.SSLContext:
    """The TLS context of a client with this certificate, or without one."""
    certificate, key = (pair.certificate, pair.key) if pair is not None else (b"", b"")
    config = dataclasses.replace(load_config(kubeconfig), client_certificate=certificate, client_key=key)
    context = config.ssl_context()
    assert context is not None
    return context


async def outcome(access: Access, case: Case, certificate: bytes | None = None) -> tuple[str, dict[str, Any]]:
    """Return `admitted` or `forward`, or the code and Status fields of a refusal."""
    try:
        answer = await access.admit(case.target, case.request(certificate=certificate))
    except Refusal as refusal:
        status = {"reason": refusal.reason, "message": refusal.message, "details": refusal.details}
        return str(refusal.code), status
    if isinstance(answer, Forward):
        return "forward", {}
    assert isinstance(answer, Admitted)
    return "admitted", {}


def difference(case: Case, direct: tuple[int, dict[str, Any]], cached: tuple[str, dict[str, Any]]) -> str:
    """Say how the cache's decision differs from the API server's answer; "" if it does not."""
    code, status = direct
    what, refused = cached
    if what == "forward":
        return ""
    if code in (401, 403):
        expected = {key: status.get(key) for key in ("reason", "message", "details")}
        found = {key: refused.get(key) or None for key in ("reason", "message", "details")}
        if what == str(code) and found == expected:
            return ""
    elif what == "admitted":
        return ""
    return f"{case}: the API server says {code} {status.get('message')!r}, the cache {what} {refused.get('message')!r}"
