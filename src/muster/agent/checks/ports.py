"""Finds problems of network ports in samples. It does not read anything itself and has no clock.

InfiniBand counters that always mean a bad port: NVSentinel's defaults. Widths of the counters: the kernel's
drivers/infiniband/core/sysfs.c. Counters of the port's own management agent stop at their maximum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from statistics import median
from typing import Final, NamedTuple

from muster.agent.checks.sights import Seen, Sight
from muster.kube.counters import rise

CHECK: Final = "port"
COUNTERS: Final[Mapping[str, int]] = {
    "link_downed": 8, "excessive_buffer_overrun_errors": 4, "local_link_integrity_errors": 4, "symbol_error": 16,
}  # fmt: skip
"""Files below `counters`, and their width in bits. All but symbol_error are fatal."""
HW_COUNTERS: Final[Mapping[str, int]] = {"rnr_nak_retry_err": 32}
"""Files below `hw_counters`."""
BITS: Final[Mapping[str, int]] = {**COUNTERS, **HW_COUNTERS, "flap": 32, "errors": 64}
CODES: Final = frozenset({(CHECK, code) for code in (*BITS, "saturated", "down", "speed", "gone")})

_SLOWER: Final = 0.95
"""Below this share of its expected rate, a port is slow. Files round the rate differently."""
_SIBLINGS_MIN: Final = 4
_LOOKS: Final = 2
"""A link in training is not down or slow yet."""


class Port(NamedTuple):
    """One port in one sample. Values that could not be read are missing."""

    name: str
    """mlx5_0/1, or the name of the interface."""
    counters: Mapping[str, int]
    """By code."""
    up: bool | None = None
    """None if not known, or if an operator has switched it off."""
    gbps: float | None = None
    board: str = ""
    """Equal for ports of the same kind of card."""
    moved: bool = False
    """Its device exists in another network namespace: nothing else is known."""


class Ports:
    """The ports of one node over time.

    Args:
        expect: Gbit/s by pattern of names (`mlx5_*/1`): such a port must be up and that fast. Other ports must not
            become worse than they were.
    """

    def __init__(self, expect: Mapping[str, float]) -> None:
        self._expect = expect
        self._last: dict[str, Port] = {}
        self._was_up: set[str] = set()
        self._best_gbps: dict[str, float] = {}

    def take(self, ports: Sequence[Port]) -> Seen:
        """Take the next sample of all ports."""
        events: list[Sight] = []
        states: list[Sight] = []
        for port in ports:
            events += self._events(port)
            if not port.moved:
                states += self._states(port, ports)
        here = {port.name for port in ports}
        for name in self._was_up - here:
            states.append(Sight(CHECK, name, "gone", "the port was there and up, and is gone", looks=_LOOKS))
        for port in ports:
            if not port.moved:
                # A port that does not respond now is later compared with its last values.
                last = self._last.get(port.name, port)
                fit = {code: value for code, value in port.counters.items() if value < 1 << BITS[code]}
                self._last[port.name] = port._replace(counters={**last.counters, **fit})
                if port.up:
                    self._was_up.add(port.name)
                    self._best_gbps[port.name] = max(port.gbps or 0.0, self._best_gbps.get(port.name, 0.0))
        return Seen(tuple(states), tuple(events))

    def _events(self, port: Port) -> Iterable[Sight]:
        last = self._last.get(port.name)
        for code, value in port.counters.items():
            rose = rise(last.counters.get(code), value, BITS[code]) if last is not None else 0
            if rose:
                yield Sight(CHECK, port.name, code, f"{code} rose by {rose} to {value}", times=rose)

    def _states(self, port: Port, ports: Sequence[Port]) -> Iterable[Sight]:
        for code, bits in COUNTERS.items():
            if port.counters.get(code) == (1 << bits) - 1:
                yield Sight(CHECK, port.name, "saturated", f"{code} is at its maximum: new errors are not counted")
        wanted_gbps = next((gbps for glob, gbps in self._expect.items() if fnmatchcase(port.name, glob)), None)
        if port.up is False and (wanted_gbps is not None or port.name in self._was_up):
            yield Sight(CHECK, port.name, "down", "the port is down", looks=_LOOKS)
        if not port.up or not port.gbps:
            return
        siblings = [each.gbps for each in ports if each.board == port.board and each.board and each.up and each.gbps]
        of_siblings = median(siblings) if len(siblings) >= _SIBLINGS_MIN else 0.0
        should_gbps = wanted_gbps or max(self._best_gbps.get(port.name, 0.0), of_siblings)
        if port.gbps < should_gbps * _SLOWER:
            message = f"{port.gbps:g} Gbit/s instead of {should_gbps:g}"
            yield Sight(CHECK, port.name, "speed", message, looks=_LOOKS)
