"""Reads the team key (label of nodes and pods) from the ConfigMap `muster-teams`. A process never changes its key."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from muster.api.names import LABEL_TEAM, SYSTEM_NAMESPACE, TEAMS_CONFIG_MAP
from muster.kube.client import Client
from muster.kube.errors import ApiError
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.node import Node
from muster.teams.record import read_record
from muster.teams.source import source_of

log = logging.getLogger(__name__)

LOOK_S = 15.0


async def read_team_key(client: Client, namespace: str = SYSTEM_NAMESPACE, known: str = "") -> str:
    """Return the key in force.

    If the ConfigMap is missing, empty or unreadable, nodes keep their owners and their key. The result is then `known`,
    or else the key that most owned nodes have.
    """
    try:
        listed = await client.list(ConfigMap, namespace, field_selector=f"metadata.name={TEAMS_CONFIG_MAP}")
        config = source_of(listed.items[0] if listed.items else None).config
        if config is not None:
            return config.team_key
        return known or await _written_key(client)
    except ApiError:
        return known or LABEL_TEAM


async def _written_key(client: Client) -> str:
    nodes = (await client.list_all(Node)).items
    records = (read_record(node.metadata.annotations) for node in nodes)
    keys = Counter(record.key for record in records if record is not None and record.team)
    return max(keys, key=lambda key: (keys[key], key)) if keys else LABEL_TEAM


async def until_team_key_changes(client: Client, namespace: str, key: str) -> None:
    """Return when another key is in force. The caller then exits and restarts, so that a process has only one key."""
    while True:
        await asyncio.sleep(LOOK_S)
        now = await read_team_key(client, namespace, key)
        if now != key:
            log.warning(
                "the team key changed from %s to %s; the process exits so that it restarts with the new key", key, now
            )
            return
