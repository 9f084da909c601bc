"""Cluster DNS that stops together with the control plane, or hides that it stopped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.api.finding import Culprit, Finding, Fix, Growth, Measure, Severity, cost
from muster.doctor.evidence import Evidence
from muster.doctor.parts.dns import Dns
from muster.doctor.rule import Rule

HIDDEN_S: Final = 300.0
"""A change that breaks the control plane is then rolled out everywhere before programs notice. In the outage of
December 2024, caches hid it for 20 minutes."""
_DEPLOYMENT: Final = Culprit("Deployment", "kube-system/coredns")


def _find(evidence: Evidence) -> Iterator[Finding]:
    dns = evidence.part(Dns)
    if dns is None:
        return
    if dns.control_plane_nodes and evidence.scale.nodes > len(dns.control_plane_nodes):
        here = [node for node in dns.nodes if node in dns.control_plane_nodes]
        if dns.nodes and len(here) == len(dns.nodes):
            yield _finding(
                evidence,
                "dns-on-control-plane",
                "All pods of cluster DNS run on nodes of the control plane, and stop together with it.",
                Measure("pods of DNS on the control plane", len(here), "", "pods with k8s-app=kube-dns"),
                "Remove its nodeSelector and its toleration for the control plane, so that it runs on other nodes.",
                "kubectl edit deployment coredns -n kube-system",
            )
    if len(dns.nodes) == 1 and evidence.scale.nodes > 1:
        yield _finding(
            evidence,
            "dns-single",
            f"Cluster DNS has a single running pod, on node {dns.nodes[0]}.",
            Measure("running pods of DNS", 1, "", "pods with k8s-app=kube-dns"),
            "Run at least two, on different nodes.",
            "kubectl scale deployment coredns -n kube-system --replicas=2",
        )
    if dns.stale_s >= HIDDEN_S:
        yield _finding(
            evidence,
            "dns-hides-outage",
            f"Cluster DNS serves stale answers for {dns.stale_s / 60:.0f} min, so an outage stays hidden that long.",
            Measure("time of stale answers", dns.stale_s, "s", "ConfigMap kube-system/coredns, serve_stale"),
            "Shorten serve_stale in the Corefile to at most a minute, and let roll-outs wait longer than it.",
            "kubectl edit configmap coredns -n kube-system",
        )


def _finding(evidence: Evidence, id_: str, title: str, measure: Measure, summary: str, command: str) -> Finding:
    return Finding(
        id=id_,
        severity=Severity.WARNING,
        title=title,
        who=(_DEPLOYMENT,),
        evidence=(measure,),
        costs=(cost("nodes whose names depend on it", "nodes", evidence.scale.nodes, Growth.PER_NODE, evidence.scale),),
        fix=Fix(summary, (command,)),
    )


RULE: Final = Rule("dns", frozenset(), _find)
