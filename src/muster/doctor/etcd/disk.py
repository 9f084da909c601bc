"""Slow etcd: its disk, from its own metrics; else the time of its answers, from the API server's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.api.finding import Culprit, Finding, Fix, Growth, Measure, Severity, cost
from muster.doctor.etcd.members import COMMIT, FSYNC, EtcdMembers, Member
from muster.doctor.evidence import Evidence
from muster.doctor.histogram import Histogram, histograms
from muster.doctor.rule import Rule

REQUESTS: Final = "etcd_request_duration_seconds"
FSYNC_S, COMMIT_S = 0.010, 0.025
"""Limits of the 99th percentile (etcd docs, FAQ: "What does the etcd warning 'failed to send out heartbeat' mean")."""
REQUEST_S: Final = 0.1
_LEAST: Final = 20
_SLOW_LEAST: Final = 5
"""Slow operations in the window. Fewer may come from one pause of a busy machine."""
_SHARE: Final = 0.01
_REQUEST_SHARE: Final = 0.1
_WRITES: Final = frozenset({"create", "update", "delete"})


def _find(evidence: Evidence) -> Iterator[Finding]:
    known = evidence.part(EtcdMembers)
    if known is not None:
        for member in known.members:
            yield from _of_member(evidence, member)
        return
    found = evidence.histograms(REQUESTS, ("operation",), lambda labels: labels.get("operation") in _WRITES)
    slow = {key[0]: seen for key, seen in found.items() if _is_slow(seen, REQUEST_S, _LEAST, _REQUEST_SHARE)}
    if slow:
        yield _of_requests(evidence, slow)


def _is_slow(seen: Histogram, limit_s: float, least: int, share: float) -> bool:
    slow = seen.above(limit_s)
    return slow >= least and slow > share * seen.count


def _of_member(evidence: Evidence, member: Member) -> Iterator[Finding]:
    limits = ((FSYNC, FSYNC_S, "fsync of the write-ahead log"), (COMMIT, COMMIT_S, "commit of the database"))
    seen = {family: histograms((member.metrics,), family, ()).get((), Histogram()) for family, *_ in limits}
    slow = [each for each in limits if _is_slow(seen[each[0]], each[1], _SLOW_LEAST, _SHARE)]
    if not slow:
        return
    family, limit_s, what = slow[0]
    p99 = seen[family].quantile(0.99)
    writes = seen[FSYNC].count / member.metrics.seconds
    yield Finding(
        id="etcd-disk-slow",
        severity=Severity.ERROR,
        title=f"The disk of etcd {member.address} is slow: 99% of {what} take up to {1000 * p99:.3g} ms, and "
        f"{1000 * limit_s:.0f} ms are the limit.",
        who=(Culprit("Etcd", member.address),),
        evidence=tuple(
            Measure(f"99th percentile, {what}, at least in this bucket", seen[family].quantile(0.99), "s", family)
            for family, _, what in limits
            if seen[family].count
        ),
        costs=(cost("fsyncs", "/s", writes, Growth.PER_NODE, evidence.scale),),
        fix=Fix(
            "Give etcd a local SSD of its own, with nothing else on it. Each write of the cluster waits for this disk. "
            "If the disk is shared, move the other user away, or the write-ahead log to another disk.",
            ("muster etcd config --nodes N   # what the disk must do at the planned size",),
        ),
    )


def _of_requests(evidence: Evidence, slow: dict[str, Histogram]) -> Finding:
    worst = max(slow, key=lambda name: slow[name].above(REQUEST_S) / slow[name].count)
    seen = slow[worst]
    rate = sum(each.count for each in slow.values()) / evidence.window_s
    return Finding(
        id="etcd-slow",
        severity=Severity.ERROR,
        title=f"etcd answers slowly: {100 * seen.above(REQUEST_S) / seen.count:.0f}% of {worst} requests take longer "
        f"than {1000 * REQUEST_S:.0f} ms. Only the API server's metrics are visible, so disk, network and CPU cannot "
        "be distinguished.",
        who=(Culprit("Etcd", "of the API server"),),
        evidence=tuple(
            Measure(f"99th percentile of {name}, at least in this bucket", each.quantile(0.99), "s", REQUESTS)
            for name, each in sorted(slow.items())
        ),
        costs=(cost("slow kinds of writes", "requests/s", rate, Growth.PER_NODE, evidence.scale),),
        fix=Fix(
            "Let the doctor read etcd's own metrics: they show the time of fsync and commit.",
            ("muster doctor --etcd-metrics https://HOST:2379/metrics --etcd-ca FILE --etcd-cert FILE --etcd-key FILE",),
        ),
    )


RULE: Final = Rule("etcd_disk", frozenset({REQUESTS}), _find)
