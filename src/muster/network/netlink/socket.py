"""A netlink socket: requests with acknowledgement, batches, and dumps (RFC 3549; linux/netlink.h)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, NamedTuple

ROUTE: Final = 0
NETFILTER: Final = 12

REQUEST: Final = 0x1
ACK: Final = 0x4
ROOT: Final = 0x100
MATCH: Final = 0x200
DUMP: Final = ROOT | MATCH
REPLACE: Final = 0x100
EXCL: Final = 0x200
CREATE: Final = 0x400
APPEND: Final = 0x800

_NOOP, _ERROR, _DONE = 1, 2, 3
_DUMP_INTERRUPTED: Final = 0x10
_HEAD: Final = struct.Struct("=IHHII")
_RECEIVED_BYTES: Final = 256 * 1024
_BUFFER_BYTES: Final = 8 * 1024 * 1024
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33
_RESERVED_BYTES: Final = 32
"""Of the send buffer, which messages may not use (netlink_sendmsg in net/netlink/af_netlink.c)."""
_DUMPS_MAX: Final = 5
_SOL_NETLINK, _GET_STRICT_CHK = 270, 12
_SIOCGIFNAME, _SIOCGIFMTU, _SIOCGIFINDEX = 0x8910, 0x8921, 0x8933
_NAME_BYTES: Final = 16
_INTERFACE: Final = struct.Struct("=16si20x")  # struct ifreq


class NetlinkError(OSError):
    """The kernel refused a request. `errno` says why; `index` is the place of the request in its batch."""

    def __init__(self, number: int, doing: str, index: int = 0) -> None:
        super().__init__(number, f"{doing}: {os.strerror(number)}")
        self.index = index


class Message(NamedTuple):
    """A request: type, flags besides REQUEST and ACK, and what follows the header."""

    type: int
    flags: int
    payload: bytes


class NetlinkSocket:
    """A socket of one netlink family, in the network namespace of the thread that creates it.

    It is used by one thread at a time. Every wait ends after `timeout_s`.

    Args:
        family: ROUTE or NETFILTER.
        timeout_s: the longest wait for an answer. Then TimeoutError is raised, and the socket is to be closed.
        strict: the kernel obeys attributes of dump requests, such as another namespace (NETLINK_GET_STRICT_CHK).
        fd: an open netlink socket of this family, perhaps of another network namespace. It is closed with this object.
    """

    def __init__(self, family: int, *, timeout_s: float = 10.0, strict: bool = False, fd: int | None = None) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family, fileno=fd)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            with contextlib.suppress(PermissionError):  # net.core.rmem_max does not limit CAP_NET_ADMIN
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
            if strict:
                self._socket.setsockopt(_SOL_NETLINK, _GET_STRICT_CHK, 1)
            self._socket.bind((0, 0))
            self._socket.settimeout(timeout_s)
        except OSError:
            self._socket.close()
            raise
        self._sequence = 0

    def __enter__(self) -> NetlinkSocket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def request(self, message: Message, doing: str) -> None:
        """Send a request and wait for its acknowledgement.

        Raises:
            NetlinkError: the kernel refused it. `doing` begins its text.
        """
        self.batch((message,), doing)

    def batch(self, messages: Sequence[Message], doing: str) -> None:
        """Send several requests and wait until the kernel has handled all. Those after a refused one are carried out.

        Raises:
            NetlinkError: the first refusal, with its index.
        """
        if not messages:
            return
        first, last = self._sequence + 1, self._sequence + len(messages)
        packed = []
        for index, each in enumerate(messages, 1):
            # The kernel reports each refusal, and in order, so an acknowledgement of the last message is enough.
            flags = each.flags | REQUEST | (ACK if index == len(messages) else 0)
            packed.append(self._packed(each.type, flags, each.payload))
        self._send(b"".join(packed))
        refusal: NetlinkError | None = None
        done = False
        while not done:
            for type_, _, sequence, payload in self._received():
                if type_ != _ERROR or not first <= sequence <= last:
                    continue
                done = done or sequence == last
                (number,) = struct.unpack_from("=i", payload)
                if number and refusal is None:
                    refusal = NetlinkError(-number, doing, sequence - first)
        if refusal is not None:
            raise refusal

    def transaction(self, messages: Sequence[Message], doing: str) -> list[tuple[int, memoryview]]:
        """Send messages that the kernel carries out together or not at all (nfnetlink's batches).

        The flags are sent as they are, without an added ACK: older kernels do not acknowledge the batch's begin and
        end. At least one message needs ACK.

        Returns:
            The (type, payload) that the kernel sent besides acknowledgements: what messages with the flag ECHO
            changed.

        Raises:
            NetlinkError: the first refusal; nothing changed.
        """
        first = self._sequence + 1
        self._send(b"".join(self._packed(each.type, each.flags | REQUEST, each.payload) for each in messages))
        waiting = {first + index for index, each in enumerate(messages) if each.flags & ACK}
        refusal: tuple[int, int] | None = None
        echoed: list[tuple[int, memoryview]] = []
        while waiting:
            for type_, _, sequence, payload in self._received():
                if sequence and not first <= sequence <= self._sequence:
                    continue
                if type_ != _ERROR:
                    echoed.append((type_, payload))  # those of sets' elements have the sequence 0
                    continue
                waiting.discard(sequence)
                (number,) = struct.unpack_from("=i", payload)
                if number and (refusal is None or sequence - first < refusal[1]):
                    refusal = (-number, sequence - first)
                if number and sequence == first:
                    waiting.clear()  # the batch as a whole was refused, and no message is acknowledged
        if refusal is not None:
            raise NetlinkError(refusal[0], doing, refusal[1])
        return echoed

    def get(self, type_: int, payload: bytes, doing: str) -> memoryview:
        """Return the payload of the one object that the kernel answers with.

        Raises:
            NetlinkError: there is none, or the kernel refused.
        """
        self._socket.send(self._packed(type_, REQUEST, payload))
        wanted = self._sequence
        while True:
            for kind, _, sequence, body in self._received():
                if sequence != wanted:
                    continue
                if kind == _ERROR:
                    raise NetlinkError(-struct.unpack_from("=i", body)[0], doing)
                return body

    def dump(self, type_: int, payload: bytes, doing: str) -> list[tuple[int, memoryview]]:
        """Return all (type, payload) that the kernel lists. A dump that a change interrupted is repeated.

        Raises:
            NetlinkError: the kernel refused, or each of several dumps was interrupted (EINTR).
        """
        for _ in range(_DUMPS_MAX):
            answers = self._dumped(type_, payload, doing)
            if answers is not None:
                return answers
        raise NetlinkError(4, doing)

    def _dumped(self, type_: int, payload: bytes, doing: str) -> list[tuple[int, memoryview]] | None:
        self._socket.send(self._packed(type_, REQUEST | DUMP, payload))
        wanted = self._sequence
        interrupted = False
        answers: list[tuple[int, memoryview]] = []
        while True:
            for kind, flags, sequence, body in self._received():
                if sequence != wanted:
                    continue
                interrupted = interrupted or bool(flags & _DUMP_INTERRUPTED)
                if kind in (_DONE, _ERROR):
                    number = struct.unpack_from("=i", body)[0] if len(body) >= 4 else 0
                    if number:
                        raise NetlinkError(-number, doing)
                    return None if interrupted else answers
                if kind != _NOOP:
                    answers.append((kind, body))

    def link_number(self, name: str) -> int:
        """Return the number of a link; 0 if there is none of this name. Costs less than an answer with all of it.

        Raises:
            OSError: the kernel refused (netdevice(7)).
        """
        if len(name.encode()) >= _NAME_BYTES:
            return 0
        try:
            answer = fcntl.ioctl(self._socket, _SIOCGIFINDEX, _INTERFACE.pack(name.encode(), 0))
        except OSError as error:
            if error.errno == errno.ENODEV:
                return 0
            raise
        return int(_INTERFACE.unpack(answer)[1])

    def link_mtu(self, number: int) -> int:
        """Return the MTU of the link with this number, in bytes; 0 if there is none. Raises OSError."""
        try:
            named = fcntl.ioctl(self._socket, _SIOCGIFNAME, _INTERFACE.pack(b"", number))
            answer = fcntl.ioctl(self._socket, _SIOCGIFMTU, _INTERFACE.pack(_INTERFACE.unpack(named)[0], 0))
        except OSError as error:
            if error.errno == errno.ENODEV:
                return 0
            raise
        return int(_INTERFACE.unpack(answer)[1])

    def _send(self, data: bytes) -> None:
        """Send messages at once. The kernel refuses more than the send buffer holds (EMSGSIZE)."""
        if len(data) > self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - _RESERVED_BYTES:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(data))
            with contextlib.suppress(PermissionError):  # net.core.wmem_max does not limit CAP_NET_ADMIN
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, len(data))
        self._socket.send(data)

    def _packed(self, type_: int, flags: int, payload: bytes) -> bytes:
        self._sequence += 1
        length = _HEAD.size + len(payload)
        return _HEAD.pack(length, type_, flags, self._sequence, 0) + payload + b"\0" * (-length % 4)

    def _received(self) -> Iterator[tuple[int, int, int, memoryview]]:
        data = memoryview(self._socket.recv(_RECEIVED_BYTES))
        offset = 0
        while offset + _HEAD.size <= len(data):
            length, type_, flags, sequence, _ = _HEAD.unpack_from(data, offset)
            if length < _HEAD.size or offset + length > len(data):
                return
            yield type_, flags, sequence, data[offset + _HEAD.size : offset + length]
            offset += length + (-length % 4)
