"""The output of `decide`: new limits for nodes, and why subjects wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from muster.network.uplink.wire import Pair


class Why(StrEnum):
    """Why a subject gets less than it wants."""

    PRIORITY = "Priority"
    """Jobs of a higher priority use the share of its team."""
    TEAM_SHARE = "TeamShare"
    """Its team has its fair share of the budget."""
    ROOM = "Room"
    """It gets more once other nodes have applied their lower limits."""
    WARMING = "Warming"
    """The leader is new, and has not heard enough nodes."""


class NodeRates(NamedTuple):
    """New limits of a node, for the subjects of its NodeView in the same order. `node` is its index in the snapshot."""

    node: int
    rate_in: Sequence[int]
    rate_out: Sequence[int]
    rest: Pair


class Shared(NamedTuple):
    """How one direction of the budget was shared.

    Attributes:
        wanted_bps: the sum of all demands, with the floors.
        allotted_bps: the sum of all limits that the plan aims at.
        levels_bps: by index of a group that gets less than it wants: the limit of each of its subjects.
        waits: by index of such a group: why.
        teams_bps: by team: what its subjects get together.
        floor_bps: what each subject gets at least.
        blocked: whether raises wait until other nodes have applied lower limits.
    """

    wanted_bps: int
    allotted_bps: int
    levels_bps: Mapping[int, int]
    waits: Mapping[int, Why]
    teams_bps: Mapping[str, int]
    floor_bps: int
    blocked: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send.

    Attributes:
        nodes: the nodes whose limits change.
        download: how the budget of downloads was shared.
        upload: the same for uploads.
    """

    nodes: Sequence[NodeRates]
    download: Shared
    upload: Shared

    @property
    def blocked(self) -> bool:
        """Returns whether raises wait for room: the next plan should follow soon."""
        return self.download.blocked or self.upload.blocked
