"""A bpf file system of the test's own, in a mount namespace of one thread: the machine's mounts stay as they are."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

P = ParamSpec("P")
T = TypeVar("T")

_NEWNS = 0x00020000
_REC_PRIVATE = 0x4000 | 0x40000
_LIBC = ctypes.CDLL(None, use_errno=True)


class BpfNames:
    """Runs functions where `folder` is a bpf file system."""

    def __init__(self, folder: Path, thread: concurrent.futures.Executor) -> None:
        self.folder = folder
        self._thread = thread

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.submit(function, *args, **kwargs).result(60)


@contextlib.contextmanager
def bpf_names(folder: Path) -> Iterator[BpfNames]:
    """Yield the file system. Without the right to mount it the test is skipped, or fails with MUSTER_REQUIRE_REAL=1."""
    folder.mkdir()
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        reason = thread.submit(_mount, folder).result(10)
        if reason and os.environ.get("MUSTER_REQUIRE_REAL") == "1":
            pytest.fail(f"MUSTER_REQUIRE_REAL=1 and {reason}", pytrace=False)
        if reason:
            pytest.skip(reason)
        yield BpfNames(folder, thread)


def _mount(folder: Path) -> str:
    private, kind = ctypes.c_ulong(_REC_PRIVATE), ctypes.c_ulong(0)
    results = _LIBC.unshare(_NEWNS) or _LIBC.mount(b"none", b"/", None, private, None)
    if results or _LIBC.mount(b"bpf", os.fsencode(folder), b"bpf", kind, None):
        return f"this user may not mount a bpf file system: {os.strerror(ctypes.get_errno())}"
    return ""
