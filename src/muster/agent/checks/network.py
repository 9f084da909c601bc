"""The check `network`: tables of connections and neighbours, MTU, ports, filters, and probes of paths and of DNS.

The rules and their fixes are in `muster.network.checks.node`. `muster network doctor` shows them with their fix.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from muster.agent.aside import Aside
from muster.agent.check import Cost, Setup
from muster.agent.checks.reach import Peers
from muster.agent.checks.sights import Findings, Seen, Sight
from muster.fleet.health.finding import Finding
from muster.kube.counters import rise
from muster.network.checks.node.dnsprobe import lost_answers
from muster.network.checks.node.evidence import NodeEvidence, Settings
from muster.network.checks.node.examine import KINDS, examine
from muster.network.checks.node.pathprobe import PathAnswer, probe
from muster.network.checks.node.probed import DnsProbes, find_lost, find_paths
from muster.network.checks.node.read import NodePaths, read_node
from muster.network.checks.problem import Problem
from muster.network.plan.needs import CONNECTIONS_PER_POD
from muster.network.plan.request import PodNetwork

NAME: Final = "network"
PERIOD_S: Final = 60.0
TIMEOUT_S: Final = 30.0
CODES: Final = frozenset(KINDS)
_ANSWER_S: Final = 4.0
_LOOKS: Final = 2
_DNS_PORT: Final = 53

Percent = Annotated[float, msgspec.Meta(gt=0, le=100)]
Number = Annotated[int, msgspec.Meta(ge=0)]


class Options(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Settings of the check.

    Attributes:
        planned_nodes: nodes that the network is planned for; 0 takes the number of `members_file`.
        planned_neighbours, pods, pod_network, connections_per_pod, near_percent, cloud_ports: as in `Settings`.
        members_file: nodes to which paths are probed, as for the check `reach`; "" probes none.
        port: of their agents.
        dns_server: address of cluster DNS, which is asked once a period; "" asks none.
        dns_name: asked for its addresses.
    """

    planned_nodes: Number = 0
    planned_neighbours: Number = 0
    pods: Number = 110
    pod_network: PodNetwork = "overlay"
    connections_per_pod: Number = CONNECTIONS_PER_POD
    near_percent: Percent = 80.0
    cloud_ports: Number = 0
    members_file: str = ""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 9446
    dns_server: str = ""
    dns_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = _DNS_PORT
    dns_name: str = "kubernetes.default.svc.cluster.local"


class NetworkCheck:
    """Checks a node's network."""

    name = NAME
    cost: Cost = "moderate"

    def __init__(self, setup: Setup, options: Options) -> None:
        self.period_s = setup.period_s or PERIOD_S
        self.timeout_s = setup.timeout_s or TIMEOUT_S
        self._options = options
        self._paths = NodePaths.below(setup.host.proc)
        self._peers = Peers(setup.node, Path(options.members_file)) if options.members_file else None
        self._before: NodeEvidence | None = None
        self._findings = Findings(NAME, self.period_s)
        self._aside = Aside(NAME)

    async def look(self, now_s: float) -> Sequence[Finding]:
        """Read everything once, and probe peers and DNS at the same time."""
        now = await self._aside.run(read_node, self._paths)
        if self._peers is not None:
            await self._aside.run(self._peers.now)
        answers, dns = await asyncio.gather(self._probe_peers(), self._probe_dns())
        problems = [*examine(now, self._before, self._settings()), *find_paths(now, answers)]
        if dns is not None:
            problems += find_lost(dns, _insert_failed(now, self._before))
        self._before = now
        return self._findings.take(_seen(problems), now_s)

    def _settings(self) -> Settings:
        options = self._options
        return Settings(
            planned_nodes=options.planned_nodes or (self._peers.members if self._peers is not None else 0),
            planned_neighbours=options.planned_neighbours,
            pods=options.pods,
            pod_network=options.pod_network,
            connections_per_pod=options.connections_per_pod,
            near_percent=options.near_percent,
            cloud_ports=options.cloud_ports,
        )

    async def _probe_peers(self) -> Mapping[str, PathAnswer]:
        peers = self._peers.last if self._peers is not None else ()
        answers = await asyncio.gather(*(probe(peer.address, self._options.port, _ANSWER_S) for peer in peers))
        return {f"{peer.name} ({peer.address})": answer for peer, answer in zip(peers, answers, strict=True)}

    async def _probe_dns(self) -> DnsProbes | None:
        options = self._options
        if not options.dns_server:
            return None
        try:
            lost = await lost_answers(options.dns_server, options.dns_port, options.dns_name, _ANSWER_S)
        except OSError:
            lost = 2
        return DnsProbes(options.dns_server, 2, lost)


def _insert_failed(now: NodeEvidence, before: NodeEvidence | None) -> int:
    if now.conntrack is None or before is None or before.conntrack is None:
        return 0
    name = "insert_failed"
    return rise(before.conntrack.counters.get(name), now.conntrack.counters.get(name), 32)


def _seen(problems: Sequence[Problem]) -> Seen:
    return Seen(
        states=tuple(
            Sight(each.check, each.component, each.code, each.message, looks=_LOOKS)
            for each in problems if not each.times
        ),
        events=tuple(
            Sight(each.check, each.component, each.code, each.message, times=each.times)
            for each in problems if each.times
        ),
    )  # fmt: skip


def make(setup: Setup) -> NetworkCheck:
    """Create the check.

    Raises:
        ValueError: a setting is wrong.
    """
    return NetworkCheck(setup, setup.options_as(Options))
