"""Pushes watches to their clients: no task waits for events, and watches of one selection share their bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

from muster.kube.http1 import heads
from muster.kube.http1.heads import Header
from muster.readcache.serving.exchange import Exchange


class Subscription(Protocol):
    """What the hub passes on."""

    def pause(self) -> None:
        """Pass on nothing until `resume`."""
        ...

    def resume(self) -> None:
        """Pass on what was missed, and then new events."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Watch(Protocol):
    """A watch that was accepted."""

    content_type: str
    headers: tuple[Header, ...]
    deadline_s: float

    def initial(self) -> Iterator[bytes]:
        """The frames before the first event."""
        ...

    def start(self, on_frames: Callable[[list[bytes]], None], on_closed: Callable[[str], None]) -> Subscription:
        """Pass on events from now on."""
        ...


class Framer:
    """Makes one chunk for all watches of a selection, to which the hub passes the same list of frames."""

    __slots__ = ("_data", "_framed", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] | None = None
        self._data = self._framed = b""

    def frame(self, pieces: list[bytes]) -> tuple[bytes, bytes]:
        """Return the joined frames, and their chunk."""
        if pieces is not self._pieces:
            self._data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._framed = heads.chunk(self._data)
            if self._pieces is None:  # for this turn of the loop
                asyncio.get_running_loop().call_soon(self._forget)
            self._pieces = pieces
        return self._data, self._framed

    def _forget(self) -> None:
        self._pieces = None
        self._data = self._framed = b""


class PushedWatch:
    """A watch in its pushed phase."""

    __slots__ = ("_ended", "_exchange", "_framer", "_on_end", "_subscription", "_timer")

    def __init__(self, exchange: Exchange, framer: Framer, on_end: Callable[[PushedWatch], None]) -> None:
        self._exchange = exchange
        self._framer = framer
        self._on_end = on_end
        self._subscription: Subscription | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    def start(self, watch: Watch, deadline_s: float) -> None:
        """Begin to push. Raises what `watch.start` raises."""
        self._subscription = watch.start(self._frames, self._closed)
        self._exchange.stream = self
        self._timer = asyncio.get_running_loop().call_later(max(deadline_s, 0.0), self.end)

    def full(self) -> None:
        """The client does not keep up."""
        if self._subscription is not None:
            self._subscription.pause()

    def drained(self) -> None:
        """The client has taken everything."""
        if self._subscription is not None:
            self._subscription.resume()

    def lost(self) -> None:
        """The client is gone."""
        self._release()

    def stop(self) -> None:
        """End the watch, and then the connection, so that the client connects to another replica."""
        self._exchange.keep_alive = False
        self.end()

    def end(self) -> None:
        """End the watch as at its timeout."""
        if not self._ended:
            self._release()
            self._exchange.finish()

    def stop_later(self, delay_s: float) -> None:
        """Stop after `delay_s`."""
        if not self._ended:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.stop)

    def _frames(self, pieces: list[bytes]) -> None:
        data, framed = self._framer.frame(pieces)
        if data:
            self._exchange.send_framed(data, framed)

    def _closed(self, _reason: str) -> None:
        self._subscription = None
        self.end()

    def _release(self) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()
        self._on_end(self)
