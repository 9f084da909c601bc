"""The key under which nodes and pods name their team, as the ConfigMap `muster-teams` says: one for a whole process."""

from __future__ import annotations

import asyncio
import logging

from muster.api.names import LABEL_TEAM, SYSTEM_NAMESPACE, TEAMS_CONFIG_MAP
from muster.kube.client import Client
from muster.kube.core import ConfigMap
from muster.kube.errors import ApiError
from muster.teams.config import from_data
from muster.teams.marked import TeamsConfigError

log = logging.getLogger(__name__)

LOOK_S = 15.0


async def read_team_key(client: Client, namespace: str = SYSTEM_NAMESPACE, known: str = LABEL_TEAM) -> str:
    """Return the key in force; what is `known` where there is no ConfigMap, or none that can be read."""
    try:
        listed = await client.list(ConfigMap, namespace, field_selector=f"metadata.name={TEAMS_CONFIG_MAP}")
        return from_data(listed.items[0].data).team_key if listed.items else known
    except (ApiError, TeamsConfigError):
        return known


async def until_team_key_changes(client: Client, namespace: str, key: str) -> None:
    """Return once another key is in force: who ends then, and is started anew, uses one key throughout."""
    while True:
        await asyncio.sleep(LOOK_S)
        now = await read_team_key(client, namespace, key)
        if now != key:
            log.warning("teams are named by %s from now on, no longer by %s: ending, to be started anew", now, key)
            return
