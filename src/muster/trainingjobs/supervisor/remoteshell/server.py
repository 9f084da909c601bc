"""The server of the remote shell: receives mpiexec's commands for this node."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import select
import socket
import threading
import time
from typing import Any

from ..basics import UsageError, log
from ..processes import Child
from ..settings import Settings
from .commands import RemoteCommands
from .wire import (
    COMMAND,
    EXIT,
    HANDSHAKE_S,
    MAX_FRAME_BYTES,
    STDERR,
    STDIN,
    STDIN_END,
    STDOUT,
    Channel,
    ShellRefused,
    read_line,
    send_line,
    shell_mac,
)

MAX_SHELLS = 64


class ShellServer(threading.Thread):
    """Accepts commands from the mpiexec of node rank 0."""

    def __init__(self, settings: Settings, commands: RemoteCommands) -> None:
        super().__init__(name="shell-server", daemon=True)
        self._settings, self._commands = settings, commands
        self._slots = threading.BoundedSemaphore(MAX_SHELLS)
        family = socket.AF_INET6 if ":" in settings.address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.bind((settings.address, 0))
        except OSError as error:
            raise UsageError(f"cannot listen on POD_IP {settings.address}: {error}") from error
        self._socket.listen(128)
        self.port: int = self._socket.getsockname()[1]

    def run(self) -> None:
        """Accept connections for ever. At most MAX_SHELLS are open; others wait in the listen queue."""
        while True:
            self._slots.acquire()
            try:
                sock, peer = self._socket.accept()
            except OSError as error:
                self._slots.release()
                log(f"remote shell: accept failed: {error}")
                time.sleep(1.0)
                continue
            threading.Thread(target=self._serve, args=(sock, peer[0]), name="shell", daemon=True).start()

    def _serve(self, sock: socket.socket, peer: str) -> None:
        try:
            with sock:
                if self._commands.uses_sshd():
                    sshd = self._commands.connect(sock)
                    sock.close()  # sshd has its own copy of the socket
                    sshd.ended.wait()
                    return
                channel = self._handshake(sock)
                frames = channel.receive()
                while not frames:
                    frames = channel.receive()
                if frames[0][0] != COMMAND:
                    raise ShellRefused("no command")
                child = self._commands.start(frames[0][1].decode())
                lost = True
                try:
                    self._forward(channel, child, frames[1:])
                    lost = False
                finally:
                    self._commands.ended(child, lost)
        except ShellRefused as error:
            if not error.again:
                log(f"remote shell from {peer} refused: {error}")
        except (OSError, ValueError) as error:
            log(f"remote shell from {peer} broke off: {error}")
        finally:
            self._slots.release()

    def _handshake(self, sock: socket.socket) -> Channel:
        deadline = time.monotonic() + HANDSHAKE_S
        nonce = secrets.token_hex(32)
        send_line(sock, {"muster-shell": 1, "nonce": nonce})
        hello = read_line(sock, deadline)
        attempt, key = self._commands.key()
        if not key or hello.get("attempt") != attempt:
            send_line(sock, {"error": "not running that attempt", "attempt": attempt})
            raise ShellRefused(f"not running attempt {hello.get('attempt')!r}", again=True)
        about = (self._settings.job_uid, attempt, self._settings.address, nonce, hello.get("nonce"))
        if not hmac.compare_digest(shell_mac(key, "client", *about), str(hello.get("mac"))):
            send_line(sock, {"error": "wrong key, attempt or address"})
            raise ShellRefused("wrong key, attempt or address")
        send_line(sock, {"mac": shell_mac(key, "server", *about)})
        return Channel(sock, key, "server", "{} {}".format(nonce, hello.get("nonce")))

    def _forward(self, channel: Channel, child: Child, frames: list[tuple[int, bytes]]) -> None:
        """Copy bytes in both directions until the command has ended and its output is sent.

        Raises OSError if the peer is lost.
        """
        pipes = child.popen
        assert pipes.stdin is not None
        assert pipes.stdout is not None
        assert pipes.stderr is not None
        stdin, pending, stdin_over = pipes.stdin.fileno(), bytearray(), False
        os.set_blocking(stdin, False)
        outputs = {pipes.stdout.fileno(): STDOUT, pipes.stderr.fileno(): STDERR}
        ended_at: float | None = None
        while True:
            for kind, payload in frames:
                if kind == STDIN:
                    pending += payload
                stdin_over = stdin_over or kind == STDIN_END
            if stdin_over and not pending and not pipes.stdin.closed:
                pipes.stdin.close()
            readers: list[Any] = [*outputs] + ([channel.sock] if len(pending) < MAX_FRAME_BYTES else [])
            if not child.ended.is_set():
                readers.append(child.ended_pipe)
            writers = [stdin] if pending and not pipes.stdin.closed else []
            readable, writable, _ = select.select(readers, writers, [], 0.1 if ended_at is not None else None)
            if writable:
                try:
                    del pending[: os.write(stdin, bytes(pending[:65536]))]
                except OSError:  # the reader is gone
                    pending.clear()
                    pipes.stdin.close()
            for fd in [fd for fd in outputs if fd in readable]:
                data = os.read(fd, 65536)
                if data:
                    channel.send(outputs[fd], data)
                else:
                    del outputs[fd]
            frames = channel.receive() if channel.sock in readable else []
            if child.ended.is_set() and ended_at is None:
                ended_at = time.monotonic()
            # a background process may keep the pipes open
            if ended_at is not None and (not outputs or time.monotonic() - ended_at > 1.0):
                channel.send(EXIT, json.dumps(dict(zip(("code", "signal"), child.outcome()))).encode())
                return
