"""Failures between supervisors and controllers, drawn from the seed; there are none after `calm_at`."""

from __future__ import annotations

import random

import msgspec

from fuzz.weather import FASTEST_S, Window
from muster.sim.virtual.loop import VirtualLoop


class RoadWeather(msgspec.Struct, frozen=True):
    """How connections of supervisors fare.

    Attributes:
        calm_at: nothing goes wrong from then on.
        latency_s: mean of one way.
        broken: share of requests during which the connection breaks.
        dark: node -> when nothing passes between it and any controller, though all passes to the API server.
    """

    calm_at: float
    latency_s: float = 0.002
    broken: float = 0.0
    dark: dict[str, Window] = {}


class WeatheredRoads:
    """`muster.sim.virtual.line.Roads` by the weather."""

    def __init__(self, loop: VirtualLoop, weather: RoadWeather, rng: random.Random) -> None:
        self._loop, self._weather, self._rng = loop, weather, rng

    def way_s(self, node: str) -> float:
        """Draw how long words take."""
        return FASTEST_S + self._rng.expovariate(1 / self._weather.latency_s)

    def breaks_after_s(self, node: str) -> float | None:
        """Draw whether the connection breaks before the answer, and when."""
        weather, rng = self._weather, self._rng
        if self._loop.now >= weather.calm_at or rng.random() >= weather.broken:
            return None
        return rng.choice((0.0, rng.uniform(0, 2)))

    def dark_until(self, node: str) -> float | None:
        """Look whether anything passes."""
        window = self._weather.dark.get(node)
        return window.end if window is not None and window.holds(self._loop.now) else None


def road_weather(rng: random.Random, nodes: int, calm_at: float, start: float) -> RoadWeather:
    """Draw the weather of a run; half of all runs have none."""
    latency_s = rng.choice((0.001, 0.01))
    if rng.random() < 0.5:
        return RoadWeather(calm_at=calm_at, latency_s=latency_s)
    dark = {}
    for number in rng.sample(range(nodes), rng.choice((0, 1, 1, nodes // 2))):
        begins = rng.uniform(start, calm_at)
        dark[f"node-{number:05d}"] = Window(begins, begins + rng.choice((4.0, rng.uniform(1, 60))))
    return RoadWeather(calm_at=calm_at, latency_s=latency_s, broken=rng.choice((0.0, rng.uniform(0, 0.3))), dark=dark)
