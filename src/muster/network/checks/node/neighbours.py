"""Rules about the neighbour table: overflow, a table that is nearly full, and one that is too small for the plan.

The table is one for all network namespaces of the machine, and only the first namespace has its thresholds
(e2b-dev/infra#3508). Above gc_thresh3 the kernel creates no entry: packets to new neighbours fail with ENOBUFS.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.api.finding import Fix, Measure, Severity
from muster.kube.counters import rise
from muster.network.checks.node.evidence import NeighbourTable, NodeEvidence, Settings
from muster.network.checks.problem import Kind, Problem
from muster.network.plan.needs import neighbour_entries, thresholds

CHECK: Final = "neighbours"
_SOURCES: Final = {4: "/proc/net/stat/arp_cache", 6: "/proc/net/stat/ndisc_cache"}
_FULL_ENTRIES: Final = 64_000
"""For a table that filled: more than its plan says. OpenAI had these values for 2,500 nodes (`needs`)."""
_HOW: Final = (
    "in the host's network namespace, for IPv4 and IPv6, gc_thresh3 first. The network agent can do it from the plan: "
    "section `tuning` (docs/network-doctor.md)."
)
_RAISE: Final = Fix(
    f"Raise gc_thresh1 to gc_thresh3 on each node to the values that the finding names or larger ones, {_HOW}",
    ("sysctl net.ipv4.neigh.default net.ipv6.neigh.default | grep gc_thresh   # the values of a node",),
)
KINDS: Final = {
    (CHECK, "overflow"): Kind(
        Severity.ERROR, "The neighbour table overflowed, so new peers could not be reached", _RAISE
    ),
    (CHECK, "near-limit"): Kind(Severity.WARNING, "The neighbour table is nearly full", _RAISE),
    (CHECK, "planned"): Kind(Severity.WARNING, "The neighbour table is too small for the planned peers", _RAISE),
}  # fmt: skip


def neighbours_needed(settings: Settings) -> int:
    """Return the entries of the neighbour table that the plan needs; 0 if nothing is planned."""
    if settings.planned_neighbours or not settings.planned_nodes:
        return settings.planned_neighbours
    return neighbour_entries(settings.pod_network, settings.planned_nodes, settings.pods, settings.connections_per_pod)


def find(now: NodeEvidence, before: NodeEvidence | None, settings: Settings) -> Iterator[Problem]:
    """Yield the problems of both tables. Counters are compared with those of the last look."""
    old = {table.version: table.counters for table in before.neighbours} if before is not None else {}
    for table in now.neighbours:
        yield from _table(table, old.get(table.version, {}).get("table_fulls"), now, settings)


def _table(table: NeighbourTable, fulls: int | None, now: NodeEvidence, settings: Settings) -> Iterator[Problem]:
    name = f"IPv{table.version}"
    hard = table.thresholds[2]
    limit = Measure("limit", hard, "", "gc_thresh3")
    needed = neighbours_needed(settings)
    values = thresholds(max(needed, hard, _FULL_ENTRIES))
    times = rise(fulls, table.counters.get("table_fulls"), 32)
    if times:
        measure = Measure("refused entries", times, "", f"{_SOURCES[table.version]}: table_fulls")
        what = f"{times} entries were refused since the last look, at most {hard} fit"
        yield Problem(CHECK, "overflow", name, _with(what, values), (measure, limit), times, _fix(values))
    if 100 * table.counted >= settings.near_percent * hard:
        measure = Measure("entries", table.counted, "", _SOURCES[table.version])
        what = f"{table.counted} entries of at most {hard}"
        yield Problem(CHECK, "near-limit", name, _with(what, values), (measure, limit), fix=_fix(values))
    if 100 * needed >= settings.near_percent * hard and (table.version == 4 or now.has_ipv6):
        values = thresholds(needed)
        measure = Measure("entries needed", needed, "", _plan(settings))
        what = f"{needed} entries are needed, and {hard} fit"
        yield Problem(CHECK, "planned", name, _with(what, values), (measure, limit), fix=_fix(values))


def _with(what: str, values: tuple[int, int, int]) -> str:
    return f"{what}; gc_thresh1 to gc_thresh3 should be {values[0]}, {values[1]} and {values[2]}"


def _plan(settings: Settings) -> str:
    if settings.planned_neighbours:
        return "plannedNeighbours"
    return f"{settings.planned_nodes} nodes, {settings.pods} pods, pod network {settings.pod_network}"


def _fix(values: tuple[int, int, int]) -> Fix:
    commands = (
        f"sysctl -w net.{family}.neigh.default.gc_thresh{number}={values[number - 1]}"
        for family in ("ipv4", "ipv6")
        for number in (3, 2, 1)
    )
    return Fix(f"Raise gc_thresh1 to gc_thresh3 {_HOW}", tuple(commands))
