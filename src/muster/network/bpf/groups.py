"""Programs of eBPF that see the packets of a control group's sockets (BPF_PROG_TYPE_CGROUP_SKB)."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from muster.network.bpf.handle import Handle
from muster.network.bpf.loading import load
from muster.network.bpf.syscall import PROG_ATTACH, PROG_DETACH, bpf, packed, pinned

INGRESS, EGRESS = 0, 1
"""Directions: what sockets receive, and what they send."""
ALLOW, DROP = 1, 0
"""What a program returns for a packet."""

LOOKUP, UPDATE, TIME_NS, LOAD_BYTES, ANCESTOR_GROUP, FULL_SOCKET = 1, 2, 5, 26, 83, 95
"""Helpers: bpf_map_lookup_elem, bpf_map_update_elem, bpf_ktime_get_ns (for programs with a license that is compatible
with the GPL), bpf_skb_load_bytes (offsets from the IP header), bpf_skb_ancestor_cgroup_id, bpf_sk_fullsock."""

LENGTH, MARK, PROTOCOL, INTERFACE, SOCKET = 0, 8, 16, 40, 168
"""Offsets in the context (struct __sk_buff): bytes from the IP header on, mark, EtherType in network order, the link's
index, socket."""
SOCKET_MARK: Final = 16
"""Offset of the mark in a full socket."""

_CGROUP_SKB: Final = 8
_MULTI, _REPLACE = 2, 4
_ATTACH: Final = struct.Struct("=IIIII")


class Program(Handle):
    """A program in the kernel. It lives as long as this object, a group that it is attached to, or its name."""

    @classmethod
    def load(cls, code: bytes, direction: int, name: str, license: str = "Apache-2.0") -> Program:
        """Load instructions for one direction. `name` has at most 15 characters, for tools only.

        Raises:
            BpfError: EPERM without CAP_BPF and CAP_NET_ADMIN; EACCES or EINVAL with the verifier's reason in `log`.
        """
        return cls(load(code, _CGROUP_SKB, direction, name, license))

    @classmethod
    def open(cls, path: Path) -> Program:
        """Return the program with a name in a bpf file system. Raises BpfError, with ENOENT if there is none."""
        return cls(pinned(path))

    def attach(self, group: Path, direction: int, *, instead_of: Program | None = None) -> None:
        """Run the program for packets of sockets in the group and those below it, beside programs of others.

        Args:
            group: a directory of the unified hierarchy.
            direction: that which the program was loaded for.
            instead_of: an attached program, which it replaces at once: each packet passes one of them.

        Raises:
            BpfError: the kernel refused.
            FileNotFoundError: the group does not exist.
        """
        flags, old = (_MULTI, 0) if instead_of is None else (_MULTI | _REPLACE, instead_of.descriptor)
        with _Folder(group) as folder:
            data = _ATTACH.pack(folder, self.descriptor, direction, flags, old)
            bpf(PROG_ATTACH, packed(data), f"attach a program to {group}")

    def detach(self, group: Path, direction: int) -> None:
        """Remove the program from the group if it is there. Raises BpfError."""
        try:
            with _Folder(group) as folder:
                data = _ATTACH.pack(folder, self.descriptor, direction, 0, 0)
                bpf(PROG_DETACH, packed(data), f"detach a program from {group}")
        except FileNotFoundError:
            return


class _Folder:
    def __init__(self, group: Path) -> None:
        self._group = group

    def __enter__(self) -> int:
        self._descriptor = os.open(self._group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
