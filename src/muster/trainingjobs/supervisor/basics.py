"""Basics of every sub-command: the program's name, the log, and errors."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Iterator

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_archive = str(getattr(__spec__.loader, "archive", ""))
ARCHIVE = os.path.abspath(_archive) if _archive else ""
"""The installed file of this program; empty in a source tree."""
# -I -S: no user site, and no module that hides one of the standard library
SELF = [sys.executable or "python3", "-I", *(["-S", ARCHIVE] if ARCHIVE else ["-m", __package__ or ""])]
_output_lock = threading.Lock()


class UsageError(Exception):
    """An error in the pod's settings. The message says what to change."""


def log(message: str) -> None:
    """Write one line about Muster itself to the container's stderr."""
    write_all(2, ("muster: " + message + "\n").encode("utf-8", "replace"))


def write_all(fd: int, data: bytes) -> None:
    """Writes to the container's log; an error does not stop training."""
    with _output_lock:
        try:
            while data:
                data = data[os.write(fd, data) :]
        except OSError:
            pass


@contextlib.contextmanager
def socket_name(path: str) -> Iterator[str]:
    """Return a short name for a unix socket: an address may have only 107 bytes (unix(7))."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def write_file(path: str, text: str, mode: int = 0o600) -> None:
    """Write a new file that only this user can read, from its creation on."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)


def prctl(option: int, value: int) -> None:
    """Set a process attribute (Linux, prctl.h)."""
    import ctypes  # imported here because it is slow to load and rarely needed

    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
