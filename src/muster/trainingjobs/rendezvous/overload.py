"""Detects when this process is too slow, because it may then have caused the silence of supervisors itself."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Final

from muster.kube.clock import steady_time

LAG_S: Final = 0.5
WAITING_MAX: Final = 16
_EVERY_S: Final = 0.1
_UNACCEPTED_AT: Final = 24
"""Offset of `tcpi_unacked` in struct tcp_info. For a listening socket it is the number of connections not accepted yet
(tcp(7), ss(8)).
"""


class Strain:
    """Records when the event loop was last late, or when connections last waited to be accepted.

    TLS handshakes run on the event loop, so many pending ones delay it.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = steady_time) -> None:
        """Create the watcher; `run` starts it."""
        self._clock = clock
        self._due: float | None = None
        self._last = 0.0
        self.listener: socket.socket | None = None

    @property
    def last(self) -> float:
        """Returns when this process was last too slow; 0 if never."""
        now = self._clock()
        return now if self._due is not None and now - self._due > LAG_S else self._last

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                self._due = self._clock() + _EVERY_S
                await asyncio.sleep(_EVERY_S)
                if self._clock() - self._due > LAG_S or self._unaccepted() > WAITING_MAX:
                    self._last = self._clock()
        finally:
            self._due = None

    def _unaccepted(self) -> int:
        if self.listener is None:
            return 0
        info = self.listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACCEPTED_AT + 4)
        return int(struct.unpack_from("I", info, _UNACCEPTED_AT)[0])
