"""Estimates what each subject would use, from the counters of two moments. Names subjects that do not slow down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from muster.network.shaping.queues import Usage
from muster.network.shaping.shaper import PodUse
from muster.network.uplink.wire import Pair, PodDemand

ETHERNET_BYTES: Final = 14
UNRESPONSIVE_SHARE: Final = 0.2
"""TCP loses a few percent before it slows down. A subject that loses more of its packets is unresponsive ..."""
UNRESPONSIVE_S: Final = 5.0
"""... if it keeps doing so for this long."""
SHORTEST_S: Final = 0.4
"""Within a shorter time, a few packets of 64 KB decide what a subject seems to use."""
UNKNOWN_LINE_BPS: Final = 2**40


class _Way(NamedTuple):
    used_bps: int
    demand_bps: int
    loss: float


class Meter:
    """Keeps the counters of the last measurement."""

    def __init__(self) -> None:
        self._last: Mapping[str, PodUse] = {}
        self._last_s = 0.0
        self._losing_s: dict[str, float] = {}
        self._demands: Mapping[str, PodDemand] = {}

    def step(
        self, use: Mapping[str, PodUse], now_s: float, limits: Mapping[str, Pair | None], line: Pair
    ) -> Mapping[str, PodDemand]:
        """Return the demand of each subject since the last measurement.

        A new subject used what its counters hold. After less than SHORTEST_S the last result is returned again.

        Args:
            use: counters by subject.
            now_s: monotonic seconds.
            limits: in force since the last call; None without a limit of its own.
            line: what the node's uplink can carry; 0 if it is unknown.
        """
        elapsed_s = now_s - self._last_s
        if self._last_s and elapsed_s < SHORTEST_S:
            return self._demands
        demands: dict[str, PodDemand] = {}
        losing: dict[str, float] = {}
        for subject, new in use.items():
            old = self._last.get(subject, PodUse())
            limit = limits.get(subject)
            down = _way(old.down, new.down, elapsed_s, limit and limit.in_bps, line.in_bps)
            up = _way(old.up, new.up, elapsed_s, limit and limit.out_bps, line.out_bps)
            demands[subject] = PodDemand(down.used_bps, up.used_bps, down.demand_bps, up.demand_bps)
            if max(down.loss, up.loss) >= UNRESPONSIVE_SHARE:
                losing[subject] = self._losing_s.get(subject, now_s)
        first = not self._last_s
        self._last, self._last_s, self._losing_s = use, now_s, losing
        self._demands = {} if first else demands
        return self._demands

    @property
    def unresponsive(self) -> frozenset[str]:
        """Subjects that lost many packets for UNRESPONSIVE_S, and send on: name them to people."""
        return frozenset(
            subject for subject, since_s in self._losing_s.items() if self._last_s - since_s >= UNRESPONSIVE_S
        )


def _way(old: Usage, new: Usage, elapsed_s: float, limit_bps: int | None, line_bps: int) -> _Way:
    if new.packets < old.packets or new.bytes < old.bytes:
        old = Usage()  # its class is another one
    packets = new.packets - old.packets
    size = max(0, new.bytes - old.bytes - ETHERNET_BYTES * packets)
    drops = max(0, new.drops - old.drops)
    lost = drops * size // packets if packets else 0
    sent_bps = int(size * 8 / elapsed_s)
    line = line_bps or UNKNOWN_LINE_BPS
    used = min(int((size + lost) * 8 / elapsed_s), line)
    waits = bool(drops or new.backlog_bytes)
    held = old.backlog_bytes and new.backlog_bytes  # a packet of 64 KB may wait longer than the time between two calls
    near = limit_bps is None or held or sent_bps * 2 >= limit_bps
    full = limit_bps is not None and sent_bps * 20 >= limit_bps * 19
    demand = line if full or (waits and near) else used
    return _Way(used, demand, drops / (drops + packets) if drops else 0.0)
