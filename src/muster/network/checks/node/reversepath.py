"""Rules about the reverse path filter (RFC 3704; Documentation/networking/ip-sysctl.rst, rp_filter).

In strict mode, the kernel drops packets that came by another link than their replies would take.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.api.finding import Fix, Measure, Severity
from muster.kube.counters import rise
from muster.network.checks.node.evidence import NodeEvidence, Settings
from muster.network.checks.problem import Kind, Problem

CHECK: Final = "rp-filter"
_STRICT: Final = 1
_MAIN: Final = 254
_COUNTER: Final = "IPReversePathFilter"
_LOOSEN: Final = Fix(
    "Set net.ipv4.conf.LINK.rp_filter=2 (loose) for these links, and net.ipv4.conf.all.rp_filter to 0 or 2: of the "
    "two the larger value holds. Check /etc/sysctl.d and systemd's 50-default.conf, which set it again at a reboot.",
    ("sysctl -w net.ipv4.conf.all.rp_filter=2",),
)
KINDS: Final = {
    (CHECK, "dropped"): Kind(Severity.WARNING, "The reverse path filter dropped packets", _LOOSEN),
    (CHECK, "strict"): Kind(
        Severity.WARNING, "The reverse path filter is strict where packets may come by another link", _LOOSEN
    ),
}


def find(now: NodeEvidence, before: NodeEvidence | None, settings: Settings) -> Iterator[Problem]:
    """Yield the problems. Strict mode is a problem only with policy rules or with several ways out."""
    times = rise(before.counters.get(_COUNTER) if before is not None else None, now.counters.get(_COUNTER))
    if times:
        measure = Measure("dropped packets", times, "", f"/proc/net/netstat: {_COUNTER}")
        yield Problem(CHECK, "dropped", "", f"{times} packets were dropped since the last look", (measure,), times)
    reason = _asymmetry(now)
    strict = _strict_links(now)
    if reason and strict:
        shown = ", ".join(strict[:5]) + (f" and {len(strict) - 5} more" if len(strict) > 5 else "")
        measure = Measure("links with strict mode", len(strict), "", "rp_filter")
        yield Problem(CHECK, "strict", "", f"{shown}, with {reason}", (measure,))


def _strict_links(now: NodeEvidence) -> list[str]:
    everywhere = now.reverse_path.get("all", 0)
    return [
        link.name
        for link in now.links
        if link.up and link.name != "lo" and max(everywhere, now.reverse_path.get(link.name, 0)) == _STRICT
    ]


def _asymmetry(now: NodeEvidence) -> str:
    """Return why packets may come by another link than replies take; "" if nothing says so."""
    if now.rules:
        return f"{now.rules} policy rules"
    ways: dict[str, set[int]] = {}
    for route in now.routes:
        if route.table == _MAIN and ":" not in route.destination:
            ways.setdefault(route.destination, set()).update(route.links)
    several = sorted(destination for destination, links in ways.items() if len(links) > 1)
    return f"several links to {several[0]}" if several else ""
