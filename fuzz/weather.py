"""Failures between a controller and the API server, drawn from the seed; there are none after `calm_at`."""

from __future__ import annotations

import random

import msgspec

from muster.sim.virtual.loop import VirtualLoop
from muster.sim.virtual.network import Fate, WatchFate

FASTEST_S = 0.0005
LATEST_S = 8.0
"""A request takes effect no later than this after it was sent: less than a new leader waits for."""


class Window(msgspec.Struct, frozen=True):
    """A period, in virtual seconds since the epoch."""

    start: float
    end: float

    def holds(self, now: float) -> bool:
        """Returns whether `now` lies in this period."""
        return self.start <= now < self.end


class Weather(msgspec.Struct, frozen=True):
    """Failures of requests and watches. Rates are shares of all requests.

    Attributes:
        calm_at: nothing goes wrong from then on.
        latency_s: mean of one way.
        slow: while one of these holds, ways take up to `slow_s`.
        refused: answered 429, 500 or 503 without acting.
        unsent: no connection.
        broken: done, but the connection breaks.
        silent: done, but no answer comes.
        lost: neither done nor answered.
        late: done up to LATEST_S after it was sent.
        late_path: how paths of requests end that may be late; "" where all may.
        watch_lasts_s: mean time until a watch breaks; 0 for never.
        watch_silent: share of watches that fall silent.
        denied: node -> when no pod may be bound to it, as an admission policy has it; with which status.
        mute: client -> when its requests about leases are lost, and no others.
        partitions: client -> when nothing passes between it and the server.
    """

    calm_at: float
    latency_s: float = 0.003
    slow: tuple[Window, ...] = ()
    slow_s: float = 3.0
    refused: float = 0.0
    unsent: float = 0.0
    broken: float = 0.0
    silent: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    late_path: str = ""
    watch_lasts_s: float = 0.0
    watch_silent: float = 0.0
    denied: dict[str, tuple[Window, int]] = {}
    mute: dict[str, tuple[Window, ...]] = {}
    partitions: dict[str, tuple[Window, ...]] = {}


class Weathered:
    """The fates of one client's requests."""

    def denied(self, method: str, path: str, body: bytes) -> int:
        """Return the status with which a policy refuses a request; 0 if it does not."""
        if method == "POST" and path.endswith("/binding"):
            for node, (window, status) in self._weather.denied.items():
                if window.holds(self._loop.now) and f'"{node}"'.encode() in body:
                    return status
        return 0

    def __init__(self, loop: VirtualLoop, weather: Weather, client: str, rng: random.Random) -> None:
        self._loop = loop
        self._weather = weather
        self._mute = weather.mute.get(client, ())
        self._partitions = weather.partitions.get(client, ())
        self._rng = rng

    def request(self, method: str, path: str) -> Fate:
        """Draw the outcome of a request."""
        weather, rng, now = self._weather, self._rng, self._loop.now
        if any(window.holds(now) for window in self._partitions):
            return Fate(lost=True)
        if "/leases/" in path and any(window.holds(now) for window in self._mute):
            return Fate(lost=True)
        there_s, back_s = self._way_s(now), self._way_s(now)
        draw = rng.random()
        if now >= weather.calm_at:
            return Fate(there_s, back_s)
        for share, fate in (
            (weather.refused, Fate(there_s, back_s, refused=rng.choice((429, 500, 503)))),
            (weather.unsent, Fate(there_s, unsent=True)),
            (weather.broken, Fate(there_s, back_s, broken=True)),
            (weather.silent, Fate(there_s, silent=True)),
            (weather.lost, Fate(lost=True)),
            (weather.late * path.endswith(weather.late_path), Fate(rng.uniform(0, LATEST_S), back_s)),
        ):
            if draw < share:
                return fate
            draw -= share
        return Fate(there_s, back_s)

    def watch(self, path: str) -> WatchFate:
        """Draw how long a watch lasts."""
        weather, rng, now = self._weather, self._rng, self._loop.now
        if any(window.holds(now) for window in self._partitions):
            return WatchFate(refused=True)
        left_s = weather.calm_at - now
        if left_s <= 0 or not weather.watch_lasts_s:
            return WatchFate()
        lasts_s = rng.expovariate(1 / weather.watch_lasts_s)
        if lasts_s > left_s:
            return WatchFate()
        if rng.random() < weather.watch_silent:
            return WatchFate(silent_after_s=lasts_s)
        return WatchFate(breaks_after_s=lasts_s)

    def delay_s(self) -> float:
        """Draw how long watch events take; in a partition, until it is over."""
        now = self._loop.now
        for window in self._partitions:
            if window.holds(now):
                return window.end - now + self._way_s(now)
        return self._way_s(now)

    def _way_s(self, now: float) -> float:
        weather = self._weather
        if now < weather.calm_at and any(window.holds(now) for window in weather.slow):
            return self._rng.uniform(0, weather.slow_s)
        return FASTEST_S + self._rng.expovariate(1 / weather.latency_s)
