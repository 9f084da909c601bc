"""The messages between an agent and the hub, over one TLS connection (`streams.py` has their bytes).

The agent connects and sends `Hello`. The hub answers `Welcome`, or `Refused` and closes. Then the agent sends
`Applied` with the limits that it enforces, and a `Report` when its demand changed: on average one a second at most. It
also sends one after `Welcome.heartbeat_s`. The hub sends `Rates` when they change, and `Renewal` to answer any other
report.
The agent answers `Rates` by `Applied` once it enforces them: the hub gives freed room to others only then.

A set of rates is a lease: it is valid for `valid_s` from the moment when the agent *sent* the report that the newest
`Rates` or `Renewal` answers. The hub received that report later. So it never counts a lease as ended while the agent
still applies it, and no clocks are compared (Gray and Cheriton, Leases, SOSP 1989). `decay.py` says what applies
after the lease.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import msgspec

PROTOCOL: Final = 1
AUDIENCE: Final = "muster-network"
"""The audience of the service account tokens with which agents connect."""
HELLO_BYTES_MAX: Final = 16 * 1024
PODS_MAX: Final = 1024
"""The most subjects in a report. The kubelet allows 110 pods on a node, and at most a few hundred in practice."""
FRAME_BYTES_MAX: Final = 256 * 1024
"""More than a frame of PODS_MAX subjects with long names and large numbers."""
HEARTBEAT_S: Final = 5.0
"""The longest time between two reports of an agent."""
HELLO_TIMEOUT_S: Final = 10.0

Bps = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Bits of IP packets per second, without headers of the link layer."""
Name = Annotated[str, msgspec.Meta(max_length=253)]


class Pair(NamedTuple):
    """A number for each direction, as the pod sees it: `in` is its download, `out` its upload."""

    in_bps: Bps
    out_bps: Bps


NOTHING: Final = Pair(0, 0)


class PodDemand(NamedTuple):
    """What a subject used since the last report, and what it would use, in bits per second.

    Attributes:
        used_in_bps: what arrived for it over the uplink, including packets that the shaper then dropped.
        used_out_bps: what it sent over the uplink.
        demand_in_bps: what it would use without a limit, as far as the agent knows. If packets wait or are dropped,
            that is the line rate. Otherwise it is what the subject used.
        demand_out_bps: the same for the upload.
    """

    used_in_bps: Bps
    used_out_bps: Bps
    demand_in_bps: Bps
    demand_out_bps: Bps


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The first frame of an agent.

    Attributes:
        protocol: PROTOCOL of the agent.
        node: the node's name. The token must be bound to this node.
        token: a service account token of the agent's pod, with audience AUDIENCE.
    """

    protocol: int
    node: Name
    token: Annotated[str, msgspec.Meta(max_length=HELLO_BYTES_MAX)]

    def __repr__(self) -> str:
        return f"Hello(protocol={self.protocol}, node={self.node!r})"


class Report(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The demand of a node.

    Attributes:
        seq: number of the report on this connection, from 1.
        line: what the node's uplink can carry.
        pods: demand by subject: a pod's UID, or a subject of traffic accounting such as `pulls`. Subjects that are
            not in it have no rate of their own.
    """

    seq: int
    line: Pair
    pods: Annotated[dict[Name, PodDemand], msgspec.Meta(max_length=PODS_MAX)]


class Applied(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The limits that the node enforces: the second frame of an agent, and the answer to `Rates` once they are applied.

    Attributes:
        epoch: epoch of the rates that the node applies; "" if it has no lease.
        seq: `Rates.seq` of them; 0 without.
        total: the sum of all limits that the node enforces now, including the limit of the rest.
    """

    epoch: Annotated[str, msgspec.Meta(max_length=64)]
    seq: int
    total: Pair


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """The hub accepted the agent.

    Attributes:
        epoch: names the leader's term. Rates of another epoch stay valid until their lease ends.
        heartbeat_s: the longest time between two reports.
        spread_s: a reconnecting agent waits a random part of this time, so that not all nodes return at once.
    """

    epoch: str
    heartbeat_s: float
    spread_s: float


class Reason(StrEnum):
    """Why the hub refused an agent."""

    NOT_LEADING = "NotLeading"
    BUSY = "Busy"
    UNAUTHENTICATED = "Unauthenticated"
    WRONG_NODE = "WrongNode"
    PROTOCOL = "Protocol"
    OFF = "Off"
    """The configuration turns the budget off."""


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The hub closes the connection.

    Attributes:
        reason: why.
        message: the same for people.
        retry_s: the agent waits at least this long.
    """

    reason: Reason
    message: str
    retry_s: float


class Rates(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The limits of a node.

    Attributes:
        seq: number of these rates in their epoch; larger is newer.
        epoch: the leader's term.
        answers: the newest report that the hub has received on this connection.
        valid_s: the lease, counted from when the agent sent that report.
        decay_s: after the lease, the time in which higher rates fall to the static share.
        pods: limit by subject.
        rest: the limit of all other subjects together.
        static: the node's static share.
        dry_run: the node measures and reports, but enforces nothing.
    """

    seq: int
    epoch: str
    answers: int
    valid_s: float
    decay_s: float
    pods: dict[str, Pair]
    rest: Pair
    static: Pair
    dry_run: bool = False

    @property
    def total(self) -> Pair:
        """Returns the sum of all limits."""
        total_in, total_out = self.rest
        for rate_in, rate_out in self.pods.values():
            total_in += rate_in
            total_out += rate_out
        return Pair(total_in, total_out)


class Renewal(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """The rates in force stay, with a new lease.

    Attributes:
        seq: `Rates.seq` of the rates that stay.
        answers: as in Rates.
    """

    seq: int
    answers: int


FromAgent = Hello | Report | Applied
FromHub = Welcome | Refused | Rates | Renewal
