"""Examines a cluster's network: DNS through the API server, and what the agents of nodes report."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from muster.api.finding import Unseen
from muster.api.node_health import NodeHealth
from muster.api.reader import Reader
from muster.kube.client import Client
from muster.kube.errors import ApiError, Forbidden, NotFound, Unauthorized
from muster.network.checks.cluster.collect import collect_dns, count_nodes
from muster.network.checks.cluster.examine import (
    NodeSight,
    examine_dns,
    examine_nodes,
    in_order,
    sights_of,
    sights_of_page,
)
from muster.network.checks.page import ChecksPage
from muster.network.checks.report import Report

USER_AGENT: Final = "muster-network-doctor"
ALIVE: Final = timedelta(minutes=15)
"""A NodeHealth that is older is not evidence: its agent writes at least every 5 minutes."""
_NODES: Final = "nodes (conntrack, neighbour tables, MTU, ports, reverse path)"
_DNS: Final = "cluster DNS"
_FIREWALLS: Final = "firewalls"


async def reach(client: Client) -> None:
    """Send one request, because an examination without an API server would only list what it could not see.

    Raises:
        Unauthorized: the credentials are not valid.
        Unavailable, ServerTimeout: the API server does not answer.
    """
    with suppress(Forbidden, NotFound):
        await client.request("GET", "/version")


async def examine_cluster(
    client: Client, planned: int, urls: Sequence[str], pages: Sequence[ChecksPage] = ()
) -> Report:
    """Examine the cluster.

    Args:
        client: the API server.
        planned: planned number of nodes; 0 for today's.
        urls: metrics of the DNS servers; without any, through the API server.
        pages: of the network agents.

    Raises:
        Unauthorized: the credentials are not valid.
    """
    reader = Reader(client)
    nodes = await count_nodes(reader) or 0
    dns = await collect_dns(reader, nodes, planned, urls)
    checked, sights, problems = await _nodes(client, reader)
    now = datetime.now(UTC)
    sights += [sight for page in pages for sight in sights_of_page(page, now)]
    looked = ((_DNS, dns is not None), (_NODES, checked), (_FIREWALLS, any(page.taken_s for page in pages)))
    problems += _not_planned(planned, checked)
    return Report(
        nodes=nodes,
        planned_nodes=planned,
        checked_nodes=checked,
        examined=tuple(what for what, seen in looked if seen),
        findings=in_order([*examine_dns(dns), *examine_nodes(sights)]),
        unseen=tuple(sorted({*reader.unseen, *problems}, key=lambda each: (each.what, each.why))),
        own_cost=reader.cost,
    )


async def _nodes(client: Client, reader: Reader) -> tuple[int, list[NodeSight], list[Unseen]]:
    """Read the records of all nodes, one page in memory at a time."""
    now = datetime.now(UTC)
    checked, sights = 0, list[NodeSight]()
    try:
        async with aclosing(client.pages(NodeHealth)) as pages:
            async for page in pages:
                reader.cost.requests += 1
                for health in page.items:
                    if health.status.time is not None and now - health.status.time <= ALIVE:
                        checked += 1
                        sights += sights_of(health, now)
    except Unauthorized:
        raise
    except Forbidden as error:
        return checked, sights, [Unseen(_NODES, error.message, "list nodehealths.muster.dev")]
    except NotFound:
        why = "the cluster has no NodeHealth objects: install Muster's chart (docs/install.md)"
        return checked, sights, [Unseen(_NODES, why)]
    except ApiError as error:
        return checked, sights, [Unseen(_NODES, error.message)]
    if not checked:
        why = "no node has a recent NodeHealth; enable the agents with health.enabled in Muster's chart"
        return 0, [], [Unseen(_NODES, why)]
    return checked, sights, []


def _not_planned(planned: int, checked: int) -> list[Unseen]:
    """Return what the planned number of nodes does not reach: agents compare tables with their own settings."""
    if not planned:
        return []
    why = (
        "the agents of the nodes compare their tables with their own plan, not with --at: set plannedNodes and "
        "podNetwork of the check `network` in the chart's health.agent.config (docs/network-doctor.md)"
    )
    return [Unseen(f"neighbour tables at {planned} nodes", why if checked else f"no agent reports; {why}")]
