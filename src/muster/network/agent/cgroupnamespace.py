"""Enters the host's control group namespace at the start.

Rules about control groups name them by path or level. The kernel resolves both in the namespace of the program that
adds the rule (`nft`: since 6.11). A container has a namespace of its own, in which the groups of other pods do not
exist. So the agent enters the host's namespace once, and then drops the capabilities for it.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

CAPABILITIES: Final = frozenset({"SYS_ADMIN", "SYS_PTRACE"})
"""For setns(2), and for opening the namespace of process 1, whose capabilities the agent does not have."""

_NEWCGROUP: Final = 0x02000000
_FIRST_NAMESPACE: Final = 0xEFFFFFFB
"""Inode of the namespace that the kernel starts with (linux/proc_ns.h, PROC_CGROUP_INIT_INO)."""


def enter_host_cgroups(proc: Path) -> None:
    """Enter the control group namespace of process 1 of the node. Call it before any thread is started.

    Args:
        proc: the node's /proc.

    Raises:
        OSError: the kernel does not allow it.
    """
    if os.stat("/proc/self/ns/cgroup").st_ino == _FIRST_NAMESPACE:
        return
    descriptor = os.open(proc / "1/ns/cgroup", os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _NEWCGROUP) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"the host's control group namespace cannot be entered: {os.strerror(number)}")
    finally:
        os.close(descriptor)
