"""Raw netlink against the kernel, in the namespace of the test process: only reads."""

from __future__ import annotations

import errno
import socket
import struct

import pytest

from muster.network.netlink import attributes
from muster.network.netlink.socket import ROUTE, Message, NetlinkError, NetlinkSocket

_GET_LINK, _DEL_LINK, _NEW_LINK = 18, 17, 16
_IFNAME = 3


def test_attributes_are_read_as_written() -> None:
    """Padding belongs to no payload, and nested attributes are read inside."""
    data = attributes.text(_IFNAME, "eth0") + attributes.nested(7, [attributes.u32(1, 5), attributes.text(2, "x")])
    read = attributes.by_type(data)
    assert bytes(read[_IFNAME]) == b"eth0\0"
    assert {kind: bytes(value) for kind, value in attributes.attributes(read[7])} == {
        1: struct.pack("=I", 5),
        2: b"x\0",
    }


@pytest.mark.parametrize("data", [b"\0\0\0\0", b"\x09\0\x01\0abc", b"\x01"])
def test_attributes_that_are_cut_off_end_the_reading(data: bytes) -> None:
    """A length of 0 must not be read forever."""
    assert list(attributes.attributes(data)) == []


def test_links_are_those_of_the_kernel() -> None:
    """Every interface that the C library names."""
    with NetlinkSocket(ROUTE) as kernel:
        before, names = None, set[str]()
        while before != (now := socket.if_nameindex()):  # other programs make and remove links
            before = now
            links = kernel.dump(_GET_LINK, struct.pack("=BxHiII", 0, 0, 0, 0, 0), "list links")
            bodies = [attributes.by_type(body, 16) for kind, body in links if kind == _NEW_LINK]
            names = {bytes(each[_IFNAME]).rstrip(b"\0").decode() for each in bodies}
    assert names == {name for _, name in now}


def test_refusal_names_the_request_of_its_batch() -> None:
    """Deleting a link that does not exist."""
    absent = Message(_DEL_LINK, 0, struct.pack("=BxHiII", 0, 0, 2**30, 0, 0))
    with NetlinkSocket(ROUTE) as kernel:
        with pytest.raises(NetlinkError, match="delete links") as raised:
            kernel.batch((absent, absent), "delete links")
        assert (raised.value.errno, raised.value.index) in {(errno.ENODEV, 0), (errno.EPERM, 0)}
        assert kernel.dump(_GET_LINK, struct.pack("=BxHiII", 0, 0, 0, 0, 0), "list links")
