"""Attaches programs at hooks of netfilter and at links (tcx) by links of eBPF, which end with their descriptor."""

from __future__ import annotations

import struct
from typing import Final

from muster.network.bpf.handle import Handle
from muster.network.bpf.syscall import bpf, packed

NETFILTER, TCX_INGRESS, TCX_EGRESS = 45, 46, 47
"""Where programs can be attached, as linux/bpf.h numbers it."""

_LINK_CREATE: Final = 28
_AT_HOOK: Final = struct.Struct("=IIIIIIiI")
_AT_LINK: Final = struct.Struct("=IIIIIIQ")


def at_hook(program: Handle, family: int, hook: int, priority: int) -> Handle:
    """Run a program for packets of a family (AF_INET or AF_INET6) at a hook of netfilter. Raises BpfError."""
    data = _AT_HOOK.pack(program.descriptor, 0, NETFILTER, 0, family, hook, priority, 0)
    return Handle(bpf(_LINK_CREATE, packed(data), f"attach a program to hook {hook} of netfilter"))


def at_link(program: Handle, link: int, attach_type: int) -> Handle:
    """Run a program for packets that enter or leave a link of this network namespace. Raises BpfError."""
    data = _AT_LINK.pack(program.descriptor, link, attach_type, 0, 0, 0, 0)
    return Handle(bpf(_LINK_CREATE, packed(data), f"attach a program to link {link}"))
