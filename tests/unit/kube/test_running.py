"""SIGHUP: a server continues, but ends if the terminal in which it was started has gone."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

SERVER = """
import asyncio, fcntl, os, signal, sys, termios
from muster.kube.running import log_to_stderr, stop_on_signals

terminal, ignored = sys.argv[1:]
if terminal:
    fcntl.ioctl(int(terminal), termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)  # the tests may run under nohup

async def serve():
    log_to_stderr()
    stop = stop_on_signals()
    print("ready", file=sys.stderr, flush=True)
    await stop.wait()
    print("stopped", file=sys.stderr, flush=True)

asyncio.run(serve())
"""


@contextlib.contextmanager
def serving(terminal: int | None = None, *, ignored: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in a session of its own, in this terminal if there is one."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, "" if terminal is None else str(terminal), "ignored" if ignored else ""],
        stderr=subprocess.PIPE,
        start_new_session=True,
        pass_fds=() if terminal is None else (terminal,),
    )
    try:
        expect(server, b"ready")
        yield server
    finally:
        server.kill()
        server.communicate()


def expect(server: subprocess.Popen[bytes], text: bytes) -> None:
    """Wait for a line in the log."""
    assert server.stderr is not None
    found = b""
    while text not in found:
        assert select.select([server.stderr], [], [], 30)[0], found
        data = os.read(server.stderr.fileno(), 4096)
        assert data, found
        found += data


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal. A test may close the first one."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    for each in (ours, theirs):
        with contextlib.suppress(OSError):
            os.close(each)


@pytest.mark.slow
def test_hangup_does_not_end_a_server_and_sigterm_does() -> None:
    with serving() as server:
        for _ in range(2):
            server.send_signal(signal.SIGHUP)
            expect(server, b"SIGHUP is ignored")
        server.terminate()
        expect(server, b"stopped")
        assert server.wait(30) == 0


def test_hangup_by_another_program_does_not_end_a_server_in_a_terminal(terminal: tuple[int, int]) -> None:
    with serving(terminal[1]) as server:
        server.send_signal(signal.SIGHUP)
        expect(server, b"SIGHUP is ignored")
        assert server.poll() is None


@pytest.mark.slow
def test_end_of_its_terminal_stops_a_server(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    with serving(theirs) as server:
        os.close(ours)
        expect(server, b"stopped")
        assert server.wait(30) == 0


def test_server_with_nohup_outlives_its_terminal(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    with serving(theirs, ignored=True) as server:
        os.close(ours)
        expect(server, b"SIGHUP is ignored")
        server.terminate()
        expect(server, b"stopped")
