"""Configuration in force: parsed from the ConfigMap, or the reason why it is unreadable."""

from __future__ import annotations

import msgspec

from muster.api.names import TEAMS_CONFIG_MAP
from muster.kube.objects.core import ConfigMap
from muster.teams.config import TeamsConfig, from_data
from muster.teams.plan import Caution, Why
from muster.teams.yaml_reader import TeamsConfigError

_KEEP = "nodes keep their owners"


class Source(msgspec.Struct, frozen=True):
    """Result of reading the ConfigMap.

    Attributes:
        config: None if it is unreadable or allocates nothing.
        caution: the problem; None without one.
    """

    config: TeamsConfig | None = None
    caution: Caution | None = None

    @property
    def ok(self) -> bool:
        """Whether the configuration assigns nodes."""
        return self.config is not None and self.caution is None


def source_of(found: ConfigMap | None) -> Source:
    """Return the configuration of a ConfigMap, or of None if there is none."""
    if found is None:
        return Source(caution=Caution(Why.DELETED, f"there is no ConfigMap {TEAMS_CONFIG_MAP}; {_KEEP}"))
    try:
        return in_force(from_data(found.data))
    except TeamsConfigError as error:
        reasons = "; ".join(map(str, error.problems))
        return Source(caution=Caution(Why.INVALID, f"{_KEEP} until this is corrected: {reasons}"))


def in_force(config: TeamsConfig) -> Source:
    """Return the source for a valid configuration. Without allocations it counts as none, including its keys."""
    if not config.pools:
        return Source(caution=Caution(Why.NO_ALLOCATIONS, f"there are no allocations; {_KEEP}"))
    return Source(config)
