"""Starts programs of ours as copies of a process that has imported them, as multiprocessing's fork server does.

A kubelet imports for 0.4 CPU seconds and a controller for 0.8 before they do anything, and tests start them by the
hundred. A copy runs the same module as `python -m` does, with arguments, environment, folder and output of its own.
Tests of how a program starts, and of processes as users run them, start Python themselves.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

IMPORTED: Final = ("muster.embedded.kubelet.program", "muster.cli.processes.controller")
"""What copies begin with."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_REQUEST_BYTES = 1 << 18
_POLL_S = 0.01


class Copy:
    """A program that was started by the fork server; to the extent that tests need it, as subprocess.Popen."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code (negative: the signal that ended it), or None while it runs."""
        with self._lock:  # the server could be asked about the end of a process only once
            if self._code is None:
                try:
                    self._code = self._server.ask({"ended": self.pid})
                except ConnectionError:
                    self._code = -signal.SIGKILL  # the kernel ends it with its server
            return self._code

    def wait(self, timeout_s: float) -> int:
        """Return the exit code; raises TimeoutExpired where it runs for longer."""
        deadline = time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class ForkServer:
    """The process whose copies become programs. It and they end when this process does."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in (self._channel, theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _REQUEST_BYTES)
        with theirs:
            # -P: modules of this folder are none of the programs'
            command = [sys.executable, "-P", __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended, and with it all programs that it started."""
        return self._process.poll() is not None

    def start(self, log: Path, module: str, *arguments: str) -> Copy:
        """Start `python -m module arguments` with stdout and stderr appended to `log`."""
        request = {"argv": [module, *arguments], "environment": dict(os.environ), "folder": os.getcwd()}
        with log.open("ab") as out:
            return Copy(self, self.ask(request, out.fileno()))

    def ask(self, request: dict[str, Any], *descriptors: int) -> Any:
        """Return the server's answer. Raises ConnectionError: it has ended."""
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)
            answer = self._channel.recv(_REQUEST_BYTES)
        if not answer:
            raise ConnectionError("the fork server has ended")
        return json.loads(answer)

    def close(self) -> None:
        """End it and the programs that it started."""
        if os.getpid() != self._owner:
            return  # a test forked this process
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # a process that a test forked has the channel too
        self._channel.close()
        self._process.wait()


_current: list[ForkServer] = []


def fork_server() -> ForkServer:
    """Return the one of this process; another one if it has ended."""
    if not _current or _current[0].ended:
        _current[:] = [ForkServer()]
    return _current[0]


def _serve(channel: socket.socket) -> dict[str, Any] | None:
    """Answer requests. Return None at the end, and in each copy what to run."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, 1)
        if not message:
            return None
        request: dict[str, Any] = json.loads(message)
        if "ended" in request:
            pid, status = os.waitpid(request["ended"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                for standard in (1, 2):
                    os.dup2(descriptors[0], standard)
                os.close(descriptors[0])
                return request
            os.close(descriptors[0])
        channel.send(json.dumps(answer).encode())


def main(descriptor: int) -> None:
    """Import, then serve; a copy becomes its program."""
    for name in IMPORTED:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a copy would lack the other threads"
    prctl, server = ctypes.CDLL(None).prctl, os.getpid()
    gc.collect()
    gc.freeze()
    request = None
    with socket.socket(fileno=descriptor) as channel, contextlib.suppress(KeyboardInterrupt):
        request = _serve(channel)
    if request is None:
        return
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        sys.exit("the fork server ended before this program began")
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["argv"]
    runpy.run_module(request["argv"][0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
