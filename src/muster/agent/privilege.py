"""Drops privileges: a container that may open /dev/kmsg must be started as privileged.

A container's devices are limited by its cgroup, and only a privileged one may open /dev/kmsg (OCI runtime
specification, "Default devices"). Of these privileges, the agent needs one capability, CAP_SYSLOG, if
kernel.dmesg_restrict is set. So it drops all others permanently, before it reads any input.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

CAP_SYSLOG: Final = 34

_CAPABILITY_VERSION_3: Final = 0x20080522
_PR_SET_KEEPCAPS: Final = 8
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITIES_MAX: Final = 64


def drop_privileges(user: int) -> None:
    """Become `user` permanently, keeping at most CAP_SYSLOG. Call it before any thread is started.

    Raises:
        OSError: the kernel does not allow it. Without root, only the ability to gain privileges is dropped.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0:
        for capability in range(_CAPABILITIES_MAX):
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails for capabilities that the kernel does not know
        held = _permitted(libc) & (1 << CAP_SYSLOG)
        _checked(libc, libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
        groups = [group for group in os.getgroups() if group != 0]
        os.setgroups(groups)  # the pod's other groups, such as one that may read logs
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        _set(libc, held)
        libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    _checked(libc, libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _permitted(libc: ctypes.CDLL) -> int:
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    data = ctypes.create_string_buffer(24)
    _checked(libc, libc.capget(header, data))
    words = struct.unpack("=6I", data.raw[:24])
    return int(words[1] | words[4] << 32)


def _set(libc: ctypes.CDLL, capabilities: int) -> None:
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    low, high = capabilities & 0xFFFFFFFF, capabilities >> 32
    data = ctypes.create_string_buffer(struct.pack("=6I", low, low, 0, high, high, 0))
    _checked(libc, libc.capset(header, data))


def _checked(libc: ctypes.CDLL, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"rights cannot be given up: {os.strerror(number)}")
