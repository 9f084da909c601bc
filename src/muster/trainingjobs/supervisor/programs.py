"""Whether a program can be executed on this node, found out before the attempt starts: each node can say so itself."""

from __future__ import annotations

import errno
import os
import shutil
from typing import Mapping

from .attempt import CannotStart

HANDLERS = "/proc/sys/fs/binfmt_misc"  # Linux: kernels can be told to execute other kinds of files


def check_program(name: str, env: Mapping[str, str], folder: str | None) -> None:
    """Raise CannotStart, with errno and program, where `name` cannot be executed in `folder` with this PATH.

    What cannot be told for sure passes: executing it shows.
    """
    path = name
    if "/" in name:
        path = os.path.join(folder or os.getcwd(), name)
        if not os.path.exists(path):
            raise CannotStart(f"{name}: not found", errno.ENOENT, name)
    else:
        folders = env.get("PATH", "").split(os.pathsep)
        if not all(each.startswith("/") for each in folders):
            return  # relative to where the program starts
        found = shutil.which(name, os.F_OK, os.pathsep.join(folders))
        if found is None:
            raise CannotStart(f"{name}: not found on PATH", errno.ENOENT, name)
        path = shutil.which(name, os.F_OK | os.X_OK, os.pathsep.join(folders)) or found
    if os.path.isdir(path) or not os.access(path, os.X_OK):
        raise CannotStart(f"{path}: not executable", errno.EACCES, name)
    _check_contents(path, name)


def _check_contents(path: str, name: str) -> None:
    """Look at the first bytes as the kernel does (execve(2)): ELF, or a script whose interpreter is there."""
    try:
        with open(path, "rb") as file:
            head = file.read(256)
    except OSError:
        return  # may be executed without being readable
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
