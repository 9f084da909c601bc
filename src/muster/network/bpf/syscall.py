"""The system call bpf(2), by ctypes (linux/bpf.h)."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path
from typing import Final

MAP_CREATE, MAP_LOOKUP, MAP_UPDATE, MAP_DELETE, MAP_NEXT_KEY = 0, 1, 2, 3, 4
PROG_LOAD, OBJ_PIN, OBJ_GET, PROG_ATTACH, PROG_DETACH = 5, 6, 7, 8, 9
OBJ_GET_INFO: Final = 15

_NUMBERS: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class BpfError(OSError):
    """The kernel refused. `log` holds the verifier's last words about a program."""

    def __init__(self, number: int, doing: str, log: str = "") -> None:
        super().__init__(number, f"{doing}: {os.strerror(number)}{': ' if log else ''}{log}")
        self.log = log


def bpf(command: int, attributes: ctypes.Array[ctypes.c_char], doing: str) -> int:
    """Make the call; return its result, a file descriptor for commands that make or find an object.

    Raises:
        BpfError: EPERM without CAP_BPF and CAP_NET_ADMIN; ENOSYS on a machine of unknown kind.
    """
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise BpfError(38, doing)
    result: int = _LIBC.syscall(
        ctypes.c_long(number), ctypes.c_long(command), ctypes.byref(attributes), ctypes.c_ulong(len(attributes))
    )
    if result < 0:
        raise BpfError(ctypes.get_errno(), doing)
    return result


def packed(data: bytes) -> ctypes.Array[ctypes.c_char]:
    """Return the attributes of a call as a buffer. What it points to must live until the call returns."""
    return ctypes.create_string_buffer(data, max(len(data), 128))


def pin(descriptor: int, path: Path) -> None:
    """Give an object a name in a bpf file system, so that it outlives this process.

    Raises:
        BpfError: EEXIST if the name is taken; EPERM outside of a bpf file system.
    """
    name = ctypes.create_string_buffer(os.fsencode(path))
    data = ctypes.addressof(name).to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
    bpf(OBJ_PIN, packed(data), f"pin {path}")


def pinned(path: Path) -> int:
    """Return a file descriptor of the object with this name.

    Raises:
        BpfError: ENOENT if there is none.
    """
    name = ctypes.create_string_buffer(os.fsencode(path))
    return bpf(OBJ_GET, packed(ctypes.addressof(name).to_bytes(8, sys.byteorder)), f"open {path}")
