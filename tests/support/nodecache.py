"""A node cache as a process of its own, on sockets in a test's folder."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from muster.sdk.data import cache_client
from muster.sdk.data.access import Access
from muster.sdk.data.cache_client import CacheClient
from muster.sdk.data.wire import receive, send
from tests.support.waiting import TIMEOUT_S, eventually

SECRET = "a-secret-that-must-not-be-seen"


class NodeCache:
    """A daemon. `start` it again after `kill` or `stop`: it has the same folder and sockets."""

    def __init__(self, folder: Path, *options: str, before: Sequence[str] = ()) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.sockets = folder / "sockets"
        self.log = folder / "cache.log"
        self.options = options
        self.before = before
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def socket_path(self) -> str:
        return str(self.sockets / "cache.sock")

    def start(self, **environment: str) -> None:
        command = [
            *self.before,
            sys.executable,
            "-m",
            "muster.data.cache",
            "--node=here",
            f"--state-dir={self.state}",
            f"--socket-dir={self.sockets}",
            *(self.options or ("--size=1Gi", "--floor=0")),
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
        process = self.process
        eventually("the cache serves", lambda: self._serves() or process.poll() is not None)
        assert process.poll() is None, self.log.read_text()

    def _serves(self) -> bool:
        """Returns whether both sockets accept connections: a killed cache leaves its files behind."""
        for name in ("cache.sock", "control.sock"):
            try:
                self.connect(name).close()
            except (FileNotFoundError, ConnectionRefusedError):
                return False
        return True

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(TIMEOUT_S)
            self.process = None

    def client(self) -> CacheClient:
        return CacheClient(self.socket_path)

    def connect(self, name: str = "cache.sock") -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(20)
        try:
            connection.connect(str((self.state if name == "control.sock" else self.sockets) / name))
        except OSError:
            connection.close()
            raise
        return connection

    def control(self, **message: Any) -> dict[str, Any]:
        """Send one request on the control socket."""
        with self.connect("control.sock") as connection:
            send(connection, message)
            while (answer := receive(connection)[0]).get("pending"):
                pass
            return answer

    def status(self) -> dict[str, Any]:
        return self.control(op="status")

    def files(self, area: str = "blocks") -> list[Path]:
        """The files of cached blocks."""
        return [file for file in (self.state / area).rglob("*") if file.is_file()]


@contextlib.contextmanager
def node_cache(folder: Path, *options: str, before: Sequence[str] = ()) -> Iterator[NodeCache]:
    """Run a daemon while the context is open; `before` is a command that executes it."""
    folder.mkdir(parents=True, exist_ok=True)
    cache = NodeCache(folder, *options, before=before)
    cache.start()
    try:
        yield cache
    finally:
        with contextlib.suppress(ProcessLookupError):
            cache.signal(signal.SIGCONT)
        cache.kill()


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients in this process wait for a daemon that a busy machine slows down."""
    monkeypatch.setattr(cache_client, "HELLO_S", TIMEOUT_S)
    monkeypatch.setattr(cache_client, "SILENCE_S", TIMEOUT_S)


def access(folder: Path, endpoint: str, key: str) -> Access:
    """Settings with the credentials of an access key, in a folder like that of a mounted Secret."""
    credentials = folder / f"credentials-{key}"
    if not credentials.exists():
        credentials.mkdir()
        (credentials / "AWS_ACCESS_KEY_ID").write_text(key)
        (credentials / "AWS_SECRET_ACCESS_KEY").write_text(SECRET)
    return Access(endpoint, "us-east-1", str(credentials))
