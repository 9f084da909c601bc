"""Asks the node's data cache which job each of its socket marks belongs to, and how much each job read."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from muster.sdk.data.wire import ProtocolError, close_all, receive, send, short_address

TIMEOUT_S: Final = 2.0
_FRAMES_MAX: Final = 5
"""The cache sends a frame each second while it works on an answer."""


class CacheJob(NamedTuple):
    """A job of the data cache.

    Attributes:
        namespace, job: its name; "" for a reader without a ticket.
        mark: of its sockets; 0 without.
        bucket_bytes: that it caused to be read from buckets, since the cache started.
    """

    namespace: str
    job: str
    mark: int
    bucket_bytes: int


def cache_jobs(path: str) -> list[CacheJob]:
    """Return the jobs that the cache knows. Blocks for at most a few seconds.

    Raises:
        OSError: the cache does not answer.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_S)
        with short_address(path) as address:
            connection.connect(address)
        try:
            return list(_jobs(_status(connection).get("jobs")))
        except (ProtocolError, EOFError) as error:
            raise OSError(f"the data cache at {path} failed: {error}") from error


def _status(connection: socket.socket) -> dict[str, Any]:
    send(connection, {"op": "status"})
    for _ in range(_FRAMES_MAX):
        answer, descriptors = receive(connection)
        close_all(descriptors)
        if answer.get("error"):
            raise ProtocolError(str(answer.get("message") or answer["error"]))
        if not answer.get("pending"):
            return answer
    raise ProtocolError("it did not answer in time")


def _jobs(entries: Any) -> Iterator[CacheJob]:
    for each in entries if isinstance(entries, list) else ():
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            namespace, _, job = str(each["name"]).rpartition("/")
            yield CacheJob(namespace, job if namespace else "", int(each["mark"]), int(each["bytes"].get("bucket", 0)))
