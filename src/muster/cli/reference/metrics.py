"""Writes docs/reference/metrics.md, the metrics of all processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from muster.admission.metrics import AdmissionMetrics
from muster.agent.metrics import METRICS as AGENT_METRICS
from muster.api.generated import write_or_check
from muster.data.cache.metrics import METRICS as CACHE_METRICS
from muster.doctor.block.metrics import block_metrics
from muster.fleet.balloons.metrics import balloon_metrics
from muster.fleet.joins.metrics import join_metrics
from muster.fleet.preflight.metrics import preflight_metrics
from muster.fleet.remediation.metrics import remediation_metrics
from muster.fleet.scaling.metrics import scaling_metrics
from muster.kube.metrics import kube_metrics
from muster.kube.progress import Progress
from muster.network.addresses.metrics import METRICS as ADDRESS_METRICS
from muster.network.agent.metrics import METRICS as NETWORK_METRICS
from muster.network.cni.metrics import CniMetrics
from muster.network.shaping.metrics import ShapingMetrics
from muster.network.traffic.exporter import METRICS as TRAFFIC_METRICS
from muster.network.tuning.metrics import METRICS as TUNING_METRICS
from muster.network.uplink.metrics import uplink_metrics
from muster.readcache.metrics import METRICS as READCACHE_METRICS
from muster.readcache.metrics import SERVER_METRICS
from muster.scheduler.metrics import scheduler_metrics
from muster.teams.metrics import teams_metrics
from muster.telemetry.guard.accessmetrics import ACCESS_METRICS as GUARD_ACCESS_METRICS
from muster.telemetry.guard.metrics import SERVER_METRICS as GUARD_SERVER_METRICS
from muster.telemetry.guard.metrics import GuardMetrics
from muster.trainingjobs.metrics import training_job_metrics

PAGE: Final = Path(__file__).resolve().parents[4] / "docs/reference/metrics.md"
_HOW: Final = "python -m muster.cli.reference.metrics"

_HEAD: Final = f"""# Metrics

<!-- Written by {_HOW}; change the metrics.py of a domain instead. -->

Each process serves them at `/metrics` in the Prometheus text format. The controller uses port 9443 and the
webhook 9444; both are ports named `metrics` of their Services. The agent uses port 9446 of its node, the
network agent uses port 9451 of its node, and the data cache uses port 9448 of its pod. The read cache uses
port 9449, the read caches of nodes use port 9450 of their node, and the guard uses port 9452. On a cluster of
`muster up` only the controller serves them ([where](../embedded.md#metrics)). The chart's value
`metrics.serviceMonitor.enabled` makes monitors for the Prometheus Operator. Every replica exports its own
process. Metrics that only the leader knows are missing or outdated on a standby, so aggregate gauges with
`max`.

prometheus_client adds `process_*` and `python_*` of the process in the controller and the webhook. A histogram has
the samples `_bucket`, `_sum` and `_count`.
"""


class Metric(NamedTuple):
    """One metric family."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def shared() -> Callable[[CollectorRegistry], Any]:
    """Returns the metrics of every process with a client of the API server."""
    return lambda registry: (kube_metrics(registry), Progress(registry=registry))


SECTIONS: Final[dict[str, dict[str, Callable[[CollectorRegistry], Any]]]] = {
    "`muster controller`": {
        "Requests, informers, events and loops": shared(),
        "Training jobs": training_job_metrics,
        "Scheduler": scheduler_metrics,
        "Teams (`teams.enabled`)": teams_metrics,
        "Balloons (`fleet.balloons.enabled`)": balloon_metrics,
        "Joins (`fleet.joins.enabled`)": join_metrics,
        "Scaling (`fleet.scaling.enabled`)": scaling_metrics,
        "Preflight (`health.preflight.enabled`)": preflight_metrics,
        "Remediation (`health.enabled`)": remediation_metrics,
        "The uplink's budget (`network.config.uplink.enabled`)": uplink_metrics,
        "Blocked accounts (`doctor.breakGlass.enabled`)": block_metrics,
    },
    "`muster admission`": {"The webhook": AdmissionMetrics, "Requests, informers, events and loops": shared()},
}
"""By process and part: the function that registers its metrics."""

AGENT: Final = "`muster.agent`"
READCACHE: Final = "`muster readcache`"
GUARD: Final = "`muster guard`"
CACHE: Final = "`muster.data.cache`"
NETWORK: Final = "`muster network agent`"


def families(make: Callable[[CollectorRegistry], Any]) -> Iterator[Metric]:
    """The metrics that `make` registers, by name."""
    registry = CollectorRegistry()
    kept = make(registry)
    found = {each for each in registry._collector_to_names if isinstance(each, MetricWrapperBase)}
    for collector in sorted(found, key=lambda each: each._name):
        (family,) = collector.describe()
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield Metric(name, family.type, tuple(collector._labelnames), family.documentation)
    del kept


def by_process() -> dict[str, dict[str, list[Metric]]]:
    """Every metric: {process: {part: metrics}}."""
    found = {
        process: {part: list(families(make)) for part, make in parts.items()} for process, parts in SECTIONS.items()
    }
    agent = [Metric(each.name, each.kind, each.labels, each.meaning) for each in AGENT_METRICS]
    cache = [Metric(each.name, each.kind, each.labels, each.meaning) for each in CACHE_METRICS]
    cache += families(lambda registry: Progress(registry=registry))
    readcache = [
        Metric(each.name, each.kind, each.labels, each.meaning) for each in (*SERVER_METRICS, *READCACHE_METRICS)
    ]
    return found | {
        READCACHE: {
            "Clients and followed kinds (`readCache.enabled`)": readcache,
            "Requests, informers, events and loops": list(families(shared())),
        },
        GUARD: {
            "Requests of clients (`telemetry.guard.enabled`)": [
                *families(GuardMetrics),
                *(Metric(each.name, each.kind, each.labels, each.meaning) for each in GUARD_SERVER_METRICS),
            ],
            "Callers, budgets and configuration of the guard": [
                Metric(each.name, each.kind, each.labels, each.meaning) for each in GUARD_ACCESS_METRICS
            ],
            "Loops": list(families(lambda registry: Progress(registry=registry))),
        },
        AGENT: {"The agent of a node": agent},
        NETWORK: {
            "The network agent of a node (`network.enabled`)": [
                Metric(each.name, each.kind, each.labels, each.meaning) for each in NETWORK_METRICS
            ],
            "Traffic (`network.config.traffic.enabled`)": [
                Metric(each.name, each.kind, each.labels, each.meaning) for each in TRAFFIC_METRICS
            ],
            "Addresses of pods (`network.config.pods.enabled`)": [
                Metric(each.name, each.kind, each.labels, each.meaning) for each in ADDRESS_METRICS
            ],
            "The CNI plugin (`network.config.pods.enabled`)": list(families(CniMetrics)),
            "Limits on the uplink (`network.config.shaping.enabled`)": list(families(ShapingMetrics)),
            "Kernel tables (`network.config.tuning.enabled`)": [
                Metric(each.name, each.kind, each.labels, each.meaning) for each in TUNING_METRICS
            ],
            "Requests, informers, events and loops": list(families(shared())),
        },
        CACHE: {"The data cache of a node (`data.cache.enabled`)": cache},
    }


_UNITS: Final = {
    "timestamp_seconds": "Unix seconds",
    "seconds": "seconds",
    "milliseconds": "milliseconds",
    "bytes": "bytes",
    "ratio": "share of 1",
    "share": "share of 1",
}


def unit(metric: Metric) -> str:
    """Return the unit at the end of a metric's name. A name without a unit counts objects."""
    name = metric.name.removesuffix("_total")
    return next((words for ending, words in _UNITS.items() if name.endswith(f"_{ending}")), "number")


def page() -> str:
    """The page as Markdown."""
    lines = [_HEAD]
    for process, parts in by_process().items():
        lines.append(f"\n## {process}\n")
        for part, metrics in parts.items():
            lines.append(f"\n### {part}\n\n| metric | type | labels | unit | meaning |\n|---|---|---|---|---|\n")
            for metric in metrics:
                labels = ", ".join(f"`{label}`" for label in metric.labels)
                lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {unit(metric)} | {metric.meaning} |\n")
    return "".join(lines)


def main(arguments: list[str]) -> int:
    """Write the page, or with --check compare it; returns the exit status."""
    return write_or_check(arguments, lambda: {PAGE: page()}, _HOW, "the code says")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
