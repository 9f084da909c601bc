"""Heads of HTTP requests and responses: what is read from them, and how they are written."""

from __future__ import annotations

import time
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import unquote_to_bytes

Header = tuple[str, str]

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""RFC 9110, section 7.6.1: they concern one connection."""

_CREDENTIALS = ("authorization", "impersonate-")
"""They are meant for the API server. If `Connection` could remove them, a caller would get rid of an impersonation that
a proxy in front of the cache added."""

CACHE_CONTROL: Header = ("Cache-Control", "no-cache, private")
"""kube-apiserver sends it with every response."""

_HEX = frozenset(b"0123456789abcdefABCDEF")
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_date: tuple[int, str] = (0, "")


def path_and_query(target: str) -> tuple[str, str]:
    """Return the path and query of a request target as they are forwarded, also of one in absolute form."""
    if target.startswith(("http://", "https://")):
        target = "/" + target.split("/", 3)[3] if target.count("/") > 2 else "/"
    path, _, query = target.partition("?")
    return path, query


def unescape(text: str, *, plus: bool) -> str | None:
    """Undo percent-encoding as Go's net/url does. Returns None if it is not valid."""
    raw = text.encode("latin-1")
    if plus:
        raw = raw.replace(b"+", b" ")
    if b"%" in raw:
        for part in raw.split(b"%")[1:]:
            if len(part) < 2 or not _HEX.issuperset(part[:2]):
                return None
        raw = unquote_to_bytes(raw)
    return raw.decode("utf-8", "replace")


def parse_query(query: str) -> dict[str, str]:
    """Return the first value of each parameter. Pairs that Go's net/url rejects are left out."""
    found: dict[str, str] = {}
    for pair in query.split("&"):
        if not pair or ";" in pair:
            continue
        key, _, value = pair.partition("=")
        name, text = unescape(key, plus=True), unescape(value, plus=True)
        if name is not None and text is not None:
            found.setdefault(name, text)
    return found


def end_to_end(headers: Iterable[Header]) -> list[Header]:
    """Return the headers that do not concern only one connection. Credentials never do."""
    listed = list(headers)
    named = {
        part.strip().lower() for name, value in listed if name.lower() == "connection" for part in value.split(",")
    }
    dropped = HOP_BY_HOP | {name for name in named if not name.startswith(_CREDENTIALS)}
    return [(name, value) for name, value in listed if name.lower() not in dropped]


def response_head(status: int, headers: Iterable[Header]) -> bytes:
    """Write the status line and headers."""
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def request_head(method: str, target: str, headers: Iterable[Header]) -> bytes:
    """Write the request line and headers. Raises ValueError: there is a line break in one of them."""
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers]
    text = "\r\n".join(lines) + "\r\n\r\n"
    if text.count("\n") != len(lines) + 1 or text.count("\r") != len(lines) + 1:
        raise ValueError("a line break in the head of a request")
    return text.encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Write one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def last_chunk(trailers: Iterable[Header] = ()) -> bytes:
    """Write the end of a chunked body."""
    text = "".join(f"{name}: {value}\r\n" for name, value in trailers)
    return b"0\r\n" + text.encode("latin-1") + b"\r\n"


def date() -> str:
    """The value of the Date header, made once a second."""
    global _date
    now = int(time.time())
    if _date[0] != now:
        _date = (now, formatdate(now, usegmt=True))
    return _date[1]
