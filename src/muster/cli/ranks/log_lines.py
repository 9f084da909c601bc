"""Reads a pod's log as lines with their attempt."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import NamedTuple

import aiohttp

from muster.api.names import WORKER_CONTAINER
from muster.kube.client import Client
from muster.kube.objects.pod import Pod

MARKER = re.compile(r"^--- muster: attempt (\d+)\b(?:: node (\d+) of \d+)?")
_RANK = re.compile(r"^\[rank (\d+)\] ")
_LINE_CHARS_MAX = 64 * 1024
_HELD_BYTES_MAX = 16 << 20
"""More than the kubelet's default size of a log file, so that a marker in the file is found."""
IDLE_S = 0.3


class LogLine(NamedTuple):
    """A line of a pod's log with its attempt. A marker belongs to the attempt that it begins.

    Attributes:
        text: the line.
        attempt: the attempt that wrote it.
        node: the pod's node rank in that attempt; -1 before the first marker.
    """

    text: str
    attempt: int
    node: int = -1

    def of_rank(self, rank: int, ranks_per_node: int, *, named: bool, home: int = -1) -> bool:
        """Returns whether the rank wrote the line, or the line marks an attempt on its node.

        Args:
            rank: the rank.
            ranks_per_node: how many ranks a node has.
            named: lines begin with their rank.
            home: the pod's node rank in the current attempt; -1 if it is not known. It is used if log rotation removed
                the marker.
        """
        at_home = (self.node if self.node >= 0 else home) == rank // ranks_per_node
        found = _RANK.match(self.text)
        if named and found is not None:
            return int(found[1]) == rank and (at_home or self.node < 0)
        return at_home and (not named or MARKER.match(self.text) is not None)


class AttemptReader:
    """Splits a stream of bytes into lines, and finds their attempts by the supervisor's marker lines."""

    def __init__(self, first_attempt: int, current: int = 0, *, hold: bool = False) -> None:
        """Read the log of a pod that was created at `first_attempt`; the job is at attempt `current`.

        Lines before any marker belong to the attempt before that of the marker, and at least to `first_attempt`. With
        `hold` they wait for the marker; if none comes within 16 MiB, or without `hold`, they belong to `current`.
        """
        self._first = first_attempt
        self._attempt = self._current = max(first_attempt, current)
        self._hold = hold and self._current > first_attempt
        self._held: list[str] = []
        self._held_bytes = 0
        self._node = -1
        self._rest = b""

    def feed(self, data: bytes) -> list[LogLine]:
        """Return the lines that `data` completes. A line of more than 64 Ki characters is split."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE_CHARS_MAX:
            whole.append(self._rest)
            self._rest = b""
        return [line for raw in whole for line in self._take(raw)]

    def end(self) -> list[LogLine]:
        """Return the rest: an unfinished line, or lines that waited for a marker."""
        rest, self._rest = self._rest, b""
        lines = self._take(rest) if rest else []
        return self._release(self._current) + lines

    def _take(self, raw: bytes) -> list[LogLine]:
        text = raw.decode("utf-8", "replace").rstrip("\r")
        found = MARKER.match(text)
        if found:
            self._attempt = int(found[1])
            self._node = int(found[2]) if found[2] else self._node
            return [*self._release(max(self._first, self._attempt - 1)), LogLine(text, self._attempt, self._node)]
        if not self._hold:
            return [LogLine(text, self._attempt, self._node)]
        self._held.append(text)
        self._held_bytes += len(raw)
        return self._release(self._current) if self._held_bytes > _HELD_BYTES_MAX else []

    def _release(self, attempt: int) -> list[LogLine]:
        held, self._held, self._hold = self._held, [], False
        return [LogLine(text, attempt) for text in held]


async def log_lines(
    client: Client, pod: Pod, reader: AttemptReader, *, follow: bool, tail: int | None = None
) -> AsyncIterator[list[LogLine]]:
    """Yield the lines of a pod's worker as they arrive. With `follow`, until the worker or the connection ends.

    An empty list means that no line came for a moment, so all earlier lines have been read.
    """
    path = pod.RESOURCE.path(pod.namespace, pod.name, "log")
    params = {"container": WORKER_CONTAINER}
    if follow:
        params["follow"] = "true"
    if tail is not None:
        params["tailLines"] = str(tail)
    async with client.stream("GET", path, params=params) as response:
        try:
            idle = False
            while not response.content.at_eof():
                try:
                    async with asyncio.timeout(None if idle or not follow else IDLE_S):
                        data = await response.content.readany()
                except TimeoutError:
                    idle = True
                    yield []
                    continue
                yield reader.feed(data)
        except aiohttp.ClientError:
            if not follow:
                raise
    yield reader.end()
