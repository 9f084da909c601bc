"""Rules about the servers of cluster DNS: where they run, and how many there are.

Add-on manifests left the servers on one node for years (kubernetes/kubernetes#57683): then one node that fails takes
the names of the whole cluster with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from muster.api.finding import Culprit, Finding, Fix, Measure, Severity
from muster.network.checks.cluster.evidence import DnsEvidence
from muster.network.checks.cluster.spreading import patch_command, spread_patch

NODES_PER_SERVER: Final = 64
"""A server for each so many nodes. The DNS autoscaler's example has one for 16 nodes."""
NODES_PER_CACHED_SERVER: Final = 256
"""The same with a DNS cache on each node, which answers most requests."""
_SOURCE: Final = "pods with k8s-app=kube-dns"
_MANAGED: Final = (
    "If an add-on manager of the cloud owns the Deployment, put the same fields into the add-on's configuration, "
    "because it reverts the patch."
)


def find(evidence: DnsEvidence) -> Iterator[Finding]:
    """Yield the findings."""
    servers = evidence.servers
    if not servers:
        yield _no_servers(evidence)
        return
    nodes = {server.node for server in servers}
    if len(servers) > 1 and len(nodes) == 1 and evidence.nodes > 1:
        yield _finding(
            evidence, "dns-one-node", Severity.ERROR,
            f"All {len(servers)} servers of cluster DNS run on node {servers[0].node}.",
            Measure("nodes with a server", 1, "", _SOURCE),
        )  # fmt: skip
    else:
        yield from _domains(evidence)
    yield from _number(evidence)


def _no_servers(evidence: DnsEvidence) -> Finding:
    what = f"none of its {evidence.pods} pods is ready on a ready node" if evidence.pods else "it has no pods"
    needed = servers_needed(max(evidence.nodes, evidence.planned_nodes), node_cache=evidence.node_cache)
    pods = "-n kube-system -l k8s-app=kube-dns"
    return Finding(
        id="dns-no-servers",
        severity=Severity.ERROR,
        title=f"Cluster DNS has no ready server: {what}.",
        who=(Culprit("Service", f"kube-system/{evidence.service}") if evidence.service else _culprit(evidence),),
        evidence=(
            Measure("ready servers", 0, "", f"{_SOURCE}, condition Ready of pods and nodes"),
            Measure("pods", evidence.pods, "", _SOURCE),
        ),
        fix=Fix(
            "No name of the cluster resolves until a pod of DNS is ready. Find the cause: no replicas, no node that "
            "takes them, an image that cannot be pulled, or a Corefile with an error.",
            (f"kubectl describe pods {pods}", f"kubectl logs {pods} --prefix --tail=20")
            if evidence.pods
            else (
                f"kubectl get deployments,replicasets {pods}",
                f"kubectl scale deployment {evidence.deployment} -n kube-system --replicas={needed}",
            ),
        ),
    )


def servers_needed(nodes: int, *, node_cache: bool) -> int:
    """Return the servers that so many nodes need at least: two, so that one may fail."""
    return max(2, math.ceil(nodes / (NODES_PER_CACHED_SERVER if node_cache else NODES_PER_SERVER)))


def _domains(evidence: DnsEvidence) -> Iterator[Finding]:
    """Yield a finding for the smallest kind of domain that all servers share."""
    for kind, values, others in (
        ("rack", {server.rack for server in evidence.servers}, evidence.other_rack),
        ("zone", {server.zone for server in evidence.servers}, evidence.other_zone),
    ):
        if len(values) == 1 and "" not in values and others:
            (value,) = values
            yield _finding(
                evidence, f"dns-one-{kind}", Severity.WARNING,
                f"All servers of cluster DNS run in {kind} {value}, and other {kind}s have nodes.",
                Measure(f"{kind}s with a server", 1, "", f"labels of the nodes of {_SOURCE}"),
            )  # fmt: skip
            return


def _number(evidence: DnsEvidence) -> Iterator[Finding]:
    size = max(evidence.nodes, evidence.planned_nodes)
    needed = servers_needed(size, node_cache=evidence.node_cache)
    have = len(evidence.servers)
    if have >= needed or size < 2:
        return
    yield Finding(
        id="dns-too-few",
        severity=Severity.ERROR if have == 1 else Severity.WARNING,
        title=f"Cluster DNS has {have} ready server{'s' if have != 1 else ''}; {size} nodes need at least {needed}.",
        who=(_culprit(evidence),),
        evidence=(
            Measure("ready servers", have, "", _SOURCE),
            Measure("nodes", evidence.nodes, "", "nodes"),
        ),
        fix=Fix(
            "Add replicas, or let an autoscaler do it (cluster-proportional-autoscaler). A DNS cache on each node "
            "(NodeLocal DNSCache) takes most of the load off them.",
            (f"kubectl scale deployment {evidence.deployment} -n kube-system --replicas={needed}",),
        ),
    )


def _finding(evidence: DnsEvidence, id_: str, severity: Severity, title: str, measure: Measure) -> Finding:
    patch = spread_patch(
        evidence.labels,
        len(evidence.servers),
        evidence.nodes,
        racks=any(server.rack for server in evidence.servers),
        zones=any(server.zone for server in evidence.servers),
    )
    fix = Fix(
        f"Spread the pods with anti-affinity. The patch starts them again, a few at a time. {_MANAGED}",
        (patch_command(evidence.deployment, patch),),
    )
    return Finding(
        id=id_, severity=severity, title=title, who=(_culprit(evidence),), evidence=(measure,), fix=fix
    )  # fmt: skip


def _culprit(evidence: DnsEvidence) -> Culprit:
    return Culprit("Deployment", f"kube-system/{evidence.deployment}")
