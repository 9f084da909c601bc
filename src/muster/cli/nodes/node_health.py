"""Reads nodes' health from the cluster, and the decisions of the policy in force."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import msgspec

from muster.api.names import remediation_name
from muster.cli.errors import CliError, ExitCode
from muster.cli.health.config import ConfigProblem, read_health_config
from muster.fleet.health.decide import Decision
from muster.fleet.health.policy import Policy
from muster.fleet.remediation.evidence.sources import judged
from muster.fleet.remediation.ladder.states import state_of
from muster.kube.objects.meta import KubeObject

if TYPE_CHECKING:
    from muster.api.node_health import NodeHealth
    from muster.api.node_remediation import NodeRemediation
    from muster.api.preflight import Preflight
    from muster.cli.target import Cluster
    from muster.kube.client import Client
    from muster.kube.objects.node import Node

K = TypeVar("K", bound=KubeObject)

SILENT_S = 660.0
"""An agent writes at least every five minutes; it counts as silent after two missing reports."""


class NodeReport(msgspec.Struct, frozen=True, rename="camel"):
    """A node's health.

    Attributes:
        reported: when its agent wrote last; None if it never did, or wrote about another node of this name.
        care: the state of its remediation.
        decision: the policy's decision.
        policy: the policy of the node's pool.
    """

    node: str
    reported: datetime | None
    care: str
    decision: Decision
    policy: Policy

    def silent(self, now: float) -> bool:
        """Returns whether a report of its agent is overdue."""
        return self.reported is None or now - self.reported.timestamp() > SILENT_S


class FleetReport(msgspec.Struct, frozen=True):
    """All nodes by name; `problems` holds the errors of the cluster's configuration."""

    nodes: Sequence[NodeReport]
    problems: tuple[ConfigProblem, ...]


async def read_node(cluster: Cluster, namespace: str, name: str) -> tuple[NodeReport, tuple[ConfigProblem, ...]]:
    """Read a node's health, and the errors of the configuration. Raises CliError if the node does not exist."""
    from muster.api.node_health import NodeHealth
    from muster.api.node_remediation import NodeRemediation
    from muster.api.preflight import Preflight
    from muster.kube.errors import NotFound
    from muster.kube.objects.node import Node

    async with cluster.client() as client:
        try:
            node = await client.get(Node, name)
        except NotFound:
            raise CliError(f"no node '{name}'", "kubectl get nodes lists them", ExitCode.NOT_FOUND) from None
        use, health, test, session = await asyncio.gather(
            read_health_config(client, namespace),
            _found(client, NodeHealth, name),
            _found(client, Preflight, name),
            _found(client, NodeRemediation, remediation_name(name, node.uid)),
        )
    return _report(node, health, test, session, use.policy, time.time()), use.problems


async def read_fleet(cluster: Cluster, namespace: str) -> FleetReport:
    """Read the health of all nodes."""
    from muster.api.node_health import NodeHealth
    from muster.api.node_remediation import NodeRemediation
    from muster.api.preflight import Preflight
    from muster.kube.objects.node import Node

    async with cluster.client() as client:
        use, nodes, healths, tests, sessions = await asyncio.gather(
            read_health_config(client, namespace),
            client.list_all(Node),
            client.list_all(NodeHealth),
            client.list_all(Preflight),
            client.list_all(NodeRemediation),
        )
    now = time.time()
    health = {each.name: each for each in healths.items}
    tested = {each.name: each for each in tests.items}
    session = {each.name: each for each in sessions.items}
    reports = [
        _report(
            node,
            health.get(node.name),
            tested.get(node.name),
            session.get(remediation_name(node.name, node.uid)),
            use.policy,
            now,
        )
        for node in nodes.items
    ]
    return FleetReport(sorted(reports, key=lambda each: each.node), use.problems)


def found_wrong(fleet: FleetReport) -> Iterator[NodeReport]:
    """Yield the nodes that the policy reports, or that remediation works on."""
    for report in fleet.nodes:
        if report.decision.action != "none" or report.care != "None":
            yield report


def _report(
    node: Node,
    health: NodeHealth | None,
    test: Preflight | None,
    session: NodeRemediation | None,
    policy: Policy,
    now: float,
) -> NodeReport:
    boot_id = node.status.node_info.boot_id if node.status.node_info is not None else ""
    own = health is not None and health.status.node_uid == node.uid
    return NodeReport(
        node=node.name,
        reported=health.status.time if health is not None and own else None,
        care=state_of(session).value,
        decision=judged(node.uid, boot_id, node.metadata.labels, health, test, session, policy, now).decision,
        policy=policy.of_node(node.metadata.labels),
    )


async def _found(client: Client, kind: type[K], name: str) -> K | None:
    from muster.kube.errors import NotFound

    try:
        return await client.get(kind, name)
    except NotFound:
        return None
