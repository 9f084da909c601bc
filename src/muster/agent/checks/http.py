"""Limited HTTP GET for pages on the node itself and of the cloud. It blocks: use `aside.Aside`."""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

PAGE_BYTES_MAX: Final = 4 << 20
_PIECE_BYTES: Final = 1 << 16


class HttpError(Exception):
    """No answer, or an answer that is not HTTP."""


class Answer(NamedTuple):
    """A server's answer."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text. Bytes that are not UTF-8 are replaced."""
        return self.body.decode(errors="replace")


def check_url(url: str) -> str:
    """Return a URL that `get` can fetch.

    Raises:
        ValueError: it is not http://ADDRESS[:PORT]/PATH.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or (parts.port or 80) < 1:
        raise ValueError(f"{url}: only http://ADDRESS[:PORT]/PATH can be fetched")
    return url


def get(url: str, timeout_s: float, headers: Mapping[str, str] | None = None) -> Answer:
    """Fetch a page of at most PAGE_BYTES_MAX, without proxies.

    Args:
        url: http://ADDRESS[:PORT]/PATH.
        timeout_s: for connecting, for each pause of the server, and for the whole page.
        headers: additional ones.

    Raises:
        HttpError: refused, not in time, not HTTP, cut off, or too long.
    """
    parts = urlsplit(url)
    end_s = time.monotonic() + timeout_s
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout_s)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Connection": "close", **(headers or {})})
        response = connection.getresponse()
        body = bytearray()
        while piece := response.read1(_PIECE_BYTES):
            body += piece
            if len(body) > PAGE_BYTES_MAX or time.monotonic() > end_s:
                raise HttpError(f"{url}: {len(body)} bytes and no end within {timeout_s:g} s")
        if response.length:
            raise HttpError(f"{url}: cut off after {len(body)} bytes")
        return Answer(response.status, bytes(body))
    except TimeoutError:
        raise HttpError(f"{url}: no answer within {timeout_s:g} s") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise HttpError(f"{url}: {str(error) or type(error).__name__}") from error
    finally:
        connection.close()
