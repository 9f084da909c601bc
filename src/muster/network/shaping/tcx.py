"""Finds BPF programs that see a link's packets before filters do (tcx, Linux 6.6): Cilium attaches its programs there.

They can pass packets on so that no filter sees them. Then queues would not limit the pod.
"""

from __future__ import annotations

import struct
from typing import Final

from muster.network.bpf.syscall import BpfError, bpf, packed
from muster.network.shaping.links import LinkInfo

_PROG_QUERY: Final = 16
_WAYS: Final = ((46, "from"), (47, "to"))
_QUERY: Final = struct.Struct("=IIIIQII")


def programs_before(link: LinkInfo) -> str:
    """Return why filters of the link may see no packets; "" if nothing is before them.

    The link is in the network namespace of the calling thread. A kernel without tcx has no such programs.
    """
    for attach_type, way in _WAYS:
        attributes = packed(_QUERY.pack(link.number, attach_type, 0, 0, 0, 0, 0))
        try:
            bpf(_PROG_QUERY, attributes, f"list the programs of {link.name}")
        except BpfError:
            return ""
        count = _QUERY.unpack_from(attributes.raw)[5]
        if count:
            return f"another program, such as Cilium, has BPF programs (tcx) {way} the pod"
    return ""
