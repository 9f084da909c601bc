"""The interface of what counts a node's traffic in the kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

from muster.network.traffic.classes import Classes

Direction = Literal["in", "out"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("in", "out")
"""As the pod sees it: `in` is its download."""

HOST: Final = "host"
"""The subject of all traffic that no other subject has, what the node forwards for others included."""
PULLS: Final = "pulls"
"""The subject of the container runtime's cgroup."""
TUNNEL: Final = "tunnel"
"""Not a row: its classes INNER, OUTER and IPV6 explain how rows and the NIC's counters differ (see overhead.py)."""
INNER: Final = "inner"
"""What a CNI's overlay carried: these bytes are in the rows too."""
OUTER: Final = "outer"
"""The same with its envelopes, as the NIC saw it."""
IPV6: Final = "ipv6"
"""What was IPv6: these bytes are in the rows too."""
SUBJECT_LENGTH_MAX: Final = 100
"""Longest id of a subject: comments of nftables hold 128 characters, those of legacy iptables 255."""


class BackendError(Exception):
    """The kernel's counters cannot be set up or read. The text says why and what to do."""


class CountersGone(BackendError):
    """Another program removed the counters. Call `setup` and `put`; `instance` is then another one."""


class CounterKey(NamedTuple):
    """What one counter counts.

    Attributes:
        subject: a pod's UID, `mark:N` (sockets of the data cache), `pulls`, or `host`.
        cls: the class of the peer.
        direction: as the subject sees it.
    """

    subject: str
    cls: str
    direction: Direction


class Count(NamedTuple):
    """Packets as the kernel sees them (several segments may be one), and IP bytes without link-layer headers."""

    packets: int
    bytes: int

    def plus(self, other: Count) -> Count:
        """Return the sum."""
        return Count(self.packets + other.packets, self.bytes + other.bytes)


@dataclass(frozen=True)
class Subject:
    """Whose packets are counted together.

    Attributes:
        id: at most SUBJECT_LENGTH_MAX printable characters without quotes, backslashes and spaces.
        addresses: of a pod with a network namespace of its own. If there are any, backends that see forwarded
            packets count by them, and by nothing else.
        cgroup: the directory in the unified hierarchy as this process sees it, for sockets of the host's network
            namespace (and, with eBPF, for those of any).
        mark: SO_MARK of sockets in the host's network namespace (muster.api.socket_marks); 0 for none.
    """

    id: str
    addresses: tuple[str, ...] = ()
    cgroup: str = ""
    mark: int = 0


def mark_subject(mark: int) -> str:
    """Return the id of the subject for sockets with a mark."""
    return f"mark:{mark}"


class Backend(Protocol):
    """Counts packets per subject, class and direction. One thread at a time uses it.

    A packet is counted if it crosses one of the node's NICs, exactly once, for exactly one subject. The peer is the
    real one: a Service's address counts as the endpoint that it was translated to.
    """

    @property
    def name(self) -> str:
        """`nftables`, `iptables-legacy` or `ebpf`."""

    def setup(self, classes: Classes) -> None:
        """Create what is missing, and use these classes from now on. Existing counters survive, also of former classes.

        Raises:
            BackendError: the kernel or its program refused.
        """

    def instance(self) -> str:
        """Return an id that changes whenever the counters began at 0 again, e.g. after a reboot.

        Raises:
            CountersGone: there are none.
        """

    def put(self, subjects: Sequence[Subject]) -> Mapping[CounterKey, Count]:
        """Count for these subjects and no others, by one atomic change. Counters of what stays go on.

        If two subjects claim the same address, mark or cgroup, the last one gets it.

        Returns:
            The final value of each counter that ended: those of subjects that left, and of subjects that lost an
            address. If such a subject is still there, its counters begin at 0. Of packets that are processed while
            a counter ends, at most one a CPU is missing.

        Raises:
            BackendError: nothing changed.
        """

    def read(self) -> Mapping[CounterKey, Count]:
        """Return all counters, zeros included.

        Raises:
            CountersGone: another program removed them.
        """

    def remove(self, ids: Sequence[str]) -> Mapping[CounterKey, Count]:
        """Stop counting for these subjects; return their final counts, as `put` does."""

    def teardown(self) -> None:
        """Remove everything that `setup` made. It succeeds if there is nothing."""
