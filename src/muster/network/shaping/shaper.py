"""Limits the pods of a node in the kernel: downloads and uploads of the budgeted class, and no other packets.

The kernel keeps all limits when this process ends, however it ends. The next process adopts them.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from muster.network.netlink import tc
from muster.network.netlink.socket import NetlinkSocket
from muster.network.shaping import program
from muster.network.shaping.attachments import Attachments, Side
from muster.network.shaping.links import LinkInfo
from muster.network.shaping.queues import FIRST_MINOR, MAJOR, OTHERS_MINOR, RESERVED_MINOR, Queues, Usage
from muster.network.traffic.classes import NEVER_ROUTED
from muster.network.uplink.wire import Pair

DOWN_LINK: Final = "muster-in"
UP_LINK: Final = "muster-out"
REST: Final = "rest"
"""The subject of all packets that have neither a subject of their own nor the reserved class."""
RESERVED: Final = "reserved"
_RESERVED_RATE: Final = Pair(1_000_000, 1_000_000)
SUBJECTS_MAX: Final = 1024

ALWAYS_INTERNAL: Final = tuple(ipaddress.ip_network(each) for each in (*NEVER_ROUTED, "::1/128"))
"""Never limited, whatever the classes say."""


class PodUse(NamedTuple):
    """Counters of a subject since it got its class, as the pod sees the directions."""

    down: Usage = Usage()
    up: Usage = Usage()


@dataclass(frozen=True, kw_only=True)
class Reserved:
    """What gets a part of the rest in any case, so that a node stays reachable.

    Attributes:
        ports: TCP and UDP ports of either side.
        networks: of the other side, such as the API server's.
        rate: bits/s of the rest.
    """

    ports: tuple[int, ...] = (22, 53)
    networks: tuple[program.Network, ...] = ()
    rate: Pair = _RESERVED_RATE


class Shaper:
    """The limits of a node. All methods are synchronous, and called by one thread at a time.

    Args:
        socket: of NETLINK_ROUTE, in the node's network namespace.
        classes: whether the budget covers a network; the longest prefix wins. It covers all other addresses.
        reserved: what gets a part of the rest in any case.
        state: file with the numbers of the subjects' classes. It ends with a boot, as the kernel's state does.
        patterns: names of pods' links.
        programs_before: see Attachments.
    """

    def __init__(
        self,
        socket: NetlinkSocket,
        *,
        classes: Mapping[program.Network, bool],
        reserved: Reserved,
        state: Path,
        patterns: Iterable[str] = ("*",),
        programs_before: Callable[[LinkInfo], str] = lambda link: "",
    ) -> None:
        covered = {**classes, **dict.fromkeys(ALWAYS_INTERNAL, False)}
        self._reserved = reserved
        self._state = state
        self._down = Queues(socket, DOWN_LINK)
        self._up = Queues(socket, UP_LINK)
        self._attachments = Attachments(socket, patterns, programs_before)
        self._match_down = program.budgeted(covered, upload=False)
        self._match_up = program.budgeted(covered, upload=True)
        self._minors: dict[str, int] = {}

    @property
    def attached(self) -> frozenset[str]:
        """Names of the links whose packets are limited."""
        return self._attachments.attached

    @property
    def refused(self) -> Mapping[str, str]:
        """Why the packets of links are not limited, by name."""
        return self._attachments.refused

    def setup(self, start: Pair) -> bool:
        """Create what is missing in the kernel, and adopt the rest with its limits.

        Args:
            start: limit of the node until the first `apply`, if there is none yet.

        Returns:
            whether an earlier process's limits are in force.

        Raises:
            OSError: the kernel refused.
        """
        adopted = self._down.setup(start.in_bps, self._reserved.rate.in_bps)
        adopted = self._up.setup(start.out_bps, self._reserved.rate.out_bps) and adopted
        self._minors = self._load() if adopted else {}
        if not adopted:
            self._classify({})
        self.refresh()
        return adopted

    def refresh(self, *, only_new: bool = False) -> None:
        """Put the filters on the links of pods. Raises OSError.

        Args:
            only_new: handle only links that appeared. Otherwise, also look for filters of other programs.
        """
        down, up = Side(self._match_down, self._down.index), Side(self._match_up, self._up.index)
        self._attachments.refresh(down, up, only_new=only_new)

    def apply(self, limits: Mapping[str, Pair | None], rest: Pair, addresses: Mapping[str, Iterable[str]]) -> Pair:
        """Set the limits of all subjects. Packets that wait stay, except those of subjects that are gone.

        Args:
            limits: bits/s by subject; None: it shares the rest. Subjects that are absent lose their class.
            rest: limit of all others together.
            addresses: of the subjects. One without addresses has no packets.

        Returns:
            the sum of all limits.

        Raises:
            OSError: the kernel refused.
            TooManyPrefixes: there are too many addresses.
        """
        kept = {subject: self._minors[subject] for subject in limits if subject in self._minors}
        used = set(kept.values()) | (self._down.minors | self._up.minors)
        free = (minor for minor in range(FIRST_MINOR, FIRST_MINOR + 4 * SUBJECTS_MAX) if minor not in used)
        for subject in limits:
            if subject not in kept:
                kept[subject] = next(free)
        if kept != self._minors:
            self._save(kept)
        self._minors = kept
        by_minor = {kept[subject]: pair for subject, pair in limits.items()}
        total = Pair(
            self._down.limit(
                {minor: pair and pair.in_bps for minor, pair in by_minor.items()},
                *(rest.in_bps, self._reserved.rate.in_bps),
            ),
            self._up.limit(
                {minor: pair and pair.out_bps for minor, pair in by_minor.items()},
                *(rest.out_bps, self._reserved.rate.out_bps),
            ),
        )
        self._classify({subject: addresses.get(subject, ()) for subject in limits})
        self._down.remove(self._down.minors - by_minor.keys())
        self._up.remove(self._up.minors - by_minor.keys())
        return total

    def _classify(self, addresses: Mapping[str, Iterable[str]]) -> None:
        pods = {
            ipaddress.ip_network(address): tc.handle(MAJOR, self._minors[subject])
            for subject, mine in addresses.items()
            for address in mine
        }
        for queues, upload in ((self._down, False), (self._up, True)):
            queues.classify(
                program.subjects(
                    pods,
                    tc.handle(MAJOR, OTHERS_MINOR),
                    tc.handle(MAJOR, RESERVED_MINOR),
                    self._reserved.ports,
                    self._reserved.networks,
                    upload=upload,
                )
            )

    def measure(self) -> dict[str, PodUse]:
        """Return the counters of all subjects, of REST and of RESERVED. Raises OSError."""
        down, up = self._down.measure(), self._up.measure()
        minors = {**self._minors, REST: OTHERS_MINOR, RESERVED: RESERVED_MINOR}
        return {subject: PodUse(down.get(minor, Usage()), up.get(minor, Usage())) for subject, minor in minors.items()}

    def teardown(self) -> None:
        """Remove the filters, then the queues. Packets that wait are lost. May be repeated. Raises OSError."""
        self._attachments.teardown()
        self._down.teardown()
        self._up.teardown()
        self._state.unlink(missing_ok=True)

    def _load(self) -> dict[str, int]:
        try:
            read = json.loads(self._state.read_text())
            minors = {str(subject): int(minor) for subject, minor in read.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}
        present = self._down.minors & self._up.minors
        return {subject: minor for subject, minor in minors.items() if minor in present}

    def _save(self, minors: Mapping[str, int]) -> None:
        self._state.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._state.with_suffix(".new")
        fresh.write_text(json.dumps(dict(minors)))
        os.replace(fresh, self._state)
