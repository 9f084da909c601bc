"""The input of `decide`: the budget, and the demand and limits of each node, in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from muster.network.uplink.wire import NOTHING, Pair


class Group(NamedTuple):
    """Subjects that share alike: those of one team with the same priority."""

    team: str
    priority: int


class NodeView(NamedTuple):
    """A connected node. The lists are parallel: one entry for each active subject.

    Attributes:
        name: of the node.
        groups: index of the subject's group in `Snapshot.groups`.
        want_in: demand in bits/s.
        want_out: the same for the upload.
        rate_in: the limit that was sent last; 0 without one.
        rate_out: the same for the upload.
        rest: the limit of all other subjects together, as sent last.
        held: the largest sum of limits that the node may enforce at this moment: it may not have applied the rates
            that were sent last.
        static: the node's static share.
        renew: limits must be sent although they do not change: the agent is new, or has limits for subjects that left.
    """

    name: str
    groups: list[int]
    want_in: list[int]
    want_out: list[int]
    rate_in: list[int]
    rate_out: list[int]
    rest: Pair
    held: Pair
    static: Pair
    renew: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What `decide` sees.

    Attributes:
        budget: of the fleet, in bits/s.
        floor: what each active subject and each node's rest get at least, if the budget suffices.
        weights: by team.
        default_weight: of teams without a weight, and of subjects without a team.
        groups: the groups of all subjects.
        nodes: the connected nodes that have sent a report.
        away: the limits of all other nodes: those that are silent count with their last rates, see `cache.py`.
        excess: by team, what its unresponsive subjects use beyond their limits. Their team pays for it.
        warming: a new leader has not heard enough nodes. No node then gets more than it has, or its static share.
    """

    budget: Pair
    floor: Pair
    weights: Mapping[str, int] = field(default_factory=dict)
    default_weight: int = 1
    groups: Sequence[Group] = ()
    nodes: Sequence[NodeView] = ()
    away: Pair = NOTHING
    excess: Mapping[str, Pair] = field(default_factory=dict)
    warming: bool = False
