"""How many addresses a node should have: pure decisions of the warm pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from muster.network.addresses.block import Block, Family
from muster.network.addresses.pool import FamilyCount

TOTAL_MAX: Final = 4096


class Targets(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Targets of the warm pool, in addresses of each family.

    Attributes:
        warm: free addresses that wait for new pods. Addresses that cool down are not free
            (amazon-vpc-cni-k8s#2896).
        minimum: addresses of a node with no pods.
        maximum: addresses that a node gets at most.
    """

    warm: Annotated[int, Meta(ge=0, le=TOTAL_MAX)] = 8
    minimum: Annotated[int, Meta(ge=0, le=TOTAL_MAX)] = 16
    maximum: Annotated[int, Meta(ge=1, le=TOTAL_MAX)] = 256


class Want(NamedTuple):
    """What the warm pool wants of a family.

    Attributes:
        add: addresses to add.
        give_back: an idle block that is not needed, or None.
        limited: the node needs more addresses than `maximum` allows.
    """

    add: int = 0
    give_back: str | None = None
    limited: bool = False


def decide(
    counts: Mapping[Family, FamilyCount], idle: Sequence[Block], waiting: int, targets: Targets
) -> dict[Family, Want]:
    """Return what is wanted of each family.

    Args:
        counts: the addresses of each family.
        idle: blocks all of whose addresses are free.
        waiting: pods that got no address a short time ago.
        targets: the targets.
    """
    return {family: _want(family, count, idle, waiting, targets) for family, count in counts.items()}


def _want(family: Family, count: FamilyCount, idle: Sequence[Block], waiting: int, targets: Targets) -> Want:
    total = count.total - count.unused
    short = max(targets.warm + waiting - count.free, targets.minimum - total)
    if short > 0:
        room = max(0, targets.maximum - total)
        # Only a shortage of addresses that pods wait for, or soon will, is a limit to report.
        return Want(add=min(short, room), limited=room < short and count.free < targets.warm + waiting)
    for block in reversed(idle):
        size = sum(1 for _ in block.usable())
        keeps_warm = count.free - size >= targets.warm + waiting
        if block.family is family and keeps_warm and total - size >= targets.minimum:
            return Want(give_back=block.cidr)
    return Want()
