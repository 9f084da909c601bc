"""Control groups of the unified hierarchy that a test makes, and processes in them."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.networknamespaces import Namespace
from tests.support.waiting import eventually

_SEND = """
import socket, sys
family, address, port, count, size = (int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
with socket.socket(family, socket.SOCK_DGRAM) as client:
    client.connect((address, port))
    for _ in range(count):
        client.send(bytes(size))
"""
_RECEIVE = """
import socket, sys
family, address, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with socket.socket(family, socket.SOCK_DGRAM) as server:
    server.bind((address, 0))
    server.settimeout(30)
    print(server.getsockname()[1], flush=True)
    for _ in range(count):
        server.recv(65536)
"""


def unified_root() -> Path | None:
    """Return where the unified hierarchy is mounted; None without one."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        fields = line.split()
        if fields[2] == "cgroup2":
            return Path(fields[1])
    return None


@contextlib.contextmanager
def unified_group() -> Iterator[Path]:
    """Yield a new group below the root, which is removed with those below it. Without one the test is skipped."""
    root = unified_root()
    reason = "no unified hierarchy of control groups is mounted"
    if root is not None:
        group = root / f"muster-test-{uuid.uuid4().hex[:12]}"
        try:
            group.mkdir()
        except OSError as error:
            reason = f"this user may make no control groups: {error}"
        else:
            try:
                yield group
            finally:
                for folder in sorted(group.rglob("*/"), reverse=True):
                    _removed(folder)
                _removed(group)
            return
    if os.environ.get("MUSTER_REQUIRE_REAL") == "1":
        pytest.fail(f"MUSTER_REQUIRE_REAL=1 and {reason}", pytrace=False)
    pytest.skip(reason)


def _removed(group: Path) -> None:
    """Remove a group as soon as the kernel has let its last process go."""
    if group.is_dir():
        eventually(f"{group} is removed", lambda: _rmdir(group))


def _rmdir(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def start_in_group(group: Path, namespace: Namespace, *command: str) -> subprocess.Popen[bytes]:
    """Start a command whose sockets belong to the group; stop it by its process, or with the namespace."""
    enter = ("sh", "-c", 'echo $$ >"$0"/cgroup.procs && exec "$@"', str(group))
    return namespace.start(*enter, *command)


def send_from_group(
    group: Path, sender: Namespace, receiver: Namespace, address: str, count: int, *, size: int = 1000
) -> int:
    """Send datagrams from a process in the group to an address of the receiver; return their IP bytes."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with receiver.socket(family, socket.SOCK_DGRAM) as server:
        server.bind((address, 0))
        numbers = (server.getsockname()[1], count, size)
        process = start_in_group(
            group, sender, sys.executable, "-c", _SEND, str(int(family)), address, *map(str, numbers)
        )
        for _ in range(count):
            server.recv(size)
        _finished(process)
    return count * (size + (48 if family == socket.AF_INET6 else 28))


def send_to_group(
    group: Path, sender: Namespace, receiver: Namespace, address: str, count: int, *, size: int = 1000
) -> int:
    """Send datagrams to a process in the group, at an address of the receiver; return their IP bytes."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    process = start_in_group(group, receiver, sys.executable, "-c", _RECEIVE, str(int(family)), address, str(count))
    assert process.stdout is not None
    port = int(process.stdout.readline())
    with sender.socket(family, socket.SOCK_DGRAM) as client:
        for _ in range(count):
            client.sendto(bytes(size), (address, port))
    _finished(process)
    return count * (size + (48 if family == socket.AF_INET6 else 28))


def _finished(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors.decode()
