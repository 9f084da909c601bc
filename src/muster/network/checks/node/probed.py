"""Rules about probes: paths to other nodes, and answers of cluster DNS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from muster.api.finding import Fix, Measure, Severity
from muster.network.checks.node.evidence import NodeEvidence
from muster.network.checks.node.mtu import way_out
from muster.network.checks.node.pathprobe import PathAnswer
from muster.network.checks.problem import Kind, Problem

MTU: Final = "mtu"
DNS: Final = "dns"
_SHOWN: Final = 5
KINDS: Final = {
    (MTU, "black-hole"): Kind(
        Severity.ERROR,
        "Full-size packets to other nodes are lost without an ICMP message",
        Fix(
            "Something on the way has a smaller MTU and drops ICMP 'fragmentation needed'. Let it pass in firewalls "
            "and security groups, or lower the MTU of the nodes' links to the path's.",
            ("tracepath -n ADDRESS",),
        ),
    ),
    (MTU, "peers"): Kind(
        Severity.WARNING,
        "The path to other nodes has a smaller MTU than the node's link",
        Fix(
            "Raise the MTU of what is on the way, or lower the MTU of the nodes' links to the path's, on all nodes.",
            ("tracepath -n ADDRESS",),
        ),
    ),
    (DNS, "lost"): Kind(
        Severity.WARNING,
        "Answers of cluster DNS are lost, and each costs a program 5 s",
        Fix(
            "Run a DNS cache on each node (NodeLocal DNSCache). Add replicas of CoreDNS, spread over nodes. If "
            "conntrack-insert-failed is reported too, set `options single-request-reopen` in the pods' dnsConfig. "
            "On AWS, the resolver of the VPC takes 1024 packets/s from each network interface.",
        ),
    ),
}


class DnsProbes(msgspec.Struct, frozen=True):
    """Probes of cluster DNS since the last look: requests, and answers that did not arrive."""

    server: str
    asked: int
    lost: int


def find_paths(now: NodeEvidence, answers: Mapping[str, PathAnswer]) -> Iterator[Problem]:
    """Yield the problems of paths.

    Args:
        now: what was read on the node.
        answers: by the peer's name and address as text for people.
    """
    holes = sorted(peer for peer, each in answers.items() if each.connected and not each.delivered)
    if holes:
        measure = Measure("nodes that full-size packets do not reach", len(holes), "", f"{len(answers)} probes")
        yield Problem(MTU, "black-hole", "", f"{len(holes)} of {len(answers)} probed: {_some(holes)}", (measure,))
    out = way_out(now)
    small = [peer for peer, each in answers.items() if each.delivered and out is not None and each.mtu < out.mtu]
    if small and out is not None:
        least = min(answers[peer].mtu for peer in small)
        measures = (
            Measure("smallest MTU of a path", least, "bytes", "probes"),
            Measure(f"MTU of {out.name}", out.mtu, "bytes", "rtnetlink"),
        )
        text = f"{len(small)} of {len(answers)} probed have down to {least}, {out.name} has {out.mtu}: "
        yield Problem(MTU, "peers", "", text + _some(sorted(small)), measures)


def find_lost(probes: DnsProbes, insert_failed: int) -> Iterator[Problem]:
    """Yield the problem of lost answers of DNS, with how much conntrack's insert_failed rose."""
    if probes.lost:
        measures = (
            Measure("answers lost", probes.lost, "", f"{probes.asked} requests to {probes.server}"),
            Measure("failed inserts", insert_failed, "", "/proc/net/stat/nf_conntrack: insert_failed"),
        )
        text = f"{probes.lost} of {probes.asked} requests to {probes.server}; insert_failed rose by {insert_failed}"
        yield Problem(DNS, "lost", probes.server, text, measures, probes.lost)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
