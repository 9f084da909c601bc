"""Which nodes are dead, before Kubernetes says so: it takes 50 s to call a node not Ready, and 300 s more for its pods.

Two signs have to agree, and they come by different ways: the node's peers cannot reach it, and its Lease has not been
renewed while we watched it for 20 s: longer than the 10 s in which a kubelet renews, and long enough for all agents to
tell whom else they miss, as each looks every 15 s and writes within 5. One alone is no death: a node that only
the API server cannot reach goes on working, and one that its peers cannot reach may have lost a single network.

Where more nodes than a few are suspects at once it is a switch, or the API server itself, and nobody is touched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

import msgspec

from muster.fleet.health.finding import Finding
from muster.fleet.health.peers import UNREACHED
from muster.fleet.remediation.config import Dead

CHECK = "reach"
"""The check whose findings with code `unreached` name, as component, a node that the finding's node cannot reach."""
CODE = UNREACHED
FRESH_S = 330.0
"""Agents write at least every five minutes: what is older nobody stands by."""


class Silence(msgspec.Struct, frozen=True):
    """What a Lease said, and since when it has said that, by our clock."""

    renewed: str
    since: float


def unreached(findings: Iterable[Finding], now: float) -> frozenset[str]:
    """Return the nodes that somebody with these findings cannot reach now."""
    return frozenset(
        each.component
        for each in findings
        if each.check == CHECK and each.code.partition("/")[0] == CODE and each.last_s > now - FRESH_S
    )


def suspects(reports: Mapping[str, Collection[str]], known: Collection[str], config: Dead) -> tuple[str, ...]:
    """Return nodes that enough peers cannot reach; none where there are too many for it to be their own fault.

    Args:
        reports: by node the ones that it cannot reach.
        known: nodes that are there and not in quarantine already.
        config: how many peers it takes, and how many nodes are too many.
    """
    by: dict[str, set[str]] = defaultdict(set)
    for reporter, names in reports.items():
        for name in names:
            if name != reporter:
                by[name].add(reporter)
    doubted = {name for name, peers in by.items() if len(peers) >= config.peers}
    # Whoever is cut off itself reaches nobody: its word counts for nothing.
    agreed = {name for name in doubted if len(by[name] - doubted) >= config.peers}
    # In a partition many are missed by one peer alone, as those that look from inside cannot tell us.
    missed = {
        name for reporter, names in reports.items() if reporter not in doubted and agreed & {*names} for name in names
    }
    too_many = not config.enabled or len((doubted | missed) & {*known}) > config.nodes
    return () if too_many else tuple(sorted(agreed & {*known}))


def look(before: Mapping[str, Silence], renewed: Mapping[str, str], now: float) -> dict[str, Silence]:
    """Return what is known of Leases after these were read; a Lease that could not be read says nothing."""
    found = {}
    for name, text in renewed.items():
        known = before.get(name)
        found[name] = known if known is not None and known.renewed == text else Silence(text, now)
    return found


def dead(
    names: Iterable[str],
    silences: Mapping[str, Silence],
    reports: Mapping[str, Collection[str]],
    now: float,
    config: Dead,
) -> dict[str, str]:
    """Return the suspects whose Lease has stood still for long enough, and why they count as dead."""
    found = {}
    for name in names:
        silence = silences.get(name)
        if silence is None or now - silence.since < config.silent_s:
            continue
        peers = sorted(reporter for reporter, unreachable in reports.items() if name in unreachable)
        more = f" and {len(peers) - 3} more" if len(peers) > 3 else ""
        found[name] = f"its Lease stands still, and {', '.join(peers[:3])}{more} cannot reach it"
    return found
