"""Connections to the control sockets of node caches: on this machine, or by exec into the caches' pods."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from muster.cli.errors import CliError, ExitCode
from muster.sdk.data.wire import Message, ProtocolError, close_all, receive, send, short_address

if TYPE_CHECKING:
    from muster.kube.client import Client
    from muster.kube.objects.pod import Pod

CONTAINER = "cache"
POD_SOCKET = "/var/lib/muster-cache/control.sock"
RELAY = ("python3", "-m", "muster.cli.data.relay", POD_SOCKET)
_CONNECT_S = 5.0


class CacheRefusal(CliError):
    """The cache answered with an error.

    Attributes:
        code: one of `wire.ErrorCode`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message or code)
        self.code = code


class Link(Protocol):
    """An open connection to one cache."""

    async def ask(self, request: Message, timeout_s: float) -> Message:
        """Return the answer. Raises CacheRefusal, and CliError if the cache does not answer in time."""
        ...


class LocalLink:
    """A connection to a socket of this machine."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    async def ask(self, request: Message, timeout_s: float) -> Message:
        """Return the answer. Raises CacheRefusal, CliError."""
        self._connection.settimeout(timeout_s)
        return _checked(await asyncio.to_thread(self._exchange, request))

    def _exchange(self, request: Message) -> Message:
        try:
            send(self._connection, request)
            answer, descriptors = receive(self._connection)
        except TimeoutError:
            raise CliError("the cache did not answer in time", "", ExitCode.TIMED_OUT) from None
        except (OSError, EOFError, ProtocolError) as error:
            raise CliError(f"the cache failed: {error}") from None
        close_all(descriptors)
        return answer


class PodLink:
    """A connection through a relay in the cache's pod."""

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue

    async def ask(self, request: Message, timeout_s: float) -> Message:
        """Return the answer. Raises CacheRefusal, CliError."""
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._dialogue.ask(json.dumps(request).encode())
        except TimeoutError:
            raise CliError("the cache did not answer in time", "", ExitCode.TIMED_OUT) from None
        return _checked(json.loads(line))


class Dialogue(Protocol):
    """What a PodLink needs of `ranks.remote.Dialogue`."""

    async def ask(self, line: bytes) -> bytes:
        """Send a line and return the answer."""
        ...


@contextlib.asynccontextmanager
async def local_link(control: Path) -> AsyncIterator[Link]:
    """Connect to the control socket `control`. Raises CliError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_CONNECT_S)
        try:
            with short_address(str(control)) as address:
                await asyncio.to_thread(connection.connect, address)
        except OSError as error:
            raise CliError(f"the cache does not answer: {error.strerror or error}") from None
        yield LocalLink(connection)


@contextlib.asynccontextmanager
async def pod_link(client: Client, pod: Pod) -> AsyncIterator[Link]:
    """Start a relay in the pod of a cache. Raises CliError."""
    from muster.cli.ranks.remote import dialogue

    async with dialogue(client, pod, CONTAINER, RELAY) as opened:
        yield PodLink(opened)


def _checked(answer: Message) -> Message:
    if "error" in answer:
        raise CacheRefusal(str(answer["error"]), str(answer.get("message", "")))
    return answer
