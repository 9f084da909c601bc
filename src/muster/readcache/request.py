"""Requests to the cache, and its answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from muster.readcache.kinds import CachedKind


@dataclass(frozen=True, slots=True)
class Request:
    """The head of an HTTP request.

    Attributes:
        method: as sent, such as `GET`.
        target: path and query as sent, for forwarding.
        path: decoded path.
        query: first value of each parameter, decoded, as kube-apiserver reads them.
        headers: (lower-case name, value), in the order in which they were sent.
        peer: address of the client.
        certificate: the client's certificate in DER form, if TLS asked for one and the client sent it.
    """

    method: str
    target: str
    path: str
    query: Mapping[str, str]
    headers: tuple[tuple[str, str], ...]
    peer: str = ""
    certificate: bytes | None = None

    def header(self, name: str) -> str:
        """The first value of a header, "" if it was not sent. `name` is in lower case."""
        return next((value for key, value in self.headers if key == name), "")

    def headers_of(self, name: str) -> list[str]:
        """All values of a header. `name` is in lower case."""
        return [value for key, value in self.headers if key == name]


@dataclass(frozen=True, slots=True)
class Target:
    """What a request reads: objects of a cached kind.

    Attributes:
        namespace: "" for all namespaces, or for a kind without namespaces.
        name: of a get, else "".
    """

    verb: Literal["get", "list", "watch"]
    kind: CachedKind
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that ends: status code, content type, and the pieces of its body."""

    status: int
    content_type: str
    body: Iterable[bytes]
    headers: tuple[tuple[str, str], ...] = field(default=())


class Forward(NamedTuple):
    """The API server must answer this request.

    Attributes:
        reason: why the cache cannot answer, for logs and metrics.
    """

    reason: str


class Refusal(Exception):
    """The request is refused.

    Attributes:
        code: HTTP status code.
        reason: reason of the metav1.Status, such as `Forbidden`.
        message: message of the metav1.Status.
        retry_after_s: seconds for the header Retry-After, None for none.
        details: fields of the Status's details besides `retryAfterSeconds`.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        retry_after_s: int | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.details = dict(details or {})
