"""Loads holdings once, for commands that do not watch: `muster teams`, `muster capacity`, `muster nodes why`."""

from __future__ import annotations

import asyncio
import contextlib

from muster.api.names import LABEL_TEAM, TEAMS_CONFIG_MAP
from muster.api.placement import Placement
from muster.kube.client import Client
from muster.kube.errors import NotFound
from muster.kube.objects.core import ConfigMap, Namespace
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.teams.cache import Holdings
from muster.teams.node_health import well
from muster.teams.source import Source, source_of


async def load_source(client: Client, namespace: str) -> Source:
    """Read the ConfigMap. Raises ApiError."""
    found: ConfigMap | None = None
    with contextlib.suppress(NotFound):
        found = await client.get(ConfigMap, TEAMS_CONFIG_MAP, namespace)
    return source_of(found)


async def load_holdings(client: Client, source: Source) -> Holdings:
    """List nodes, pods, namespaces and placements. Nodes that are unwell now count as broken. Raises ApiError."""
    nodes, pods, namespaces, placements = await asyncio.gather(
        client.list_all(Node), client.list_all(Pod), client.list_all(Namespace), client.list_all(Placement)
    )
    holdings = Holdings()
    holdings.configure(source.config, source.caution)
    key = source.config.namespace_key if source.config is not None else LABEL_TEAM
    for namespace in namespaces.items:
        holdings.set_namespace(namespace.name, namespace.metadata.labels.get(key, ""))
    for node in nodes.items:
        holdings.set_node(node)
        holdings.set_broken(node.name, not well(node))
    for placement in placements.items:
        holdings.set_placement(placement)
    for pod in pods.items:
        holdings.set_pod(pod)
    return holdings
