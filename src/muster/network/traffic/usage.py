"""Who uses the uplink now: rates of jobs from the reports of nodes, and the check against the network cards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from muster.network.traffic.backend import INNER, IPV6, OUTER
from muster.network.traffic.classes import INTERNAL
from muster.network.traffic.overhead import overhead_bytes
from muster.network.traffic.report import RDMA_CLASS, TUNNEL_JOB, Row, TrafficReport

STALE_S: Final = 60.0
"""Age of a report that is not shown as now."""


class JobUse(NamedTuple):
    """What a job moves now, and has moved since the ledgers of its nodes began.

    Attributes:
        namespace, job, team: as in `Row`.
        nodes: that it has traffic on.
        in_bps, out_bps: rates of everything that is neither internal nor RDMA, in bit/s.
        internal_in_bps, internal_out_bps: rates of the class `internal`.
        in_bytes, out_bytes: totals of the same.
        classes: rates by class and direction, in bit/s.
    """

    namespace: str
    job: str
    team: str
    nodes: int
    in_bps: int
    out_bps: int
    internal_in_bps: int
    internal_out_bps: int
    in_bytes: int
    out_bytes: int
    classes: dict[str, dict[str, int]]


class Check(NamedTuple):
    """The sum of all rows beside the network cards, for one direction, in bit/s.

    Attributes:
        rows_bps: of all jobs and the node, internal traffic too.
        overhead_bps: estimate of headers that the rows do not have.
        nic_bps: of the network cards.
    """

    rows_bps: int
    overhead_bps: int
    nic_bps: int

    @property
    def difference(self) -> float:
        """How far rows and overhead are from the network cards, as a share of these; 0 if nothing moves."""
        return (self.rows_bps + self.overhead_bps) / self.nic_bps - 1.0 if self.nic_bps else 0.0


class Usage(NamedTuple):
    """The use of the uplink."""

    jobs: tuple[JobUse, ...]
    checks: dict[str, Check]


def usage(reports: Iterable[TrafficReport]) -> Usage:
    """Return the use of the uplink by all jobs: the largest user first."""
    found = list(reports)
    parts: defaultdict[tuple[str, str, str], list[tuple[Row, float]]] = defaultdict(list)
    nodes: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
    for report in found:
        for row, bps in _rates(report):
            account = (row.namespace, row.job, row.team)
            parts[account].append((row, bps))
            nodes[account].add(report.node)
    jobs = [_job_use(account, rows, len(nodes[account])) for account, rows in parts.items()]
    jobs.sort(key=lambda each: (-(each.in_bps + each.out_bps), each[:3]))
    return Usage(tuple(jobs), {direction: _check(found, direction) for direction in ("in", "out")})


def _job_use(account: tuple[str, str, str], rows: Sequence[tuple[Row, float]], nodes: int) -> JobUse:
    classes: defaultdict[str, dict[str, float]] = defaultdict(lambda: {"in": 0.0, "out": 0.0})
    totals = {"in": 0, "out": 0}
    for row, bps in rows:
        classes[row.cls][row.direction] += bps
        if row.cls not in (INTERNAL, RDMA_CLASS):
            totals[row.direction] += row.bytes
    outer = [each for name, each in classes.items() if name not in (INTERNAL, RDMA_CLASS)]
    internal = classes.get(INTERNAL, {"in": 0.0, "out": 0.0})
    return JobUse(
        *account,
        nodes=nodes,
        in_bps=round(sum(each["in"] for each in outer)),
        out_bps=round(sum(each["out"] for each in outer)),
        internal_in_bps=round(internal["in"]),
        internal_out_bps=round(internal["out"]),
        in_bytes=totals["in"],
        out_bytes=totals["out"],
        classes={
            name: {direction: round(bps) for direction, bps in each.items()} for name, each in sorted(classes.items())
        },
    )


def _rates(report: TrafficReport) -> list[tuple[Row, float]]:
    """The rows of jobs and of the node, with their rates in bit/s."""
    before = {_key(row): row.bytes for row in report.previous}
    seconds = report.interval_s
    return [
        (row, max(0, row.bytes - before.get(_key(row), 0)) * 8 / seconds if seconds > 0 else 0.0)
        for row in report.accounts()
    ]


def _key(row: Row) -> tuple[str, ...]:
    return (row.namespace, row.job, row.team, row.cls, row.direction)


def _check(reports: Iterable[TrafficReport], direction: str) -> Check:
    rows = overhead = nic = 0.0
    for report in reports:
        if report.interval_s <= 0:
            continue
        before = {_key(row): row for row in report.previous}
        size = packets = tunnel = ipv6 = 0
        for row in report.rows:
            if row.direction != direction or row.cls == RDMA_CLASS:
                continue
            old = before.get(_key(row))
            more = max(0, row.bytes - (old.bytes if old is not None else 0))
            if row.job == TUNNEL_JOB:
                tunnel += {OUTER: more, INNER: -more}.get(row.cls, 0)
                ipv6 += more if row.cls == IPV6 else 0
                continue
            size += more
            packets += max(0, row.packets - (old.packets if old is not None else 0))
        now, then = report.nic, report.nic_previous
        wire = now.in_packets - then.in_packets if direction == "in" else now.out_packets - then.out_packets
        counted = now.in_bytes - then.in_bytes if direction == "in" else now.out_bytes - then.out_bytes
        rows += size * 8 / report.interval_s
        overhead += (overhead_bytes(packets, wire, ipv6 / size if size else 0.0) + tunnel) * 8 / report.interval_s
        nic += counted * 8 / report.interval_s
    return Check(round(rows), round(overhead), round(nic))
