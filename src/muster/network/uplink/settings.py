"""The configuration in numbers, as the hub uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.network.uplink.config import UplinkConfig
from muster.network.uplink.wire import NOTHING, Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The budget and how it is shared, in bits per second.

    Attributes:
        budget: of the fleet.
        static: the static share of a node; 0: the budget divided by the number of nodes.
        floor: what each node's rest and each subject with traffic gets at least.
        line: the line rates of nodes whose agents do not know them; 0: unknown.
        weights: by team.
        default_weight: of other teams, and of subjects without a team.
        lease_s: how long limits stay without a connection.
        decay_s: the time in which they then fall to the static share.
        dry_run: nothing is limited.
    """

    budget: Pair
    static: Pair = NOTHING
    floor: Pair = NOTHING
    line: Pair = NOTHING
    weights: Mapping[str, int] = field(default_factory=dict)
    default_weight: int = 1
    lease_s: float = 30.0
    decay_s: float = 60.0
    dry_run: bool = False


def settings_of(config: UplinkConfig) -> Settings:
    """Return the settings of a checked configuration."""
    return Settings(
        budget=config.budget.bps,
        static=config.static_share.bps,
        floor=config.floor.bps,
        line=config.line_rate.bps,
        weights=config.teams,
        default_weight=config.default_weight,
        lease_s=config.lease_s,
        decay_s=config.decay_s,
        dry_run=config.dry_run,
    )
