"""Which nodes are dead, before Kubernetes says so: it takes 50 s to call a node not Ready, and 300 s more for its pods.

Two signs have to agree, and they come by different ways: the node's peers cannot reach it, and its Lease has not been
renewed while we watched it for 20 s: longer than the 10 s in which a kubelet renews, and long enough for all agents to
tell whom else they miss, as each looks every 15 s and writes within 5. One alone is no death: a node that only
the API server cannot reach goes on working, and one that its peers cannot reach may have lost a single network.

A report counts only if its peer failed to reach the node after the node renewed its Lease last. Reports that are older
are about an outage that is over. Agents confirm a report about every minute (`agent/checks/reach.py`), so a node that
lost its network long before it died is found dead that much later at most.

Where more nodes than a few are suspects at once it is a switch, or the API server itself, and nobody is touched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

import msgspec

from muster.fleet.health.finding import Finding
from muster.fleet.health.peers import UNREACHED
from muster.fleet.remediation.config import Dead
from muster.fleet.remediation.snapshot import NONE

CHECK = "reach"
"""The check whose findings with code `unreached` name, as component, a node that the finding's node cannot reach."""
CODE = UNREACHED
FRESH_S = 180.0
"""Reports count for so long: agents confirm a report that still holds within 80 s, and one confirmation may be lost."""

Reports = Mapping[str, Mapping[str, float]]
"""By the node that reports: the nodes that it cannot reach, and when it last tried, in seconds since the epoch."""


class Silence(msgspec.Struct, frozen=True):
    """When a Lease says that it was renewed, and since when it has said that, by our clock; in seconds."""

    renewed_s: float
    since: float

    @property
    def alive_s(self) -> float:
        """When the node was certainly alive last. A kubelet whose clock is fast does not move that past our own."""
        return min(self.renewed_s, self.since)


class Death(msgspec.Struct, frozen=True):
    """Why a node counts as dead, and when its Lease was renewed last, in seconds since the epoch."""

    why: str
    renewed_s: float


def unreached(findings: Iterable[Finding], now: float) -> dict[str, float]:
    """Return the nodes that a node with these findings cannot reach now, and when it tried last."""
    found: dict[str, float] = {}
    for each in findings:
        if each.check == CHECK and each.code.partition("/")[0] == CODE and each.last_s > now - FRESH_S:
            found[each.component] = max(each.last_s, found.get(each.component, each.last_s))
    return found


def suspects(reports: Reports, known: Collection[str], config: Dead) -> tuple[str, ...]:
    """Return nodes that enough peers cannot reach; none where there are too many for it to be their own fault.

    Args:
        reports: by node the ones that it cannot reach.
        known: nodes that are there and not in quarantine already.
        config: how many peers it takes, and how many nodes are too many.
    """
    doubted, agreed = _doubted(reports, config)
    # In a partition many are missed by one peer alone, as those that look from inside cannot tell us.
    missed = {
        name for reporter, names in reports.items() if reporter not in doubted and agreed & {*names} for name in names
    }
    too_many = not config.enabled or len((doubted | missed) & {*known}) > config.nodes
    return () if too_many else tuple(sorted(agreed & {*known}))


def _doubted(reports: Reports, config: Dead) -> tuple[set[str], set[str]]:
    """Return the nodes that enough peers cannot reach, and those of them for which enough reachable peers say so."""
    by: dict[str, set[str]] = defaultdict(set)
    for reporter, names in reports.items():
        for name in names:
            if name != reporter:
                by[name].add(reporter)
    doubted = {name for name, peers in by.items() if len(peers) >= config.peers}
    # A node that is cut off itself reaches no other: its reports do not count.
    return doubted, {name for name in doubted if len(by[name] - doubted) >= config.peers}


def look(before: Mapping[str, Silence], renewed: Mapping[str, float], now: float) -> dict[str, Silence]:
    """Return what is known of Leases after these were read; a Lease that could not be read says nothing."""
    found = {}
    for name, renewed_s in renewed.items():
        known = before.get(name)
        found[name] = known if known is not None and known.renewed_s == renewed_s else Silence(renewed_s, now)
    return found


def standing(reports: Reports, silences: Mapping[str, Silence]) -> dict[str, dict[str, float]]:
    """Return the reports less those that are older than the last sign of life of the node that they name."""
    return {
        reporter: {
            name: last_s
            for name, last_s in names.items()
            if (silence := silences.get(name)) is None or last_s > silence.alive_s
        }
        for reporter, names in reports.items()
    }


def dead(
    names: Iterable[str],
    silences: Mapping[str, Silence],
    reports: Reports,
    now: float,
    config: Dead,
    before: Mapping[str, Death] = NONE,
) -> dict[str, Death]:
    """Return which of these nodes are dead.

    Args:
        names: suspects, and nodes that were found dead before.
        silences: what their Leases said.
        reports: by node the ones that it cannot reach.
        now: seconds since the epoch.
        config: how long a Lease has to stand still, and how many peers it takes.
        before: nodes found dead before, also by another leader. They stay dead until their Lease is renewed.
    """
    counted = standing(reports, silences)
    _, agreed = _doubted(counted, config)
    found = {}
    for name in names:
        silence, known = silences.get(name), before.get(name)
        if known is not None and (silence is None or silence.renewed_s == known.renewed_s):
            found[name] = known
        elif silence is not None and now - silence.since >= config.silent_s and name in agreed:
            peers = sorted(reporter for reporter, unreachable in counted.items() if name in unreachable)
            more = f" and {len(peers) - 3} more" if len(peers) > 3 else ""
            why = f"its Lease stands still, and {', '.join(peers[:3])}{more} cannot reach it"
            found[name] = Death(why, silence.renewed_s)
    return found
