"""Checks before an attempt starts if a program can be executed on this node, so that each node can report it."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from typing import Mapping, Sequence

HANDLERS = "/proc/sys/fs/binfmt_misc"  # Linux: kernels can be set up to execute other kinds of files
_ARGUMENT_PAGES = 32  # execve(2): the longest single argument, with the zero byte at its end
_ALL_MOST_BYTES = 6 << 20  # execve(2): the most for all arguments and the environment, however large the stack may be
_LAUNCHER_BYTES = 16 << 10  # reserved for additions of launchers to the command and the environment


class CannotStart(Exception):
    """The attempt cannot start on this node; the message says what to change.

    If a `program` could not be executed, `error` is the errno(3). For other reasons they are "" and 0.
    """

    def __init__(self, message: str, error: int = 0, program: str = "") -> None:
        super().__init__(message)
        self.error, self.program = error, program


def check_length(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise CannotStart with E2BIG if the command is too long for the kernel."""
    longest = _ARGUMENT_PAGES * os.sysconf("SC_PAGE_SIZE")
    sizes = [len(os.fsencode(each)) + 1 for each in command]
    if max(sizes) > longest:
        message = f"an argument of the command has {max(sizes) - 1} bytes; the kernel takes {longest - 1} at most"
        raise CannotStart(message, errno.E2BIG, command[0])
    pairs = [len(os.fsencode(name)) + len(os.fsencode(value)) + 2 for name, value in env.items()]
    total = sum(sizes) + sum(pairs) + 8 * (len(sizes) + len(pairs)) + _LAUNCHER_BYTES
    most = most_bytes()
    if total > most:
        message = f"the command and the environment have {total} bytes; the kernel takes {most} at most"
        raise CannotStart(message, errno.E2BIG, command[0])


def check_program(name: str, env: Mapping[str, str], folder: str | None) -> None:
    """Raises CannotStart, with errno and program, if `name` cannot be executed in `folder` with this PATH.

    An uncertain case passes: executing the program then shows the result.
    """
    path = name
    if "/" in name:
        path = os.path.join(folder or os.getcwd(), name)
        if not os.path.exists(path):
            raise CannotStart(f"{name}: not found", errno.ENOENT, name)
    else:
        folders = env.get("PATH", "").split(os.pathsep)
        if not all(each.startswith("/") for each in folders):
            return  # relative to the program's working directory
        found = shutil.which(name, os.F_OK, os.pathsep.join(folders))
        if found is None:
            raise CannotStart(f"{name}: not found on PATH", errno.ENOENT, name)
        path = shutil.which(name, os.F_OK | os.X_OK, os.pathsep.join(folders)) or found
    if os.path.isdir(path) or not os.access(path, os.X_OK):
        raise CannotStart(f"{path}: not executable", errno.EACCES, name)
    _check_contents(path, name)


def most_bytes() -> int:
    """Return how many bytes the kernel takes for all arguments and the environment (execve(2))."""
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return _ALL_MOST_BYTES if stack == resource.RLIM_INFINITY else min(max(stack // 4, 128 << 10), _ALL_MOST_BYTES)


def _check_contents(path: str, name: str) -> None:
    """Check the first bytes as the kernel does (execve(2)): ELF, or a script with an existing interpreter."""
    try:
        with open(path, "rb") as file:
            head = file.read(256)
    except OSError:
        return  # a file may be executable without being readable
    if head.startswith(b"#!"):
        words = head[2:].split(b"\n", 1)[0].split()
        interpreter = os.fsdecode(words[0]) if words else ""
        if interpreter.startswith("/") and not os.path.exists(interpreter):
            raise CannotStart(f"{path}: its interpreter {interpreter} is not there", errno.ENOENT, interpreter)
    elif not head.startswith(b"\x7fELF") and not _has_handlers():
        raise CannotStart(f"{path}: neither a binary nor a script that names its interpreter", errno.ENOEXEC, name)


def _has_handlers() -> bool:
    try:
        return bool(set(os.listdir(HANDLERS)) - {"register", "status"})
    except OSError:
        return False
