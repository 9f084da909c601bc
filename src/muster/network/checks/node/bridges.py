"""Rules about bridge-nf-call-iptables: whether iptables sees frames that a bridge forwards.

If it does, rules see packets between pods of one bridge, and packets that the host routes afterwards count at the
bridge and at the host. If it does not, conntrack misses replies between two pods of one bridge. Then a pod cannot reach
a Service whose endpoint is on its own node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.api.finding import Fix, Measure, Severity
from muster.network.checks.node.evidence import NodeEvidence, Settings
from muster.network.checks.problem import Kind, Problem

CHECK: Final = "bridge-nf"
_SETTING: Final = "bridge-nf-call-iptables"
KINDS: Final = {
    (CHECK, "counts-twice"): Kind(
        Severity.WARNING,
        "A bridge with the node's own link passes frames through iptables, so traffic rules count packets twice",
        Fix(
            "Count at the link instead of in FORWARD: Muster's traffic part does. If no Service is reached through "
            "this bridge, set net.bridge.bridge-nf-call-iptables=0.",
        ),
    ),
    (CHECK, "off"): Kind(
        Severity.WARNING,
        "A bridge of pods does not pass frames through iptables, so Services on the same node may not answer",
        Fix(
            "Load br_netfilter and set net.bridge.bridge-nf-call-iptables=1, if the cluster runs kube-proxy.",
            ("modprobe br_netfilter", "sysctl -w net.bridge.bridge-nf-call-iptables=1"),
        ),
    ),
}


def find(now: NodeEvidence, before: NodeEvidence | None, settings: Settings) -> Iterator[Problem]:
    """Yield the problems, one for each bridge."""
    for bridge in now.links:
        if bridge.kind != "bridge" or not bridge.up:
            continue
        ports = [link for link in now.links if link.master == bridge.number]
        pods = [link for link in ports if link.kind == "veth" and link.peer_elsewhere]
        outer = [link for link in ports if link not in pods]
        measures = (
            Measure(f"ports of {bridge.name}", len(ports), "", "rtnetlink"),
            Measure(_SETTING, now.bridge_nf or 0, "", f"/proc/sys/net/bridge/{_SETTING}"),
        )
        if now.bridge_nf and pods and outer:
            names = ", ".join(link.name for link in outer[:3])
            text = f"{bridge.name} joins {len(pods)} pods with {names}"
            yield Problem(CHECK, "counts-twice", bridge.name, text, measures)
        if not now.bridge_nf and len(pods) > 1:
            yield Problem(CHECK, "off", bridge.name, f"{bridge.name} has {len(pods)} pods", measures)
