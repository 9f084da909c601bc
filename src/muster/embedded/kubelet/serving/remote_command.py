"""exec over WebSocket: v4.channel.k8s.io and v5.channel.k8s.io.

Each message begins with its channel: 0 stdin, 1 stdout, 2 stderr, 3 error (a Status at the end), 4 resize.
v5 adds 255, which closes the channel named by the next byte (KEP-4006).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import struct
import termios
from typing import Any

from aiohttp import WSMsgType, web

from muster.embedded.kubelet.containers.container import ContainerRunner
from muster.embedded.kubelet.containers.process import Exit, Process, StartError

_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_CHUNK_BYTES = 1 << 15
_HEARTBEAT_S = 30.0
_DRAIN_S = 5.0


class RemoteCommand:
    """One exec request."""

    def __init__(self, runner: ContainerRunner, request: web.Request) -> None:
        """Parse the query: command, tty and streams (by the names of the API or of the kubelet)."""
        query = request.query
        self._runner = runner
        self._request = request
        self._command = query.getall("command", [])
        self._tty = _wanted(query, "tty")
        self._stdin = _wanted(query, "stdin", "input")
        self._stdout = _wanted(query, "stdout", "output")
        self._stderr = _wanted(query, "stderr", "error") and not self._tty
        self._socket = web.WebSocketResponse(protocols=_PROTOCOLS, heartbeat=_HEARTBEAT_S, max_msg_size=0)
        self._input = -1
        self._terminal = -1

    async def serve(self) -> web.StreamResponse:
        """Run the command with its streams on the WebSocket, and send the result at the end."""
        if not self._command:
            raise web.HTTPBadRequest(text="you must specify at least one command for the container")
        if not self._socket.can_prepare(self._request).ok:
            raise web.HTTPBadRequest(text="exec needs a WebSocket here; SPDY is not supported")
        await self._socket.prepare(self._request)
        try:
            status = await self._run()
        except StartError as error:
            status = _failure(f"error executing command in container: {error}", None)
        with contextlib.suppress(ConnectionError, RuntimeError):
            await self._send(_ERROR, json.dumps(status).encode())
            await self._socket.close()
        return self._socket

    async def _run(self) -> dict[str, Any]:
        assert self._runner.launched is not None
        stdio, readers, ours = self._streams()
        try:
            process = await Process.start(self._runner.launched.command_spec(self._command, stdio, tty=self._tty))
        except StartError:
            for handle in ours:
                os.close(handle)
            self._close_ours()
            raise
        finally:
            for handle in set(stdio):
                os.close(handle)
        self._runner.sessions.add(process)
        pumps = [asyncio.create_task(self._pump(handle, channel)) for handle, channel in readers]
        receiver = asyncio.create_task(self._receive(process))
        try:
            exited = await asyncio.shield(process.exited)
            if pumps:
                await asyncio.wait(pumps, timeout=_DRAIN_S)
            return _result(exited)
        finally:
            process.kill()
            self._runner.sessions.discard(process)
            for task in (receiver, *pumps):
                task.cancel()
            await asyncio.gather(receiver, *pumps, return_exceptions=True)
            self._close_ours()

    def _streams(self) -> tuple[tuple[int, int, int], list[tuple[int, int]], list[int]]:
        """Return the command's three files, the files that we read with their channels, and all that we must close."""
        if self._tty:
            self._terminal, theirs = pty.openpty()
            reader = os.dup(self._terminal)
            self._input = os.dup(self._terminal) if self._stdin else -1
            return (theirs, theirs, theirs), [(reader, _STDOUT)], [reader]
        readers, mine, theirs_all = [], [], []
        if self._stdin:
            read, self._input = os.pipe()
            theirs_all.append(read)
        else:
            theirs_all.append(os.open(os.devnull, os.O_RDONLY))
        for wanted, channel in ((self._stdout, _STDOUT), (self._stderr, _STDERR)):
            if wanted:
                read, write = os.pipe()
                readers.append((read, channel))
                mine.append(read)
                theirs_all.append(write)
            else:
                theirs_all.append(os.open(os.devnull, os.O_WRONLY))
        return (theirs_all[0], theirs_all[1], theirs_all[2]), readers, mine

    async def _pump(self, handle: int, channel: int) -> None:
        """Send the command's output, as fast as the client reads it."""
        loop = asyncio.get_running_loop()
        os.set_blocking(handle, False)
        try:
            while True:
                try:
                    data = os.read(handle, _CHUNK_BYTES)
                except BlockingIOError:
                    readable = asyncio.Event()
                    loop.add_reader(handle, readable.set)
                    try:
                        await readable.wait()
                    finally:
                        loop.remove_reader(handle)
                    continue
                except OSError:  # the last process on the terminal has ended
                    return
                if not data:
                    return
                await self._send(channel, data)
        finally:
            os.close(handle)

    async def _receive(self, process: Process) -> None:
        """Receive the client's messages. If the client disconnects, end the command."""
        async for message in self._socket:
            if message.type is not WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == _STDIN and self._input >= 0:
                await self._write(data)
            elif channel == _RESIZE and self._terminal >= 0:
                with contextlib.suppress(ValueError, KeyError, struct.error):
                    size = json.loads(data)
                    window = struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
                    fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, window)
            elif channel == _CLOSE and data[:1] == bytes([_STDIN]) and not self._tty:
                self._close_input()
        process.kill()

    async def _write(self, data: bytes) -> None:
        os.set_blocking(self._input, False)
        while data:
            try:
                data = data[os.write(self._input, data) :]
            except BlockingIOError:
                writable = asyncio.Event()
                asyncio.get_running_loop().add_writer(self._input, writable.set)
                try:
                    await writable.wait()
                finally:
                    asyncio.get_running_loop().remove_writer(self._input)
            except OSError:  # the command has closed its stdin
                self._close_input()
                return

    def _close_ours(self) -> None:
        self._close_input()
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1

    def _close_input(self) -> None:
        if self._input >= 0:
            os.close(self._input)
            self._input = -1

    async def _send(self, channel: int, data: bytes) -> None:
        await self._socket.send_bytes(bytes([channel]) + data)


def _wanted(query: Any, *names: str) -> bool:
    return any(query.get(name, "").lower() in ("1", "true") for name in names)


def _result(exited: Exit) -> dict[str, Any]:
    if exited.code == 0:
        return {"metadata": {}, "status": "Success"}
    return _failure(
        f"command terminated with non-zero exit code: exit status {exited.code}",
        {"causes": [{"reason": "ExitCode", "message": str(exited.code)}]},
    )


def _failure(message: str, details: dict[str, Any] | None) -> dict[str, Any]:
    status: dict[str, Any] = {"metadata": {}, "status": "Failure", "message": message}
    if details is None:
        return status | {"reason": "InternalError", "code": 500}
    return status | {"reason": "NonZeroExitCode", "details": details}
