"""Clients that watch Endpoints instead of EndpointSlices.

Each change sends the whole Endpoints object to each watcher, so a change costs nodes squared (KEP-752). An Endpoints
object has at most 1,000 addresses (Kubernetes docs: "Services", Over-capacity endpoints), a slice 100 by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.api.finding import Cost, Culprit, Finding, Fix, Growth, Measure, Severity
from muster.doctor.evidence import Evidence
from muster.doctor.parts.watchers import LONGRUNNING, OWN_WATCHES, EndpointsUse, watches_of
from muster.doctor.parts.workloads import DaemonSets
from muster.doctor.rule import Rule
from muster.doctor.rules.logged import logged

SIZES: Final = "apiserver_watch_events_sizes"
ADDRESSES_MOST: Final = 1000
ADDRESS_BYTES: Final = 300
"""An address with the reference to its pod, in JSON, if no Endpoints object could be measured."""
SLICE_BYTES: Final = 100 * 340
"""A full EndpointSlice, in JSON, if none could be measured."""
_PLANNED_BYTES: Final = 64 * 2**20
"""Bytes of one change, summed over all watchers, that are an error."""
_SHOWN: Final = 5


def _find(evidence: Evidence) -> Iterator[Finding]:
    watches = watches_of(server.after for server in evidence.servers)
    if watches <= OWN_WATCHES * max(len(evidence.servers), 1):
        return
    use = evidence.part(EndpointsUse) or EndpointsUse(frozenset())
    scale = evidence.scale
    who = _who(evidence, use, watches)
    per_node = any(culprit.kind == "DaemonSet" for culprit in who) or watches >= max(scale.nodes, 5)
    factor = scale.factor
    planned_watches = watches * factor if per_node else watches
    address = use.largest_bytes / use.largest_addresses if use.largest_addresses else ADDRESS_BYTES
    today_bytes = float(use.largest_bytes or ADDRESS_BYTES)
    addresses = min(max(use.largest_addresses, 1) * factor, ADDRESSES_MOST)
    planned_bytes = max(addresses * address, today_bytes)
    slices = min(float(use.slice_bytes or SLICE_BYTES) * factor, SLICE_BYTES)
    law = Growth.PER_NODE_SQUARED if per_node else Growth.PER_NODE
    sent = sum(rate for labels, rate in evidence.rates(f"{SIZES}_sum") if labels.get("resource") == "endpoints")
    measures = [
        Measure("open watches of Endpoints", watches, "", LONGRUNNING),
        Measure("largest Endpoints object of a sample", today_bytes, "bytes", "list of endpoints, limit 20"),
        Measure("sent to watchers of Endpoints", sent, "bytes/s", SIZES),
    ]
    named = f"{who[0].kind} {who[0].name} watches" if len(who) == 1 else "Clients watch"
    yield Finding(
        id="endpoints-watched",
        severity=Severity.ERROR if planned_bytes * planned_watches >= _PLANNED_BYTES else Severity.WARNING,
        title=f"{named} Endpoints instead of EndpointSlices: {watches:.0f} watches are open.",
        who=who,
        evidence=tuple(measures),
        costs=(
            Cost(
                "one change of a Service's pods", "bytes", today_bytes * watches, planned_bytes * planned_watches, law
            ),
            Cost(
                "the same change with EndpointSlices",
                "bytes",
                min(float(use.slice_bytes or SLICE_BYTES), today_bytes) * watches,
                min(slices, planned_bytes) * planned_watches,
                Growth.PER_NODE,
            ),
        ),
        fix=Fix(
            "Update the client to a version that watches EndpointSlices, or change its setting. Then take the right "
            "to watch Endpoints from its role, so that an older version cannot return."
            + ("" if who else " Who it is was not seen; an audit log names it: muster doctor --audit-log FILE."),
            ("kubectl get clusterroles -o json | grep -l endpoints",) if not who else tuple(map(_command, who)),
        ),
    )


def _command(culprit: Culprit) -> str:
    namespace, _, name = culprit.name.partition("/")
    return f"kubectl get {culprit.kind.lower()} {name} -n {namespace} -o yaml"


def _who(evidence: Evidence, use: EndpointsUse, watches: float) -> tuple[Culprit, ...]:
    """Return who watches Endpoints by a log of requests. Without one, return who may watch them.

    These are DaemonSets first, led by the one whose pods explain the watches best.
    """
    known = logged(
        evidence,
        lambda usage: (usage.shape.verb, usage.shape.resource) == ("watch", "endpoints"),
        lambda usage: usage.watches,
    )
    if known:
        return known
    daemonsets = [each for each in (evidence.part(DaemonSets) or DaemonSets()).items if each.account in use.accounts]
    if daemonsets:
        daemonsets.sort(key=lambda each: (abs(each.pods - watches), each.key))
        return tuple(Culprit("DaemonSet", each.key) for each in daemonsets[:_SHOWN])
    return tuple(Culprit("ServiceAccount", account) for account in sorted(use.accounts)[:_SHOWN])


RULE: Final = Rule(
    "endpoints", frozenset({LONGRUNNING, SIZES}), _find, needs=(("watches of Endpoints", (LONGRUNNING,)),)
)
