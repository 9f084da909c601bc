"""The configuration in force: what the ConfigMap says, or why nothing can be read from it."""

from __future__ import annotations

import msgspec

from muster.api.names import TEAMS_CONFIG_MAP
from muster.kube.core import ConfigMap
from muster.teams.config import TeamsConfig, from_data
from muster.teams.marked import TeamsConfigError
from muster.teams.plan import Caution, Why

_KEEP = "nodes keep their owners"


class Source(msgspec.Struct, frozen=True):
    """What is in force.

    Attributes:
        config: None where nothing could be read, or it allocates nothing.
        caution: what is wrong, None where nothing is.
    """

    config: TeamsConfig | None = None
    caution: Caution | None = None

    @property
    def ok(self) -> bool:
        """Whether nodes are given out by it."""
        return self.config is not None and self.caution is None


def source_of(found: ConfigMap | None) -> Source:
    """Read the ConfigMap; None where there is none."""
    if found is None:
        return Source(caution=Caution(Why.DELETED, f"there is no ConfigMap {TEAMS_CONFIG_MAP}; {_KEEP}"))
    try:
        return in_force(from_data(found.data))
    except TeamsConfigError as error:
        said = "; ".join(map(str, error.problems))
        return Source(caution=Caution(Why.INVALID, f"{_KEEP} until this is mended: {said}"))


def in_force(config: TeamsConfig) -> Source:
    """What a configuration that can be read comes to: one without allocations says nothing, not even a key."""
    if not config.pools:
        return Source(caution=Caution(Why.NO_ALLOCATIONS, f"there are no allocations; {_KEEP}"))
    return Source(config)
