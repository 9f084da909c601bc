"""Runs a command in a pod over the pods/exec websocket, with this terminal attached.

The protocol is v5.channel.k8s.io (KEP-4006). Each message is a byte for the channel, and its data. Channels 0 to 2 are
stdin, stdout and stderr, 3 the final Status, 4 the terminal's size; 255 closes the channel named by the next byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from urllib.parse import urlencode

import aiohttp

from muster.api.names import WORKER_CONTAINER
from muster.cli.errors import CliError
from muster.kube.client import Client
from muster.kube.errors import Forbidden
from muster.kube.objects.pod import Pod

PROTOCOL = "v5.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_CHUNK_BYTES = 32 * 1024


class NotAllowed(CliError):
    """The user lacks the right to run commands in pods."""


async def execute(client: Client, pod: Pod, arguments: Sequence[str], *, terminal: bool) -> int:
    """Run a command in the pod's worker with our stdin, stdout and stderr; returns its exit status.

    Raises:
        CliError: the command could not be run, or the connection broke.
    """
    flags = {"stdin": "true", "stdout": "true", "stderr": str(not terminal).lower(), "tty": str(terminal).lower()}
    async with _command(client, pod, flags, arguments) as socket:
        with _raw_terminal(terminal):
            typing = asyncio.create_task(_send_stdin(socket))
            resizing = asyncio.create_task(_send_sizes(socket)) if terminal else None
            try:
                return await _receive(socket)
            finally:
                for task in (typing, resizing):
                    if task:
                        task.cancel()
                        with contextlib.suppress(asyncio.CancelledError, ConnectionError, aiohttp.ClientError):
                            await task


async def capture(client: Client, pod: Pod, arguments: Sequence[str]) -> tuple[int, bytes]:
    """Run a command in the pod's worker without stdin; returns its exit status and its stdout.

    Raises:
        CliError: the command could not be run, or the connection broke.
    """
    flags = {"stdin": "false", "stdout": "true", "stderr": "true", "tty": "false"}
    out = bytearray()
    async with _command(client, pod, flags, arguments) as socket:
        async for message in socket:
            data = message.data
            if message.type is aiohttp.WSMsgType.BINARY and data and data[0] == _STDOUT:
                out += data[1:]
            elif message.type is aiohttp.WSMsgType.BINARY and data and data[0] == _STATUS:
                return exit_status(data[1:]), bytes(out)
    raise CliError("the connection to the pod broke before the command ended")


class Dialogue:
    """A running command that answers each line on its stdin with one line on its stdout."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._out, self._errors = bytearray(), bytearray()

    async def ask(self, line: bytes) -> bytes:
        """Send a line and return the answer, both without their ends.

        Raises:
            CliError: the command ended. The message has the end of its stderr.
        """
        for start in range(0, len(line), _CHUNK_BYTES):
            await self._socket.send_bytes(bytes([_STDIN]) + line[start : start + _CHUNK_BYTES])
        await self._socket.send_bytes(bytes([_STDIN]) + b"\n")
        while b"\n" not in self._out:
            message = await self._socket.receive()
            data = message.data
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise CliError("the connection to the pod broke before the command answered")
            if data and data[0] == _STDOUT:
                self._out += data[1:]
            elif data and data[0] == _STDERR:
                self._errors = (self._errors + data[1:])[-_CHUNK_BYTES:]
            elif data and data[0] == _STATUS:
                status = exit_status(data[1:])
                last = self._errors.decode(errors="replace").strip().rpartition("\n")[2]
                raise CliError(f"the command ended with status {status}" + (f": {last}" if last else ""))
        answer, _, rest = bytes(self._out).partition(b"\n")
        self._out = bytearray(rest)
        return answer


@contextlib.asynccontextmanager
async def dialogue(client: Client, pod: Pod, container: str, arguments: Sequence[str]) -> AsyncIterator[Dialogue]:
    """Run a command in a container while the block runs. Raises CliError if it could not be run."""
    flags = {"stdin": "true", "stdout": "true", "stderr": "true", "tty": "false"}
    async with _command(client, pod, flags, arguments, container) as socket:
        yield Dialogue(socket)


@contextlib.asynccontextmanager
async def _command(
    client: Client,
    pod: Pod,
    flags: Mapping[str, str],
    arguments: Sequence[str],
    container: str = WORKER_CONTAINER,
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Start a command in a container of the pod.

    Raises:
        NotAllowed: RBAC forbids it. The request is a GET, so that every API server asks for the verb `get`; those of
            Kubernetes 1.35 and later also ask for `create` (AuthorizePodWebsocketUpgradeCreatePermission).
    """
    query = urlencode([("container", container), *flags.items(), *(("command", part) for part in arguments)])
    path = f"{pod.RESOURCE.path(pod.namespace, pod.name, 'exec')}?{query}"
    try:
        async with client.websocket(path, protocols=(PROTOCOL,)) as socket:
            yield socket
    except Forbidden as error:
        raise NotAllowed(
            f"you may not run commands in pods of namespace {pod.namespace}: {error.message.rstrip(': ')}",
            "ask for the verbs get and create on the resource pods/exec there",
        ) from None


async def _receive(socket: aiohttp.ClientWebSocketResponse) -> int:
    async for message in socket:
        data = message.data
        if message.type is not aiohttp.WSMsgType.BINARY or not data:
            continue
        if data[0] in (_STDOUT, _STDERR):
            stream = sys.stdout if data[0] == _STDOUT else sys.stderr
            stream.buffer.write(data[1:])
            stream.buffer.flush()
        elif data[0] == _STATUS:
            return exit_status(data[1:])
    raise CliError("the connection to the pod broke before the command ended")


def exit_status(status: bytes) -> int:
    """Return the exit status in a final Status. Raises CliError if the command could not be run."""
    parsed = json.loads(status)
    if parsed.get("status") == "Success":
        return 0
    for cause in (parsed.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise CliError(f"the command could not be run: {parsed.get('message', 'no reason given')}")


async def _send_stdin(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Pass stdin on. A thread reads it, because files cannot be polled as terminals can."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        while True:
            try:
                chunk = os.read(0, _CHUNK_BYTES)
            except OSError:
                chunk = b""
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:  # the command and the event loop have ended
                return
            if not chunk:
                return

    threading.Thread(target=read, daemon=True, name="stdin").start()
    while chunk := await chunks.get():
        await socket.send_bytes(bytes([_STDIN]) + chunk)
    await socket.send_bytes(bytes([_CLOSE, _STDIN]))


async def _send_sizes(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Send the terminal's size now, and again after each change."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    changed.set()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        while True:
            await changed.wait()
            changed.clear()
            size = shutil.get_terminal_size()
            await socket.send_bytes(
                bytes([_RESIZE]) + json.dumps({"Width": size.columns, "Height": size.lines}).encode()
            )
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


@contextlib.contextmanager
def _raw_terminal(terminal: bool) -> Iterator[None]:
    """Pass every key to the remote side while the block runs, and restore the terminal afterwards."""
    if not terminal:
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(0)
    try:
        tty.setraw(0, termios.TCSADRAIN)  # keep keys that were typed in the meantime
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
