"""Requests and answers of the API core, without sockets."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from muster.embedded.apiserver.status import bad_request
from muster.embedded.objects import Obj, encode


@dataclasses.dataclass(frozen=True)
class User:
    """The authenticated user of a request."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
ADMIN = User("kubernetes-admin", groups=("system:masters", "system:authenticated"))


@dataclasses.dataclass
class Request:
    """One request; header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str] = dataclasses.field(default_factory=dict)
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: bytes = b""
    user: User = ADMIN
    raw_query: str = ""  # parameters that are repeated (exec's command)

    def flag(self, name: str) -> bool:
        """Return a boolean query parameter. As in kube-apiserver, every value is true except the spellings of false."""
        text = self.query.get(name)
        return text is not None and text.lower() not in ("", "0", "false")

    def number(self, name: str) -> int | None:
        """Return a whole-number query parameter, None if absent.

        Raises:
            StatusError: 400 if it is not a number.
        """
        text = self.query.get(name)
        if text is None:
            return None
        if not _INTEGER.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
            raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
        return int(text)


@dataclasses.dataclass
class Response:
    """A complete answer."""

    code: int
    body: bytes
    content_type: str = "application/json"
    warnings: list[str] = dataclasses.field(default_factory=list)
    headers: dict[str, str] = dataclasses.field(default_factory=dict)

    def json(self) -> Any:
        """Decode the body, for callers in this process."""
        return msgspec.json.decode(self.body)


@dataclasses.dataclass
class ProxyResponse:
    """A request that the HTTPS server must forward to a kubelet."""

    address: str
    port: int
    path: str
    query: str
    upgrade: bool  # a websocket (exec, attach, port-forward) rather than a plain stream (logs)


def json_response(code: int, obj: Obj) -> Response:
    """Answer with one object."""
    return Response(code, encode(obj))
