"""Numbers of other network namespaces (linux/net_namespace.h).

A namespace keeps numbers of others, by which links in them can be found and deleted. A number lasts as long as the
other namespace does, also when the file by which it was opened is gone.
"""

from __future__ import annotations

import errno
import struct
from typing import Final

from muster.network.netlink import attributes as att
from muster.network.netlink.socket import Message, NetlinkError, NetlinkSocket

NEWNSID: Final = 88
GETNSID: Final = 90

_HEAD: Final = b"\0" * 4  # struct rtgenmsg, padded
_NSID, _FD = 1, 3
_AUTOMATIC: Final = -1


def assign(netlink: NetlinkSocket, descriptor: int) -> None:
    """Give a number to the namespace of an open file, unless it has one."""
    payload = _HEAD + att.attribute(_NSID, struct.pack("=i", _AUTOMATIC)) + att.u32(_FD, descriptor)
    try:
        netlink.request(Message(NEWNSID, 0, payload), "number the namespace of a pod")
    except NetlinkError as error:
        if error.errno != errno.EEXIST:
            raise


def all_numbers(netlink: NetlinkSocket) -> list[int]:
    """Return the numbers of all other namespaces that have one."""
    numbers = []
    for type_, payload in netlink.dump(GETNSID, _HEAD, "list namespaces"):
        fields = att.by_type(payload, len(_HEAD))
        if type_ == NEWNSID and _NSID in fields:
            numbers.append(int(struct.unpack_from("=i", fields[_NSID])[0]))
    return numbers
