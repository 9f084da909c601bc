"""Metrics of a node's traffic, with a bounded number of series."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.core import Metric

from muster.kube.described import Described, family
from muster.network.traffic.report import HOST_JOB, Row

BYTES: Final = Described(
    "muster_network_bytes_total",
    "counter",
    ("job", "namespace", "team", "class", "direction"),
    "IP bytes that the pods of a job sent (out) or received (in) across the node's network cards, by class of the "
    "other end.",
)
PACKETS: Final = Described(
    "muster_network_packets_total",
    "counter",
    ("job", "namespace", "team", "class", "direction"),
    "IP packets of the same, as the kernel counts them: a segment that the network card splits is one.",
)
POD_BYTES: Final = Described(
    "muster_network_pod_bytes_total",
    "counter",
    ("namespace", "pod", "job", "class", "direction"),
    "IP bytes of each pod that is on the node, since it came. Only with traffic.pods.",
)
NIC_BYTES: Final = Described(
    "muster_network_nic_bytes_total", "counter", ("direction",), "Bytes that the interfaces of the uplink counted."
)
UNCOUNTED: Final = Described(
    "muster_network_uncounted_pods", "gauge", (), "Host-network pods whose cgroup is not known: they count as (host)."
)
OVER: Final = Described(
    "muster_network_accounts_over_limit",
    "gauge",
    (),
    "Jobs and pods without series of their own, because traffic.maxSeries is reached: job (others).",
)
FAILURES: Final = Described(
    "muster_network_traffic_failures_total", "counter", (), "Readings of the traffic counters that failed."
)
LOST: Final = Described(
    "muster_network_counters_lost_total",
    "counter",
    (),
    "How often another program had removed the kernel's counters of traffic.",
)
DAMAGED: Final = Described(
    "muster_network_ledger_damaged", "gauge", (), "1 if the ledger on disk was damaged, and a new one began."
)
METRICS: Final = (BYTES, PACKETS, POD_BYTES, NIC_BYTES, UNCOUNTED, OVER, FAILURES, LOST, DAMAGED)
OTHERS: Final = "(others)"
NONE: Final = "(none)"
EXPORTER_PREFIX: Final = "iptables"
"""Names of madron/iptables-exporter, which the seeds' dashboards use: iptables_bytes and iptables_packets."""


class PodRow(NamedTuple):
    """Bytes of one pod."""

    namespace: str
    pod: str
    job: str
    cls: str
    direction: str
    bytes: int


class View(NamedTuple):
    """What is exported: committed values only, which never decrease."""

    rows: tuple[Row, ...] = ()
    pods: tuple[PodRow, ...] = ()
    nic_in_bytes: int = 0
    nic_out_bytes: int = 0
    uncounted: int = 0
    failures: int = 0
    lost: int = 0
    damaged: bool = False


class Exporter:
    """A collector for a registry.

    An account that has series keeps them until it is gone. While the limit is reached, the increase of further ones is
    added to job `(others)`, which so never decreases.

    Args:
        series_max: limit of the series of jobs and pods together.
        exporter_names: also write the metrics of iptables-exporter.
    """

    def __init__(self, series_max: int, *, exporter_names: bool) -> None:
        self._series_max = series_max
        self._exporter_names = exporter_names
        self._view = View()
        self._shown: set[tuple[str, str, str]] = set()
        self._shown_pods: set[tuple[str, str]] = set()
        self._last: dict[tuple[str, ...], tuple[int, int]] = {}
        self._others: defaultdict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
        self._over = 0

    def update(self, view: View) -> None:
        """Show these values from now on."""
        self._view = view
        by_account: defaultdict[tuple[str, str, str], list[Row]] = defaultdict(list)
        for row in view.rows:
            by_account[_account(row)].append(row)
        self._shown &= by_account.keys()
        per_row = 4 if self._exporter_names else 2
        used = per_row * sum(len(by_account[each]) for each in self._shown)
        for account, rows in sorted(by_account.items(), key=lambda each: -sum(row.bytes for row in each[1])):
            if account not in self._shown and used + per_row * len(rows) <= self._series_max:
                self._shown.add(account)
                used += per_row * len(rows)
        self._add_others(row for account, rows in by_account.items() if account not in self._shown for row in rows)
        self._over = len(by_account) - len(self._shown) + self._choose_pods(view.pods, used)

    def _add_others(self, rows: Iterable[Row]) -> None:
        last: dict[tuple[str, ...], tuple[int, int]] = {}
        for row in rows:
            key = (*_account(row), row.cls, row.direction)
            size, packets = self._last.get(key, (0, 0))
            total = self._others[row.cls, row.direction]
            more = (max(0, row.bytes - size), max(0, row.packets - packets))
            self._others[row.cls, row.direction] = (total[0] + more[0], total[1] + more[1])
            last[key] = (row.bytes, row.packets)
        self._last = last

    def _choose_pods(self, pods: Iterable[PodRow], used: int) -> int:
        """Choose the pods with series; return how many have none."""
        by_pod: defaultdict[tuple[str, str], int] = defaultdict(int)
        for each in pods:
            by_pod[each.namespace, each.pod] += 1
        self._shown_pods &= by_pod.keys()
        used += sum(by_pod[each] for each in self._shown_pods)
        for pod, count in sorted(by_pod.items()):
            if pod not in self._shown_pods and used + count <= self._series_max:
                self._shown_pods.add(pod)
                used += count
        return len(by_pod) - len(self._shown_pods)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, for the registry."""
        view = self._view
        rows = [row for row in view.rows if _account(row) in self._shown]
        rows += [
            Row("", OTHERS, "", cls, direction, size, packets)
            for (cls, direction), (size, packets) in sorted(self._others.items())
        ]
        labels = [(_label(row.job), _label(row.namespace), _label(row.team), row.cls, row.direction) for row in rows]
        yield family(BYTES, zip(labels, (row.bytes for row in rows), strict=True))
        yield family(PACKETS, zip(labels, (row.packets for row in rows), strict=True))
        yield family(
            POD_BYTES,
            (
                ((each.namespace, each.pod, _label(each.job), each.cls, each.direction), each.bytes)
                for each in view.pods
                if (each.namespace, each.pod) in self._shown_pods
            ),
        )
        yield family(NIC_BYTES, ((("in",), view.nic_in_bytes), (("out",), view.nic_out_bytes)))
        yield family(UNCOUNTED, (((), view.uncounted),))
        yield family(OVER, (((), self._over),))
        yield family(FAILURES, (((), view.failures),))
        yield family(LOST, (((), view.lost),))
        yield family(DAMAGED, (((), view.damaged),))
        if self._exporter_names:
            yield from _exporter_metrics(rows)


def _label(value: str) -> str:
    """Prometheus drops an empty label, and puts its own `job` and `namespace` there: those of the agent."""
    return value or NONE


def _account(row: Row) -> tuple[str, str, str]:
    return (row.namespace, row.job, row.team)


def _exporter_metrics(rows: Iterable[Row]) -> Iterator[Metric]:
    """The same as rules of the table mangle: that exporter puts the rest of a rule's comment into the label `rule`.

    Its names lack `_total`, so the type is unknown.
    """
    samples: defaultdict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in rows:
        chain = {"in": "input", "out": "output"}[row.direction] if row.job == HOST_JOB else "forward"
        rule = f"namespace={row.namespace} job={row.job} traffic={row.cls}-{row.direction}"
        size, packets = samples[chain, rule]
        samples[chain, rule] = (size + row.bytes, packets + row.packets)
    for at, (unit, what) in enumerate((("bytes", "Bytes"), ("packets", "Packets"))):
        metric = Metric(f"{EXPORTER_PREFIX}_{unit}", f"{what} of jobs, as rules of iptables.", "unknown")
        for (chain, rule), values in samples.items():
            labels: Mapping[str, str] = {"table": "mangle", "chain": chain, "rule": rule}
            metric.add_sample(metric.name, dict(labels), values[at])
        yield metric
