"""Writes a line for each request that the server serves, for `muster doctor`. Off by default.

The user of a request that is answered from the cache is known. Only the API server verifies the token of a forwarded
request. So the claims of that token are read as they are, and dropped if the API server does not accept it. Tokens,
headers and bodies are never written.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from muster.kube.objects.auth import NODE_NAME, POD_NAME, UserInfo
from muster.kube.requestinfo import RequestInfo, request_info
from muster.kube.requestlog import RequestLine
from muster.readcache.request import Request

_AGENT_MAX: Final = 256
_TOKEN_MAX: Final = 16 << 10
_UNAUTHORIZED: Final = 401


class RequestTracer:
    """Starts a trace for each request. `write` receives the lines."""

    def __init__(self, write: Callable[[RequestLine], None], *, node: str = "") -> None:
        """Write nothing yet.

        Args:
            write: receives the lines.
            node: name of the node of all clients, for tokens that do not name it; "" if they are on several.
        """
        self._write = write
        self._node = node
        self._ids = itertools.count(1)

    def began(self, request: Request) -> Trace | None:
        """Start a trace; None for a request that is not about a resource."""
        info = request_info(request.method, request.path, request.query)
        if not info.resource:
            return None
        return Trace(self._write, request, info, self._node, f"{id(self):x}-{next(self._ids)}")


class Trace:
    """What happens to one request."""

    __slots__ = (
        "_began",
        "_bytes",
        "_events",
        "_head",
        "_id",
        "_info",
        "_node",
        "_request",
        "_skip",
        "_user",
        "_write",
    )

    def __init__(
        self, write: Callable[[RequestLine], None], request: Request, info: RequestInfo, node: str, id_: str
    ) -> None:
        self._write: Callable[[RequestLine], None] | None = write
        self._request = request
        self._info = info
        self._node = node
        self._id = id_ if info.verb == "watch" else ""
        self._began = time.time()
        self._user: UserInfo | None = None
        self._bytes = 0
        self._events = 0
        self._head = bytearray()
        self._skip = 0

    def admitted(self, user: UserInfo) -> None:
        """The user is known."""
        self._user = user

    def opened(self) -> None:
        """The answer begins: a watch gets its first line."""
        if self._info.verb == "watch" and self._write is not None:
            self._write(self._line(self._began, opened=True, code=0))

    def count(self, data: bytes, *, framed: bool) -> None:
        """Count a piece of the body. `framed` says that events have lengths in front, as in protobuf."""
        self._bytes += len(data)
        if self._info.verb != "watch":
            return
        if not framed:
            self._events += data.count(b"\n")
            return
        at = 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
            else:
                part = data[at : at + 4 - len(self._head)]
                self._head += part
                step = len(part)
                if len(self._head) == 4:
                    self._skip = int.from_bytes(self._head, "big")
                    self._events += 1
                    self._head.clear()
            at += step

    def ended(self, code: int) -> None:
        """The answer is complete or broke off. Only the first call counts."""
        write, self._write = self._write, None
        if write is not None:
            write(self._line(time.time(), opened=False, code=code))

    def _line(self, now: float, *, opened: bool, code: int) -> RequestLine:
        user, pod, node = self._caller(code)
        request, info, query = self._request, self._info, self._request.query
        limit = query.get("limit", "")
        return RequestLine(
            time=now,
            seconds=0.0 if opened else now - self._began,
            verb=info.verb,
            id=self._id,
            open=opened,
            user=user,
            user_agent=request.header("user-agent")[:_AGENT_MAX],
            pod=pod,
            node=node or self._node,
            peer=request.peer,
            group=info.group,
            resource=info.resource,
            subresource=info.subresource,
            namespace=info.namespace,
            name=info.name,
            label_selector=query.get("labelSelector", ""),
            field_selector=query.get("fieldSelector", ""),
            resource_version=query.get("resourceVersion", ""),
            match=query.get("resourceVersionMatch", ""),
            limit=int(limit) if limit.isascii() and limit.isdigit() and len(limit) < 19 else 0,
            continued=bool(query.get("continue")),
            initial=query.get("sendInitialEvents", "").lower() in ("true", "1"),
            code=code,
            bytes=-1 if opened else self._bytes,
            events=self._events if info.verb == "watch" and not opened else -1,
        )

    def _caller(self, code: int) -> tuple[str, str, str]:
        """User, pod and node."""
        if self._user is not None:
            extra = self._user.extra
            return self._user.username, _first(extra.get(POD_NAME)), _first(extra.get(NODE_NAME))
        if code == _UNAUTHORIZED:
            return "", "", ""
        claims = _claims(self._request.header("authorization"))
        bound = claims.get("kubernetes.io")
        bound = bound if isinstance(bound, dict) else {}
        return str(claims.get("sub", "")), _name(bound.get("pod")), _name(bound.get("node"))


def _first(values: tuple[str, ...] | None) -> str:
    return values[0] if values else ""


def _name(value: object) -> str:
    return str(value.get("name", "")) if isinstance(value, dict) else ""


def _claims(authorization: str) -> Mapping[str, Any]:
    """Claims of a bearer token, not verified; empty if it is not a JSON web token."""
    scheme, _, token = authorization.partition(" ")
    parts = token.strip().split(".")
    if scheme.lower() != "bearer" or len(parts) != 3 or len(parts[1]) > _TOKEN_MAX:
        return {}
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, msgspec.DecodeError, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}
