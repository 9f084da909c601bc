"""Space of etcd: its quota, the alarm NOSPACE, and free pages that only a defragmentation gives back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.api.finding import Cost, Culprit, Finding, Fix, Growth, Measure, Severity, cost
from muster.doctor.etcd.flags import EtcdFlags
from muster.doctor.etcd.members import IN_USE, QUOTA, SIZE, EtcdMembers, Member
from muster.doctor.evidence import Evidence
from muster.doctor.rule import Rule

STORAGE: Final = "apiserver_storage_size_bytes"
ERRORS: Final = "etcd_request_errors_total"
ETCD_REQUESTS: Final = "etcd_requests_total"
DEFAULT_QUOTA: Final = 2 * 2**30
"""etcd's default quota (etcd docs, "System limits"); at most 8 GiB are suggested."""
NEAR, FULL = 0.8, 0.95
_FRAGMENTED: Final = 0.5
_FRAGMENTED_LEAST: Final = 256 * 2**20
"""A smaller database gains nothing from a defragmentation."""
_REFUSED_LEAST: Final = 10
_WRITES: Final = frozenset({"create", "update", "delete"})
_FREE: Final = (
    "ENDPOINT=https://HOST:2379   # of each member, with --cacert, --cert and --key",
    "REV=$(etcdctl --endpoints=$ENDPOINT endpoint status -w json | grep -o '\"revision\":[0-9]*' | cut -d: -f2)",
    "etcdctl --endpoints=$ENDPOINT compact $REV",
    "etcdctl --endpoints=$ENDPOINT defrag   # one member at a time, the leader last",
    "etcdctl --endpoints=$ENDPOINT alarm disarm",
)


def _find(evidence: Evidence) -> Iterator[Finding]:
    known = evidence.part(EtcdMembers)
    if known is not None:
        for member in known.members:
            yield from _of_member(evidence, member)
        return
    refused = refused_share(evidence)
    if refused:
        yield _refused(evidence, refused)
        return
    flags = evidence.part(EtcdFlags)
    quota = flags.quota_bytes if flags is not None else None
    for labels, size in evidence.series(STORAGE):
        name = labels.get("storage_cluster_id") or labels.get("cluster") or "of the API server"
        if size >= NEAR * (quota or DEFAULT_QUOTA):
            yield _near(evidence, name, size, quota, STORAGE)
            return  # each API server reports the same etcd


def refused_share(evidence: Evidence) -> float:
    """Return the share of writes that etcd refuses while it answers reads, if that is most of them; else 0.

    A conflict is not an error for etcd's client, so errors of writes alone mean that etcd does not accept writes.
    """
    failed = {True: 0.0, False: 0.0}
    asked = {True: 0.0, False: 0.0}
    for name, counts in ((ERRORS, failed), (ETCD_REQUESTS, asked)):
        for labels, rate in evidence.rates(name):
            operation = labels.get("operation", "")
            if operation in _WRITES or operation in ("get", "list"):
                counts[operation in _WRITES] += rate
    if failed[True] * evidence.window_s < _REFUSED_LEAST or failed[True] < 0.5 * asked[True]:
        return 0.0
    return failed[True] / asked[True] if failed[False] <= 0.1 * asked[False] else 0.0


def is_full(evidence: Evidence) -> bool:
    """Returns whether etcd refuses writes for lack of space, as far as can be seen."""
    known = evidence.part(EtcdMembers)
    if known is None:
        return refused_share(evidence) > 0
    return any("NOSPACE" in (member.alarms or ()) for member in known.members)


def _of_member(evidence: Evidence, member: Member) -> Iterator[Finding]:
    size, quota, used = member.value(SIZE) or 0.0, member.value(QUOTA) or float(DEFAULT_QUOTA), member.value(IN_USE)
    alarms = member.alarms or ()
    if "NOSPACE" in alarms:
        yield Finding(
            id="etcd-full",
            severity=Severity.ERROR,
            title=f"etcd {member.address} refuses all writes: the alarm NOSPACE is active, because its quota was full.",
            who=(Culprit("Etcd", member.address),),
            evidence=(
                Measure("size of the database", size, "bytes", SIZE),
                Measure("quota", quota, "bytes", QUOTA),
            ),
            costs=(cost("size of the database", "bytes", size, Growth.PER_NODE, evidence.scale),),
            fix=Fix(
                "Free space: compact, then defragment each member, then disarm the alarm. If most of the space is in "
                "use, delete objects first or raise --quota-backend-bytes (8 GiB at most).",
                _FREE,
            ),
        )
    elif size >= NEAR * quota:
        yield _near(evidence, member.address, size, quota, SIZE)
    elif used is not None and size >= _FRAGMENTED_LEAST and used < _FRAGMENTED * size:
        yield _fragmented(evidence, member, size, used)
    for alarm in alarms:
        if alarm != "NOSPACE":
            yield _alarm(evidence, member, alarm)


def _near(evidence: Evidence, name: str, size: float, quota: float | None, source: str) -> Finding:
    limit = quota or float(DEFAULT_QUOTA)
    sure = quota is not None
    measures = [Measure("size of the database", size, "bytes", source)]
    if sure:
        measures.append(Measure("quota", limit, "bytes", QUOTA if source == SIZE else "--quota-backend-bytes"))
    title = f"The database of etcd {name} has {100 * size / limit:.0f}% of its quota."
    if not sure:
        title = (
            f"The database of etcd {name} has {size / 2**30:.2g} GiB. With etcd's default quota of 2 GiB, writes stop "
            "there. Its quota cannot be seen from the API server."
        )
    return Finding(
        id="etcd-quota-near",
        severity=Severity.ERROR if sure and size >= FULL * limit else Severity.WARNING,
        title=title,
        who=(Culprit("Etcd", name, min(size / limit, 1.0) if sure else None),),
        evidence=tuple(measures),
        costs=(cost("size of the database", "bytes", size, Growth.PER_NODE, evidence.scale),),
        fix=Fix(
            "When the quota is full, etcd refuses all writes. Find what grows, by "
            "apiserver_resource_size_estimate_bytes. Then defragment, or raise --quota-backend-bytes to 8 GiB at most. "
            "Events can have an etcd of their own.",
            ("muster etcd config --nodes N", *_FREE[:4]),
        ),
    )


def _fragmented(evidence: Evidence, member: Member, size: float, used: float) -> Finding:
    free = size - used
    return Finding(
        id="etcd-fragmented",
        severity=Severity.WARNING,
        title=f"{100 * free / size:.0f}% of the database of etcd {member.address} are free pages.",
        who=(Culprit("Etcd", member.address, free / size),),
        evidence=(
            Measure("size of the database", size, "bytes", SIZE),
            Measure("in use", used, "bytes", IN_USE),
        ),
        costs=(Cost("free pages that count against the quota", "bytes", free, free, Growth.CONSTANT),),
        fix=Fix(
            "etcd uses free pages again, so this is harmless unless the quota is near. To give them back to the disk, "
            "defragment one member at a time, the leader last: a member does not answer while it is defragmented.",
            _FREE[:1] + _FREE[3:4],
        ),
    )


def _alarm(evidence: Evidence, member: Member, alarm: str) -> Finding:
    return Finding(
        id="etcd-alarm",
        severity=Severity.ERROR,
        title=f"The alarm {alarm} of etcd {member.address} is active.",
        who=(Culprit("Etcd", member.address),),
        evidence=(Measure(f"alarm {alarm}", 1, "", "/health"),),
        costs=(cost("members with an alarm", "members", 1, Growth.CONSTANT, evidence.scale),),
        fix=Fix(
            "CORRUPT means that members have different data: stop the member that differs, and restore it from the "
            "others (etcd docs, Disaster recovery).",
            ("etcdctl alarm list", "etcdctl endpoint hashkv --cluster"),
        ),
    )


def _refused(evidence: Evidence, share: float) -> Finding:
    rate = sum(rate for labels, rate in evidence.rates(ERRORS) if labels.get("operation") in _WRITES)
    return Finding(
        id="etcd-full",
        severity=Severity.ERROR,
        title=f"etcd refuses {100 * share:.0f}% of writes and answers reads: most likely its quota is full. Only the "
        "API server's metrics are visible, so the alarm NOSPACE cannot be seen.",
        who=(Culprit("Etcd", "of the API server"),),
        evidence=(
            Measure("refused writes", rate, "requests/s", ERRORS),
            *(Measure("size of the database", size, "bytes", STORAGE) for _, size in evidence.series(STORAGE)),
        ),
        costs=(cost("refused writes", "requests/s", rate, Growth.PER_NODE, evidence.scale),),
        fix=Fix(
            "Read etcd's alarms. With NOSPACE: compact, defragment each member, then disarm the alarm.",
            ("etcdctl --endpoints=https://HOST:2379 alarm list", *_FREE),
        ),
    )


RULE: Final = Rule("etcd_space", frozenset({STORAGE, ERRORS, ETCD_REQUESTS}), _find)
