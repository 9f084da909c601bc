"""The input of decide: pools of balloons as configured, nodes, the balloons that exist, and their Deployments."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from muster.fleet.balloons.config import BalloonPool
from muster.fleet.nodes.node import FleetNode

Amounts = Mapping[str, int]


class NodeUse(StrEnum):
    """The use of a pool's node for balloons. Values are in metrics: never rename one."""

    USABLE = "Usable"
    NOT_READY = "NotReady"
    CORDONED = "Cordoned"
    TAINTED = "Tainted"
    """It has a taint that the pool does not tolerate: joining, quarantined, of a team, under pressure."""
    PROMISED = "Promised"
    """A gang has a slot there, whether its pod runs at the moment or not."""
    FULL = "Full"
    """Its pods leave no room for a balloon."""


class BalloonNode(FleetNode, frozen=True, kw_only=True):
    """A node. `taken` is what pods except balloons take of `allocatable`; `promised`: a gang has a slot there."""

    allocatable: Amounts = MappingProxyType({})
    taken: Amounts = MappingProxyType({})
    promised: bool = False


class Balloon(msgspec.Struct, frozen=True):
    """A balloon that is not being deleted.

    Attributes:
        node: its node; "" while it waits for one.
        since: when the controller first saw it, by its own clock, in seconds since the epoch.
        marked: it goes first when its Deployment shrinks.
    """

    namespace: str
    name: str
    uid: str
    pool: str
    node: str = ""
    since: float = 0.0
    marked: bool = False


class Known(msgspec.Struct, frozen=True):
    """A pool's Deployment.

    Attributes:
        pool: the configuration for which it was written; None if that cannot be read.
        stale: its template differs from what we would write for that configuration now.
    """

    name: str
    uid: str
    replicas: int
    pool: BalloonPool | None
    stale: bool = False


class Cap(msgspec.Struct, frozen=True):
    """A limit on balloons until a time, or until more than `usable` nodes can take one: further ones would wait."""

    replicas: int
    usable: int
    until: float


class View(msgspec.Struct, frozen=True):
    """The input of decide.

    Attributes:
        pools: as configured; None if the text is not valid: then the configuration in each Deployment applies.
        nodes: all nodes.
        balloons: without those that are being deleted.
        deployments: by pool name.
        caps: limits from the last plan, by pool.
    """

    pools: tuple[BalloonPool, ...] | None
    nodes: tuple[BalloonNode, ...] = ()
    balloons: tuple[Balloon, ...] = ()
    deployments: Mapping[str, Known] = MappingProxyType({})
    caps: Mapping[str, Cap] = MappingProxyType({})
