"""Drops kernel capabilities of this process permanently (capabilities(7), prctl(2))."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

CAPABILITIES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "CHOWN": 0,
        "DAC_OVERRIDE": 1,
        "DAC_READ_SEARCH": 2,
        "NET_ADMIN": 12,
        "NET_RAW": 13,
        "SYS_PTRACE": 19,
        "SYS_ADMIN": 21,
        "SYS_RESOURCE": 24,
        "SYSLOG": 34,
        "PERFMON": 38,
        "BPF": 39,
    }
)
"""Numbers of the capabilities that parts of Muster use (linux/capability.h)."""

_CAPABILITY_VERSION_3: Final = 0x20080522
_PR_SET_KEEPCAPS: Final = 8
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITIES_MAX: Final = 64


def drop_privileges(keep: Iterable[str], user: int | None = None) -> None:
    """Drop all capabilities except `keep`, permanently. Call it before any thread is started.

    Without root, only the ability to gain privileges is dropped.

    Args:
        keep: names as in `CAPABILITIES`. Those that the process does not hold stay absent.
        user: become this user. None: stay root; programs that this process starts then get `keep`, and no others.

    Raises:
        OSError: the kernel does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0:
        kept = mask(keep)
        for number in range(_CAPABILITIES_MAX):
            if user is not None or not kept >> number & 1:
                libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # fails for capabilities that the kernel does not know
        held = permitted(libc) & kept
        if user is not None:
            _become(libc, user)
        _set(libc, held)
        libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    _checked(libc, libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def mask(names: Iterable[str]) -> int:
    """Return the bits of the named capabilities."""
    return sum(1 << CAPABILITIES[name] for name in set(names))


def permitted(libc: ctypes.CDLL | None = None) -> int:
    """Return the bits of the capabilities that this process may use."""
    libc = libc or ctypes.CDLL(None, use_errno=True)
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    data = ctypes.create_string_buffer(24)
    _checked(libc, libc.capget(header, data))
    words = struct.unpack("=6I", data.raw[:24])
    return int(words[1] | words[4] << 32)


def _become(libc: ctypes.CDLL, user: int) -> None:
    _checked(libc, libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
    groups = [group for group in os.getgroups() if group != 0]
    os.setgroups(groups)  # the pod's other groups, such as one that may read logs
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _set(libc: ctypes.CDLL, capabilities: int) -> None:
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    low, high = capabilities & 0xFFFFFFFF, capabilities >> 32
    data = ctypes.create_string_buffer(struct.pack("=6I", low, low, 0, high, high, 0))
    _checked(libc, libc.capset(header, data))


def _checked(libc: ctypes.CDLL, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"rights cannot be given up: {os.strerror(number)}")
