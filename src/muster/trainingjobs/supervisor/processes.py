"""Processes of this pod: children, descendants, and the number of out-of-memory kills."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import re
import subprocess
import threading

from .exits import outcome_of


def oom_kills(folder: str = "/sys/fs/cgroup", groups: str = "/proc/self/cgroup") -> int:
    """Returns how often the kernel killed a process of this container for memory (cgroup v2, else v1); 0 if unknown.

    A container usually sees its own group as the root of the mount. A process that shares its machine's view finds its
    group below that root, at the path in `groups` (cgroups(7)).
    """
    own = {"": "", "memory": ""}
    with contextlib.suppress(OSError), open(groups, encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            own.update((each, path.lstrip("/")) for each in controllers.split(",") if each in own)
    v2, v1 = os.path.join(own[""], "memory.events"), os.path.join("memory", own["memory"], "memory.oom_control")
    for name in (v2, v1, "memory.events", "memory/memory.oom_control"):
        with contextlib.suppress(OSError), open(os.path.join(folder, name), encoding="ascii") as file:
            match = re.search(r"^oom_kill (\d+)$", file.read(), re.MULTILINE)
            if match:
                return int(match.group(1))
    return 0


def descendants(root: int) -> list[int]:
    """Every live process below `root`, from /proc. With the child-subreaper flag, double forks stay below it too."""
    children: dict[int, list[int]] = collections.defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] not in (b"Z", b"X"):
                children[int(fields[1])].append(int(name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def exists(pid: int) -> bool:
    """Returns whether the process exists, possibly as a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def start_ticks(pid: int) -> str:
    """Returns a process's start time, in ticks since boot (proc_pid_stat(5)); "" if it is gone or a zombie."""
    fields = _stat(pid)
    return fields[19] if fields and fields[0] not in ("Z", "X") else ""


def process_state(pid: int) -> str:
    """The state of a process, such as S, T or Z (proc_pid_stat(5)); "" if it is gone."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def parent(pid: int) -> int:
    """The parent of a process; 0 if it is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the program's name."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].decode().split()
    return []


class Child:
    """A process that the main thread starts and reaps. Its `key` is never reused; its pid may be."""

    _keys = itertools.count(1)

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen, self.pid, self.key = popen, popen.pid, next(self._keys)
        self.status = 0
        self.ended = threading.Event()
        self.ended_pipe, self._ended_write = os.pipe()

    def finish(self, status: int) -> None:
        """Store the wait status; called once."""
        self.status, self.popen.returncode = status, status  # Popen must not wait for the pid, which may be reused
        self.ended.set()
        os.close(self._ended_write)

    def outcome(self) -> tuple[int, int]:
        """(code, signal)."""
        return outcome_of(self.status)

    def close(self) -> None:
        """Close the pipes, after the process has ended and its output has been read."""
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(OSError):
                    pipe.close()
        os.close(self.ended_pipe)
