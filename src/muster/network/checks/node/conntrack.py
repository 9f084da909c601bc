"""Rules about tracked connections: a table that is nearly full, dropped packets, and lost races of inserts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.api.finding import Fix, Measure, Severity
from muster.kube.counters import rise
from muster.network.checks.node.evidence import NodeEvidence, Settings
from muster.network.checks.problem import Kind, Problem

CHECK: Final = "conntrack"
_SOURCE: Final = "/proc/net/stat/nf_conntrack"
_RACES_MIN: Final = 10
"""A few refused inserts are normal: two packets of one connection at the same time."""

_RAISE: Final = Fix(
    "Raise net.netfilter.nf_conntrack_max. The network agent can do it from the plan: section `tuning` "
    "(docs/network-doctor.md). kube-proxy sets its own value when it starts, so set conntrack.min in its "
    "configuration too.",
    ("sysctl -w net.netfilter.nf_conntrack_max=1048576",),
)
KINDS: Final = {
    (CHECK, "near-limit"): Kind(Severity.WARNING, "The table of connections is nearly full", _RAISE),
    (CHECK, "dropped"): Kind(
        Severity.ERROR, "The kernel dropped packets because its table of connections was full", _RAISE
    ),
    (CHECK, "insert-failed"): Kind(
        Severity.WARNING,
        "Packets were dropped because two packets created the same connection at once",
        Fix(
            "UDP requests that a program sends in pairs race with each other, and a lost DNS request costs its "
            "program 5 s (kubernetes/kubernetes#56903). Run a DNS cache on each node (NodeLocal DNSCache), whose "
            "traffic is not tracked, or set `options single-request-reopen` in the pods' dnsConfig.",
        ),
    ),
}  # fmt: skip


def find(now: NodeEvidence, before: NodeEvidence | None, settings: Settings) -> Iterator[Problem]:
    """Yield the problems. Counters are compared with those of the last look."""
    table = now.conntrack
    if table is None:
        return
    if 100 * table.entries >= settings.near_percent * table.limit:
        yield Problem(
            CHECK, "near-limit", "", f"{table.entries} connections of at most {table.limit}",
            (
                Measure("tracked connections", table.entries, "", "nf_conntrack_count"),
                Measure("limit", table.limit, "", "nf_conntrack_max"),
            ),
        )  # fmt: skip
    if before is None or before.conntrack is None:
        return
    old = before.conntrack.counters
    for code, names, least, what in (
        ("dropped", ("drop", "early_drop"), 1, "packets or connections were dropped"),
        ("insert-failed", ("insert_failed",), _RACES_MIN, "inserts failed"),
    ):
        times = sum(rise(old.get(name), table.counters.get(name), 32) for name in names)
        if times >= least:
            measure = Measure(what, times, "", f"{_SOURCE}: {', '.join(names)}")
            yield Problem(CHECK, code, "", f"{times} {what} since the last look", (measure,), times)
