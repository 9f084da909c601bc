"""Priority levels that are full, and watch caches whose history is short."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from muster.api.finding import Culprit, Finding, Fix, Growth, Measure, Severity, cost
from muster.doctor.evidence import Evidence
from muster.doctor.growing import objects_growth, resource_name
from muster.doctor.parts.workloads import busiest
from muster.doctor.rule import Rule
from muster.doctor.rules.overload import REJECTED
from muster.doctor.samples import Page

SEATS: Final = "apiserver_flowcontrol_current_executing_seats"
LIMITS: Final = ("apiserver_flowcontrol_current_limit_seats", "apiserver_flowcontrol_nominal_limit_seats")
CAPACITY: Final = "watch_cache_capacity"
RECEIVED: Final = "apiserver_watch_cache_events_received_total"
_FULL: Final = 0.9
_CAPACITY_MOST: Final = 100 * 1024
"""The watch cache grows by itself up to this number of events (apiserver, storage/cacher/watch_cache.go)."""
HISTORY_S: Final = 60.0
"""Clients that were away for longer must list again. A restart of a node or a leader takes about that long."""


def _find(evidence: Evidence) -> Iterator[Finding]:
    yield from _levels(evidence)
    yield from _histories(evidence)


def _levels(evidence: Evidence) -> Iterator[Finding]:
    for server in evidence.servers:
        if server.before is None:
            continue
        before, after = _busy(server.before), _busy(server.after)
        rejecting = {labels.get("priority_level") for labels, rate in server.rates(REJECTED) if rate > 0}
        for level, share in sorted(after.items()):
            if level == "exempt" or level in rejecting or min(share, before.get(level, 0.0)) < _FULL:
                continue  # the rule about overload names a level that rejects
            users = _users(evidence, level)
            yield Finding(
                id="level-full",
                severity=Severity.WARNING,
                title=f"Priority level {level} uses {share:.0%} of its seats; more requests must wait.",
                who=(*users, Culprit("PriorityLevelConfiguration", level)),
                evidence=(Measure("seats in use", 100 * share, "%", SEATS),),
                costs=(cost("seats in use", "%", 100 * share, Growth.PER_NODE, evidence.scale),),
                fix=Fix(
                    "Let the first client named above send fewer or cheaper requests. Otherwise raise "
                    "nominalConcurrencyShares of this level.",
                    (f"kubectl get prioritylevelconfiguration {level} -o yaml",),
                ),
            )


def _users(evidence: Evidence, level: str) -> tuple[Culprit, ...]:
    return busiest(evidence, lambda use: use.level == level)


def _busy(page: Page) -> Mapping[str, float]:
    """Return the share of its seats that each priority level uses."""
    used: dict[str, float] = defaultdict(float)
    for labels, value in page.of(SEATS):
        used[labels.get("priority_level", "")] += value
    limits = next((found for name in LIMITS if (found := list(page.of(name)))), [])
    of = {labels.get("priority_level", ""): value for labels, value in limits}
    return {level: seats / of[level] for level, seats in used.items() if of.get(level, 0) > 0}


def _histories(evidence: Evidence) -> Iterator[Finding]:
    capacity: dict[str, float] = {}
    rates: dict[str, float] = {}
    for labels, value in evidence.series(CAPACITY):
        name = resource_name(labels)
        capacity[name] = min(value, capacity.get(name, value))
    for labels, rate in evidence.rates(RECEIVED):
        name = resource_name(labels)
        rates[name] = max(rate, rates.get(name, 0.0))  # each server receives all events
    for name, rate in sorted(rates.items()):
        events = capacity.get(name, 0.0)
        if events < _CAPACITY_MOST or rate <= 0 or events / rate >= HISTORY_S:
            continue
        yield Finding(
            id="watch-history-short",
            severity=Severity.WARNING,
            title=f"The API server remembers the changes of {name} for {events / rate:.0f} s only.",
            who=(Culprit("Resource", name),),
            evidence=(
                Measure("events in the watch cache", events, "events", CAPACITY),
                Measure("changes", rate, "events/s", RECEIVED),
            ),
            costs=(cost("changes", "events/s", rate, objects_growth(name), evidence.scale),),
            fix=Fix("Find the client that changes these objects so often. A client that falls behind lists again."),
        )


RULE: Final = Rule("saturation", frozenset({SEATS, *LIMITS, REJECTED, CAPACITY, RECEIVED}), _find)
