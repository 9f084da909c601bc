"""The target of a request: its path, in one form only, and its parameters."""

from __future__ import annotations

import re
from typing import Final

from muster.telemetry.guard.query.form import TooManyPairs, decode_pairs
from muster.telemetry.guard.serving.failure import Failure

PARAMETERS_MAX: Final = 1000
_PATH: Final = re.compile(r"(/[A-Za-z0-9_.-]+)+/?")
"""Paths of the API need no percent-encoding: label names in UTF-8 are escaped as `U__...`.
https://github.com/prometheus/proposals/blob/main/proposals/0028-utf8.md"""
_BEGINNINGS: Final = ("/api/v1/", "/federate")
_DOTS: Final = frozenset({".", ".."})


def split_target(raw: str, prefix: str, max_bytes: int) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the path below `prefix`, and the parameters of the query string.

    Servers and proxies decode and clean paths in different ways. So a path that could mean another one after decoding
    or cleaning (`%61dmin`, `//`, `..`) is denied, and the guard encodes again what it sends to Prometheus.

    Args:
        raw: the target as the client sent it.
        prefix: path of the server in front of `/api/v1`, such as `/prometheus`; clients may leave it out.
        max_bytes: greatest target.

    Raises:
        Failure: the target is not valid.
    """
    if len(raw) > max_bytes:
        raise Failure("bad_request", 414, f"the request line has more than {max_bytes} bytes; send a form with POST")
    path, _, query = raw.partition("?")
    if path == "/":
        return path, parse_parameters(query)
    if "#" in raw or not _PATH.fullmatch(path) or not _DOTS.isdisjoint(path.split("/")):
        raise Failure("denied_path", 403, "this path is denied: write it as docs/guard.md does, without encoding")
    below = path.removeprefix(prefix)
    return below if below.startswith(_BEGINNINGS) else path, parse_parameters(query)


def parse_parameters(text: str) -> tuple[tuple[str, str], ...]:
    """Parse a query string or a form.

    Raises:
        Failure: it is not valid, or Go and Python would read it in different ways.
    """
    if not text:
        return ()
    if ";" in text or _BROKEN.search(text):
        raise Failure("bad_request", 400, "the parameters are not valid: encode `;` as %3B and `%` as %25")
    try:
        return decode_pairs(text, PARAMETERS_MAX)
    except UnicodeDecodeError:
        raise Failure("bad_request", 400, "the parameters are not valid UTF-8") from None
    except TooManyPairs:
        raise Failure("bad_request", 400, f"there are more than {PARAMETERS_MAX} parameters") from None


_BROKEN: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
