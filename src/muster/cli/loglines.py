"""Reading a pod's log as lines that know their attempt."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import NamedTuple

import aiohttp

from muster.api.names import WORKER_CONTAINER
from muster.kube.client import Client
from muster.kube.pod import Pod

MARKER = re.compile(r"^--- muster: attempt (\d+)\b(?:: node (\d+) of \d+)?")
_RANK = re.compile(r"^\[rank (\d+)\] ")
_LINE_CHARS_MAX = 64 * 1024


class LogLine(NamedTuple):
    """A line of a pod's log and what it belongs to; markers belong to the attempt they begin.

    Attributes:
        text: the line.
        attempt: the attempt.
        node: the pod's node rank in that attempt; -1 where no marker has said so yet.
    """

    text: str
    attempt: int
    node: int = -1

    def of_rank(self, rank: int, ranks_per_node: int, *, named: bool) -> bool:
        """Whether the rank wrote it, or it marks an attempt on its node; `named`: lines begin with their rank."""
        if self.node != rank // ranks_per_node:
            return False
        found = _RANK.match(self.text)
        if found or not named:
            return not named or (found is not None and int(found[1]) == rank)
        return MARKER.match(self.text) is not None


class AttemptReader:
    """Cuts a stream of bytes into lines and counts attempts by the supervisor's marker lines."""

    def __init__(self, first_attempt: int) -> None:
        """Lines before any marker belong to `first_attempt`."""
        self._attempt = first_attempt
        self._node = -1
        self._rest = b""

    def feed(self, data: bytes) -> list[LogLine]:
        """The lines completed by `data`; a line beyond 64 Ki characters is cut into several."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE_CHARS_MAX:
            whole.append(self._rest)
            self._rest = b""
        return [self._line(line) for line in whole]

    def end(self) -> list[LogLine]:
        """What was left without a line's end."""
        rest, self._rest = self._rest, b""
        return [self._line(rest)] if rest else []

    def _line(self, raw: bytes) -> LogLine:
        text = raw.decode("utf-8", "replace").rstrip("\r")
        found = MARKER.match(text)
        if found:
            self._attempt = int(found[1])
            self._node = int(found[2]) if found[2] else self._node
        return LogLine(text, self._attempt, self._node)


async def log_lines(client: Client, pod: Pod, first_attempt: int, follow: bool) -> AsyncIterator[LogLine]:
    """The lines of a pod's worker; with `follow`, until the worker ends or the connection does."""
    path = pod.RESOURCE.path(pod.namespace, pod.name, "log")
    params = {"container": WORKER_CONTAINER} | ({"follow": "true"} if follow else {})
    reader = AttemptReader(first_attempt)
    async with client.stream("GET", path, params=params) as response:
        try:
            async for data in response.content.iter_any():
                for line in reader.feed(data):
                    yield line
        except aiohttp.ClientError:
            if not follow:
                raise
    for line in reader.end():
        yield line
