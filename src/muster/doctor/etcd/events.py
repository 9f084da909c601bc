"""The share of Events in what etcd stores and writes, while they have no etcd of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from muster.api.finding import Culprit, Finding, Fix, Growth, Measure, Severity, cost
from muster.doctor.etcd.flags import EtcdFlags
from muster.doctor.evidence import Evidence
from muster.doctor.growing import resource_name
from muster.doctor.rule import Rule
from muster.doctor.rules import events as flood

OBJECTS: Final = "apiserver_resource_objects"
SIZES: Final = "apiserver_resource_size_estimate_bytes"
REQUESTS: Final = "etcd_requests_total"
_WRITES: Final = frozenset({"create", "update", "delete"})
_STORED_LEAST: Final = 100_000
_WRITTEN_LEAST: Final = 50.0
"""Objects and writes per second from which a split is worth the second etcd."""
_SHARE: Final = 0.5


def _find(evidence: Evidence) -> Iterator[Finding]:
    flags = evidence.part(EtcdFlags)
    if flags is not None and flags.events_split is not False:
        return
    stored, sizes, written = (_by_resource(evidence, name) for name in (OBJECTS, SIZES, REQUESTS))
    many = stored["events"] >= _STORED_LEAST and stored["events"] >= _SHARE * sum(stored.values())
    busy = written["events"] >= _WRITTEN_LEAST and written["events"] >= _SHARE * sum(written.values())
    if flood.written(evidence) > flood.usual(evidence.scale.nodes):
        busy = False  # the rule about floods names their source; without it, Events may need no etcd of their own
    if not (many or busy):
        return
    share = max(
        written["events"] / max(sum(written.values()), 1e-9), stored["events"] / max(sum(stored.values()), 1e-9)
    )
    seen = "" if flags is not None else " Whether they have an etcd of their own already cannot be seen here."
    yield Finding(
        id="etcd-events-share",
        severity=Severity.WARNING,
        title=f"Events are {100 * share:.0f}% of what the API server stores or writes in etcd.{seen}",
        who=(Culprit("Resource", "events", min(share, 1.0)),),
        evidence=(
            Measure("stored Events", stored["events"], "", OBJECTS),
            Measure("their size", sizes["events"], "bytes", SIZES),
            Measure("writes of Events", written["events"], "requests/s", REQUESTS),
            Measure("writes of everything", sum(written.values()), "requests/s", REQUESTS),
        ),
        costs=(
            cost("writes of Events", "requests/s", written["events"], Growth.PER_NODE, evidence.scale),
            cost("stored Events", "bytes", sizes["events"], Growth.PER_NODE, evidence.scale),
        ),
        fix=Fix(
            "Give Events an etcd of their own. Then a flood of Events does not slow down other writes, and does not "
            "fill the quota.",
            ("muster etcd config --nodes N",),
        ),
    )


def _by_resource(evidence: Evidence, name: str) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    if name == REQUESTS:
        for labels, rate in evidence.rates(name):
            if labels.get("operation") in _WRITES:
                found[_name(resource_name(labels))] += rate
    else:
        for labels, value in evidence.series(name):  # each server counts all objects; -1 is an error
            found[_name(resource_name(labels))] = max(value, found[_name(resource_name(labels))])
    return found


def _name(resource: str) -> str:
    """Events of both API groups are the same objects."""
    return "events" if resource == "events.events.k8s.io" else resource


RULE: Final = Rule("etcd_events", frozenset({OBJECTS, SIZES, REQUESTS}), _find)
