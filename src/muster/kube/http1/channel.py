"""A socket on the event loop, with or without TLS, that costs little memory and copies little.

The transports of asyncio and uvloop put TLS between memory buffers, which costs memory for each connection and copies
for each write. Here, OpenSSL reads from and writes to the socket itself. Bytes that wait are references, so watches of
the same selection share them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections import deque
from typing import Protocol

from muster.kube.http1.deadlines import Deadlines

_READ_BYTES = 64 << 10  # at least one TLS record, so that nothing stays behind in OpenSSL
_RECORD_BYTES = 16 << 10
_READS_MAX = 8  # per wake-up, so that one client does not delay the others
_UNSENT_BYTES = 128 << 10
_LINGER_S = 2.0
_LINGER_BYTES = 1 << 20
_CLOSE_S = 600.0
"""For the end of a response that a patient peer reads, such as a log in a pager, once the channel is to be closed."""
_RESET = struct.pack("ii", 1, 0)
_WANT = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError, InterruptedError)


class Handler(Protocol):
    """The user of a channel."""

    def ready(self) -> None:
        """The TLS handshake is done. Called for plain sockets too."""
        ...

    def received(self, data: bytes) -> None:
        """Data arrived."""
        ...

    def ended(self) -> None:
        """The peer sends no more data."""
        ...

    def full(self) -> None:
        """Enough data waits for the peer: send no more until `drained`."""
        ...

    def drained(self) -> None:
        """No data waits for the peer any more."""
        ...

    def lost(self, error: Exception | None) -> None:
        """The channel is closed. Called once, always, and last."""
        ...


class Outbox:
    """What all channels of a server share: the buffer they read into, and the count of bytes that wait.

    Args:
        full_bytes: bytes that may wait for one peer before its handler is notified.
        waiting_bytes_max: bytes that may wait in all. Above it, the channel with the most is aborted.
        stall_s: a channel that sends nothing for this long while bytes wait is aborted, unless it is patient; None:
            all channels are patient.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, full_bytes: int, waiting_bytes_max: int, stall_s: float | None
    ) -> None:
        self.loop = loop
        self.full_bytes = full_bytes
        self.waiting_bytes = 0
        self.waiting_bytes_max = waiting_bytes_max
        self.patient = stall_s is None
        self.stalled: Deadlines[Channel] = Deadlines(loop, stall_s or 0.0, _stalled)
        self.closing: Deadlines[Channel] = Deadlines(loop, _CLOSE_S, _stalled)
        self.waiting: dict[Channel, None] = {}
        self.dropped: dict[str, int] = {}
        self.buffer = memoryview(bytearray(_READ_BYTES))
        self.lingering: Deadlines[Channel] = Deadlines(loop, _LINGER_S, _lingered)

    def account(self, channel: Channel, change: int) -> None:
        """Count bytes that wait. If they are too many, abort the channel with the most."""
        self.waiting_bytes += change
        if change > 0 and self.waiting_bytes > self.waiting_bytes_max:
            max(self.waiting, key=lambda one: one.waiting_bytes, default=channel).drop("memory")

    def count(self, reason: str) -> None:
        """Count a dropped client."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def close(self) -> None:
        """Stop the timers."""
        self.stalled.close()
        self.closing.close()
        self.lingering.close()


class Stalled(ConnectionError):
    """The peer did not take data for too long, or too much memory waited for it."""


class Channel:
    """A connected socket.

    Args:
        context: for TLS, else None.
        hostname: of the server, for TLS as a client; None for the server's side.

    Attributes:
        waiting_bytes: bytes that wait for the peer.
    """

    __slots__ = (
        "_closing",
        "_fd",
        "_full",
        "_handler",
        "_handshaking",
        "_lingered_bytes",
        "_loop",
        "_outbox",
        "_patient",
        "_patient_bytes",
        "_queue",
        "_reading",
        "_socket",
        "_writing",
        "waiting_bytes",
    )

    def __init__(
        self,
        outbox: Outbox,
        connected: socket.socket,
        handler: Handler,
        context: ssl.SSLContext | None = None,
        hostname: str | None = None,
    ) -> None:
        self._outbox = outbox
        self._loop = outbox.loop
        self._handler: Handler | None = handler
        self._queue: deque[memoryview | bytes] | None = None
        self.waiting_bytes = 0
        self._patient = outbox.patient
        self._patient_bytes = 0
        self._full = self._writing = self._closing = False
        self._lingered_bytes = 0
        self._handshaking = context is not None
        connected.setblocking(False)
        self._socket = (
            connected
            if context is None
            else context.wrap_socket(
                connected,
                server_side=hostname is None,
                server_hostname=hostname or None,
                do_handshake_on_connect=False,
                suppress_ragged_eofs=False,
            )
        )
        self._fd = self._socket.fileno()
        self._reading = True
        self._loop.add_reader(self._fd, self._readable)
        self._loop.call_soon(self._begin)

    @property
    def closed(self) -> bool:
        """Whether the channel is closed."""
        return self._handler is None

    @property
    def certificate(self) -> bytes | None:
        """The peer's certificate in DER form."""
        return self._socket.getpeercert(binary_form=True) if isinstance(self._socket, ssl.SSLSocket) else None

    def write(self, data: bytes) -> None:
        """Send data now as far as the kernel takes it. The rest waits."""
        if self._closing or self._handler is None or not data:
            return
        rest: memoryview | bytes = data
        if not self.waiting_bytes and not self._handshaking:
            sent = self._send(data)
            if sent < 0 or sent == len(data):
                return
            if sent:
                rest = memoryview(data)[sent:]
        if self._queue is None:
            self._queue = deque()
        self._queue.append(rest)
        if not self.waiting_bytes:
            self._outbox.waiting[self] = None
        if not self._patient and (self._patient_bytes or not self.waiting_bytes):
            self._patient_bytes = 0  # the next response begins
            self._outbox.stalled.arm(self)
        self.waiting_bytes += len(rest)
        self._watch_writable()
        if not self._full and self.waiting_bytes >= self._outbox.full_bytes:
            self._full = True
            self._handler.full()
        self._outbox.account(self, len(rest))

    def set_patient(self, patient: bool) -> None:
        """Choose whether the peer may take as long as it likes, because little waits for it.

        For what waits already, a channel that was patient stays so: it is the end of the same response. It has a
        deadline once something else is written, or the channel is to be closed.
        """
        if patient:
            self._patient = True
            self._outbox.stalled.disarm(self)
        elif self._patient:
            self._patient = self._outbox.patient
            self._patient_bytes = self.waiting_bytes

    def pause_reading(self) -> None:
        """Leave further data in the kernel, so that the peer slows down."""
        if self._reading and self._handler is not None:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        """Read again."""
        if not self._reading and self._handler is not None and not self._closing:
            self._reading = True
            self._loop.add_reader(self._fd, self._readable)

    def read_now(self) -> None:
        """Pass on what has arrived, before the event loop finds it."""
        if self._handler is not None and self._reading:
            self._readable()

    def close(self) -> None:
        """Send what waits, and then close. What the peer still sends is read for a moment and dropped.

        Without that, the kernel would answer it with a reset, and the peer could lose the end of the answer.
        """
        if self._closing or self._handler is None:
            return
        self._closing = True
        if not self.waiting_bytes:
            self._end_output()
        elif self not in self._outbox.stalled:
            self._outbox.closing.arm(self)

    def abort(self, error: Exception | None = None) -> None:
        """Close at once. The peer sees a reset if data waits for it."""
        handler, self._handler = self._handler, None
        if handler is None:
            return
        self._loop.remove_reader(self._fd)
        if self._writing:
            self._loop.remove_writer(self._fd)
        self._outbox.lingering.disarm(self)
        if self.waiting_bytes:
            self._forget_waiting()
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._socket.close()
        handler.lost(error)

    def drop(self, reason: str) -> None:
        """Abort a peer that does not keep up, and count it."""
        if self._handler is not None:
            self._outbox.count(reason)
            self.abort(Stalled(reason))

    def _begin(self) -> None:
        if self._handler is None:
            return
        if self._handshaking:
            self._shake_hands()
        else:
            self._handler.ready()

    def _shake_hands(self) -> None:
        assert isinstance(self._socket, ssl.SSLSocket)
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLWantWriteError:
            self._watch_writable()
            return
        except (OSError, ValueError) as error:
            self.abort(error)
            return
        self._handshaking = False
        if self._handler is not None:
            self._handler.ready()
        if self.waiting_bytes:
            self._watch_writable()

    def _readable(self) -> None:
        if self._handshaking:
            self._shake_hands()
            return
        buffer = self._outbox.buffer
        for _ in range(_READS_MAX):
            try:
                count = self._socket.recv_into(buffer)
            except _WANT:
                return
            except ssl.SSLEOFError:  # no close_notify: as usual as with it
                count = 0
            except (OSError, ValueError) as error:
                self.abort(error)
                return
            if not self._take(count) or count < _RECORD_BYTES:
                return

    def _take(self, count: int) -> bool:
        """Pass on what was read. Returns whether there may be more to read now."""
        handler = self._handler
        if handler is None:
            return False
        if self._closing:
            self._lingered_bytes += count
            if not count or self._lingered_bytes > _LINGER_BYTES:
                if not self.waiting_bytes:
                    self.abort()
                else:
                    self.pause_reading()
                return False
            return True
        if count:
            handler.received(bytes(self._outbox.buffer[:count]))
        else:
            self.pause_reading()
            handler.ended()
        return self._reading and self._handler is not None

    def _writable(self) -> None:
        if self._handshaking:
            self._watch_no_longer()
            self._shake_hands()
            return
        before = self.waiting_bytes
        queue = self._queue
        while queue:
            sent = self._send(queue[0])
            if sent < 0:
                return
            self.waiting_bytes -= sent
            if sent < len(queue[0]):
                if sent:
                    queue[0] = memoryview(queue[0])[sent:]
                break
            queue.popleft()
        if taken := before - self.waiting_bytes:
            self._outbox.account(self, -taken)
            self._patient_bytes = max(0, self._patient_bytes - taken)
            if not self._patient and not self._patient_bytes:
                self._outbox.stalled.arm(self)
            if self in self._outbox.closing:
                self._outbox.closing.arm(self)
        if not self.waiting_bytes:
            self._sent_all()

    def _sent_all(self) -> None:
        self._queue = None
        self._watch_no_longer()
        self._outbox.stalled.disarm(self)
        self._outbox.closing.disarm(self)
        self._outbox.waiting.pop(self, None)
        if self._closing:
            self._end_output()
        elif self._full:
            self._full = False
            if self._handler is not None:
                self._handler.drained()

    def _send(self, data: memoryview | bytes) -> int:
        """Send as much as the kernel takes. Returns the number of bytes, -1 if the channel broke."""
        total = 0
        try:
            if isinstance(self._socket, ssl.SSLSocket) and len(data) > _RECORD_BYTES:
                view = memoryview(data)
                while total < len(view):  # OpenSSL sends one record a call
                    total += self._socket.send(view[total:])
                return total
            return self._socket.send(data)
        except _WANT:
            return total
        except (OSError, ValueError) as error:
            self.abort(error)
            return -1

    def _watch_writable(self) -> None:
        if not self._writing:
            self._writing = True
            self._loop.add_writer(self._fd, self._writable)

    def _watch_no_longer(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)

    def _forget_waiting(self) -> None:
        self._outbox.account(self, -self.waiting_bytes)
        self._outbox.stalled.disarm(self)
        self._outbox.closing.disarm(self)
        self._outbox.waiting.pop(self, None)
        self.waiting_bytes = 0
        self._queue = None

    def _end_output(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            if isinstance(self._socket, ssl.SSLSocket) and not self._handshaking:
                self._socket.unwrap()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_WR)
        if self._handler is not None:
            self._outbox.lingering.arm(self)
            self._closing = True
            if not self._reading:
                self._reading = True
                self._loop.add_reader(self._fd, self._readable)


def _stalled(channel: Channel) -> None:
    channel.drop("stalled")


def _lingered(channel: Channel) -> None:
    channel.abort()


def tune(connected: socket.socket) -> None:
    """Set options of TCP. Accepted sockets inherit them from the listening one."""
    with contextlib.suppress(OSError):  # the peer may be gone
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # what the kernel holds beyond the peer's window
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
