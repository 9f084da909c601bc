"""Continue tokens in kube-apiserver's format, so that either side can go on with the other's token.

Source: k8s.io/apiserver pkg/storage/continue.go.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
from typing import Final, NamedTuple

import msgspec

INCONSISTENT: Final = -1
"""The version in a token that asks for the newest state after a key."""


class Continuation(NamedTuple):
    """Where a list continues: after `key` (relative to the listed namespace), at `version` or INCONSISTENT."""

    key: str
    version: int


class _Token(msgspec.Struct):
    v: str
    rv: int
    start: str


def write_token(key: str, version: int) -> str:
    """Returns the token for what follows `key`, as kube-apiserver's watch cache writes it: etcd's has no slash."""
    body = msgspec.json.encode(_Token("meta.k8s.io/v1", version, f"/{key}\0"))
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode()


def read_token(token: str) -> Continuation | None:
    """Returns where a list continues, None if the API server must judge the token."""
    try:
        body = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        found = msgspec.json.decode(body, type=_Token)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None
    key = found.start.removeprefix("/")
    if found.v != "meta.k8s.io/v1" or found.rv == 0 or not key.endswith("\0") or len(key) < 2:
        return None
    if key.startswith("/") or posixpath.normpath(f"/{key}") != f"/{key}":
        return None
    return Continuation(key[:-1], max(found.rv, INCONSISTENT))
