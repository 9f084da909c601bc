"""The plan of balloons: the writes, and the state of each pool."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from muster.fleet.balloons.config import BalloonPool
from muster.fleet.balloons.snapshot import Balloon, Cap, Known, NodeUse


class Put(msgspec.Struct, frozen=True):
    """Create the pool's Deployment, or replace its template if it exists."""

    pool: BalloonPool
    replicas: int
    known: Known | None


class Scale(msgspec.Struct, frozen=True):
    """Change the number of balloons."""

    known: Known
    replicas: int


class Drop(msgspec.Struct, frozen=True):
    """Delete a Deployment, because its pool no longer has balloons."""

    known: Known


class Mark(msgspec.Struct, frozen=True):
    """Mark a balloon to go first before its Deployment shrinks, so that others stay and it is not recreated."""

    balloon: Balloon


class Remove(msgspec.Struct, frozen=True):
    """Delete a balloon on a node that must be left alone. Another one is created elsewhere if there is room."""

    balloon: Balloon
    why: NodeUse


Action = Put | Mark | Scale | Drop | Remove


class PoolState(msgspec.Struct, frozen=True):
    """A pool's balloons: configured, requested now, on a node, waiting; and its nodes by use."""

    configured: int
    replicas: int
    placed: int
    waiting: int
    nodes: Mapping[NodeUse, int]


class Plan(msgspec.Struct, frozen=True):
    """The writes in order. `wake_at` is when to plan again even if nothing changes."""

    actions: tuple[Action, ...]
    pools: Mapping[str, PoolState]
    caps: Mapping[str, Cap]
    wake_at: float | None = None
