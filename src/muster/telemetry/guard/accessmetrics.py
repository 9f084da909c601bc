"""Metrics of callers, budgets, the configuration and the files of `upstream`. No label has a value from a request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from muster.kube.described import Described, family
from muster.telemetry.guard.budgets.budgets import Budgets
from muster.telemetry.guard.callers.callers import Callers
from muster.telemetry.guard.configfile import ConfigFile
from muster.telemetry.guard.dearest.dearest import Dearest
from muster.telemetry.guard.serving.upstreamfiles import UpstreamFiles

UNIDENTIFIED: Final = Described(
    "muster_guard_unidentified_requests_total",
    "counter",
    ("reason",),
    "Requests that were refused because their caller was not known, by reason.",
)
OVER_BUDGET: Final = Described(
    "muster_guard_over_budget_total",
    "counter",
    ("group", "whose", "which"),
    "Requests that did not fit in a budget, by the group of the caller, whose budget and which limit.",
)
RUNNING_COST: Final = Described(
    "muster_guard_running_cost", "gauge", ("group",), "Cost of the requests that run, by group."
)
RUNNING: Final = Described("muster_guard_running_requests", "gauge", ("group",), "Requests that run, by group.")
RECENT_COST: Final = Described(
    "muster_guard_minute_cost", "gauge", ("group",), "Cost of the requests that began within the last minute, by group."
)
COST_LIMIT: Final = Described(
    "muster_guard_running_cost_limit", "gauge", (), "Greatest cost of all requests that may run at once."
)
WAITING: Final = Described("muster_guard_waiting_requests", "gauge", (), "Requests that wait for a budget.")
CALLERS: Final = Described("muster_guard_callers", "gauge", (), "Callers whose use of budgets is kept.")
QUERIES: Final = Described("muster_guard_dearest_queries", "gauge", (), "Queries in the log of the dearest.")
CONFIG_PROBLEM: Final = Described(
    "muster_guard_config_problem",
    "gauge",
    (),
    "1 if the configuration in the file cannot be used and an older one stays in use, otherwise 0.",
)
CONFIG_RELOADS: Final = Described(
    "muster_guard_config_reloads_total", "counter", (), "How often a new configuration came into use."
)
DRY_RUN: Final = Described("muster_guard_dry_run", "gauge", (), "1 if the guard refuses nothing for its cost.")
FILE_PROBLEM: Final = Described(
    "muster_guard_upstream_files_problem",
    "gauge",
    ("files",),
    "1 if the token or the certificates for Prometheus cannot be used and older ones stay in use, otherwise 0.",
)
FILE_RELOADS: Final = Described(
    "muster_guard_upstream_files_reloads_total",
    "counter",
    ("files",),
    "How often a new token or new certificates for Prometheus came into use.",
)
ACCESS_METRICS: Final = (
    UNIDENTIFIED,
    OVER_BUDGET,
    RUNNING_COST,
    RUNNING,
    RECENT_COST,
    COST_LIMIT,
    WAITING,
    CALLERS,
    QUERIES,
    CONFIG_PROBLEM,
    CONFIG_RELOADS,
    DRY_RUN,
    FILE_PROBLEM,
    FILE_RELOADS,
)


class AccessMetrics(Collector):
    """Reads the parts when they are scraped.

    Args:
        callers: who was refused.
        budgets: what groups use.
        dearest: the log of the dearest queries.
        file: the configuration.
        upstream: token and certificates for Prometheus.
    """

    def __init__(
        self, callers: Callers, budgets: Budgets, dearest: Dearest, file: ConfigFile, upstream: UpstreamFiles
    ) -> None:
        self._callers = callers
        self._budgets = budgets
        self._dearest = dearest
        self._file = file
        self._upstream = upstream

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        yield family(UNIDENTIFIED, (((reason,), float(n)) for reason, n in self._callers.refused.items()))
        yield family(OVER_BUDGET, ((labels, float(n)) for labels, n in self._budgets.refused.items()))
        used = self._budgets.used()
        yield family(RUNNING_COST, (((group,), float(each.running)) for group, each in used.items()))
        yield family(RUNNING, (((group,), float(each.running_requests)) for group, each in used.items()))
        yield family(RECENT_COST, (((group,), float(each.recent)) for group, each in used.items()))
        limit = self._file.loaded.config.budget_in_all.concurrent_cost
        yield family(COST_LIMIT, [((), float(limit or 0.0))])
        for metric, value in (
            (WAITING, self._budgets.waiting),
            (CALLERS, self._budgets.callers),
            (QUERIES, len(self._dearest)),
            (CONFIG_PROBLEM, bool(self._file.problem)),
            (CONFIG_RELOADS, self._file.reloads),
            (DRY_RUN, self._file.loaded.config.dry_run),
        ):
            yield family(metric, [((), float(value))])
        states = self._upstream.state
        yield family(FILE_PROBLEM, (((kind,), float(state.problem)) for kind, state in states.items()))
        yield family(FILE_RELOADS, (((kind,), float(state.reloads)) for kind, state in states.items()))
