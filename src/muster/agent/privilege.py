"""Drops privileges: a container that may open /dev/kmsg must be started as privileged.

A container's devices are limited by its cgroup, and only a privileged one may open /dev/kmsg (OCI runtime
specification, "Default devices"). Of these privileges, the agent needs one capability, CAP_SYSLOG, if
kernel.dmesg_restrict is set. So it drops all others permanently, before it reads any input.
"""

from __future__ import annotations

from typing import Final

from muster.kube import privilege

CAP_SYSLOG: Final = privilege.CAPABILITIES["SYSLOG"]


def drop_privileges(user: int) -> None:
    """Become `user` permanently, keeping at most CAP_SYSLOG. Call it before any thread is started.

    Raises:
        OSError: the kernel does not allow it. Without root, only the ability to gain privileges is dropped.
    """
    privilege.drop_privileges(("SYSLOG",), user)
