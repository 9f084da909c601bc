"""Finds dead nodes earlier than Kubernetes, which marks a node not Ready after 50 s and evicts its pods 300 s later.

Two independent signs must agree: the node's peers cannot reach it, and its Lease was not renewed while we watched it
for 20 s. That is longer than the 10 s in which a kubelet renews. It also gives all agents the time to report the nodes
that they cannot reach: each probes every 15 s and writes within 5 s. One sign alone is not enough. If only the API
server cannot reach a node, the node still works. If only its peers cannot reach it, it may have lost a single network.

A report counts only if the peer failed to reach the node after the node's last Lease renewal. Older reports are about
an outage that has ended. Agents confirm a report about every minute (`agent/checks/reach.py`). So a node that lost its
network long before it died is found dead at most that much later.

If more than a few nodes are suspects at once, the cause is a switch or the API server, and no node is touched.

The peers outside a large partition may probe only a few of the nodes inside it. So the Leases of some other nodes are
read too: if more than a few Leases stopped together, no node is dead either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

import msgspec

from muster.api.words import few
from muster.fleet.health.finding import Finding
from muster.fleet.health.peers import UNREACHED
from muster.fleet.remediation.config import Dead
from muster.fleet.remediation.snapshot import NONE

CHECK = "reach"
"""The check whose findings with code `unreached` name, as component, a node that the finding's node cannot reach."""
CODE = UNREACHED
FRESH_S = 180.0
"""How long a report counts: agents confirm a valid report within 80 s, and one confirmation may be lost."""
WITNESSES = 16
"""How many Leases of other nodes are read beside those of suspects."""
TOGETHER_S = 60.0
"""Leases whose last renewals lie at most this far apart stopped together."""

Reports = Mapping[str, Mapping[str, float]]
"""By reporting node: the nodes that it cannot reach, and when it last tried, in seconds since the epoch."""


class Silence(msgspec.Struct, frozen=True):
    """A Lease's renew time, and since when we have seen this value on our clock; both in seconds.

    Attributes:
        stood_s: how long we have seen that the Lease was not renewed.
        paused_s: when the node was last certainly alive before this renewal; 0 if we did not see an earlier renewal.
        paused_for_s: how long, before this renewal, we had seen that the Lease was not renewed.
    """

    renewed_s: float
    since: float
    stood_s: float = 0.0
    paused_s: float = 0.0
    paused_for_s: float = 0.0

    @property
    def alive_s(self) -> float:
        """The latest time at which the node was certainly alive.

        If the kubelet's clock is fast, this is the time at which we saw the renewal.
        """
        return min(self.renewed_s, self.since)


class Death(msgspec.Struct, frozen=True):
    """Why a node counts as dead, and when its Lease was last renewed, in seconds since the epoch."""

    why: str
    renewed_s: float


def unreached(findings: Iterable[Finding], now: float) -> dict[str, float]:
    """Return the nodes that a node with these findings cannot reach now, and when it last tried."""
    found: dict[str, float] = {}
    for each in findings:
        if each.check == CHECK and each.code.partition("/")[0] == CODE and each.last_s > now - FRESH_S:
            found[each.component] = max(each.last_s, found.get(each.component, each.last_s))
    return found


def suspects(reports: Reports, known: Collection[str], config: Dead) -> tuple[str, ...]:
    """Return the nodes that enough peers cannot reach; empty if there are too many for separate faults.

    Args:
        reports: by node, the nodes that it cannot reach.
        known: nodes that exist and are not in quarantine already.
        config: how many peers must agree, and how many nodes are too many.
    """
    doubted, agreed = _doubted(reports, config)
    # In a partition, many nodes are reported by only one peer, because peers inside it cannot send reports.
    missed = {
        name for reporter, names in reports.items() if reporter not in doubted and agreed & {*names} for name in names
    }
    too_many = not config.enabled or len((doubted | missed) & {*known}) > config.nodes
    return () if too_many else tuple(sorted(agreed & {*known}))


def _doubted(reports: Reports, config: Dead) -> tuple[set[str], set[str]]:
    """Return the nodes that enough peers cannot reach, and those for which enough reachable peers agree."""
    by: dict[str, set[str]] = defaultdict(set)
    for reporter, names in reports.items():
        for name in names:
            if name != reporter:
                by[name].add(reporter)
    doubted = {name for name, peers in by.items() if len(peers) >= config.peers}
    # A node that is cut off cannot reach any other: its reports do not count.
    return doubted, {name for name in doubted if len(by[name] - doubted) >= config.peers}


def look(before: Mapping[str, Silence], renewed: Mapping[str, float], now: float) -> dict[str, Silence]:
    """Update the known Lease renewals with those just read. A Lease that could not be read is left out."""
    found = {}
    for name, renewed_s in renewed.items():
        known = before.get(name)
        if known is not None and known.renewed_s == renewed_s:
            found[name] = msgspec.structs.replace(known, stood_s=now - known.since)
        elif known is not None:
            found[name] = Silence(renewed_s, now, paused_s=known.alive_s, paused_for_s=known.stood_s)
        else:
            found[name] = Silence(renewed_s, now)
    return found


def witnesses(suspected: Collection[str], known: Collection[str]) -> tuple[str, ...]:
    """Return nodes beside the suspects, spread evenly over the sorted names: neighbours often share a rack.

    They stay the same while suspects come and go, because a Lease must be watched for a while.
    """
    every = sorted(known)[:: -(-len(known) // WITNESSES) or 1]
    return tuple(name for name in every if name not in suspected)


def standing(reports: Reports, silences: Mapping[str, Silence]) -> dict[str, dict[str, float]]:
    """Return the reports that are newer than the last sign of life of the node that they name."""
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
    """Return which of these nodes are dead, and why.

    Args:
        names: suspects, and nodes that were found dead before.
        silences: the known renewals of their Leases, and of those of `witnesses`.
        reports: by node, the nodes that it cannot reach.
        now: seconds since the epoch.
        config: how long a Lease must stay unrenewed, how many peers must agree, and how many nodes are too many.
        before: nodes found dead before, also by another leader. They stay dead until their Lease is renewed.
    """
    counted = standing(reports, silences)
    _, agreed = _doubted(counted, config)
    # When a partition ends, its nodes renew their Leases one after the other. The last of them must not look like a
    # single dead node. So Leases that were not renewed for a while before a recent renewal also count.
    stopped = [each.alive_s for each in silences.values() if now - each.since >= config.silent_s]
    stopped += [each.paused_s for each in silences.values() if each.paused_for_s >= config.silent_s]
    found = {}
    for name in names:
        silence, known = silences.get(name), before.get(name)
        if known is not None and (silence is None or silence.renewed_s == known.renewed_s):
            found[name] = known
        elif silence is not None and now - silence.since >= config.silent_s and name in agreed:
            if sum(abs(each - silence.alive_s) <= TOGETHER_S for each in stopped) > config.nodes:
                continue
            peers = few(reporter for reporter, unreachable in counted.items() if name in unreachable)
            why = f"its Lease is not renewed, and {peers} cannot reach it"
            found[name] = Death(why, silence.renewed_s)
    return found
