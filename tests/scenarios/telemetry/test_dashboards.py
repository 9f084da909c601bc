"""Issue 17.C: each query of each panel has figures of real processes in a real Prometheus; all metrics are known."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from muster.cli.reference import metrics as reference
from muster.telemetry.dashboards.boards.all import DASHBOARDS
from muster.telemetry.dashboards.dashboard import Dashboard, Variable
from muster.telemetry.dashboards.expressions import or_zero
from muster.telemetry.dashboards.panel import Panel, Query
from tests.support.anyserver import BY_METRICS
from tests.support.everyfault import everything_happens
from tests.support.everymetric import EveryMetric, every_metric
from tests.support.ownserver import OwnServer
from tests.support.waiting import LONG_TIMEOUT_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), BY_METRICS]

NODES: Final = 7_500
REPLICAS: Final = 3
SCRAPES: Final = 360
"""Of 3 h at 30 s, which a dashboard shows."""
SAMPLES_MAX: Final = 20_000_000
"""Samples that a query may read. Prometheus refuses more than 50,000,000 (--query.max-samples)."""
PER_NODE: Final = ("agent", "network", "cache")
"""Processes that run on each node."""
VARIABLES: Final = {"$__rate_interval": "15s", "$cluster": ".*", "$namespace": ".*", "$jobname": ".*"}


@pytest.fixture(scope="module")
def scene(plane: OwnServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EveryMetric]:
    with every_metric(tmp_path_factory.mktemp("scene"), plane) as made:
        everything_happens(made)
        yield made


def filled(scene: EveryMetric, expr: str) -> str:
    """The expression, as Grafana sends it with all values of the variables, for the time since the scene began."""
    for name, value in {**VARIABLES, "$__range": f"{time.time() - scene.began_s:.0f}s"}.items():
        expr = expr.replace(name, value)
    return expr


def queries() -> Iterator[tuple[Dashboard, Panel, Query]]:
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels():
            for query in panel.queries:
                yield dashboard, panel, query


def figures(scene: EveryMetric, panel: Panel, query: Query) -> Iterator[bool]:
    """Whether each sample is a number; of now, or with a time series since the scene began."""
    if panel.kind == "timeseries":
        now = time.time()
        period = {"start": str(scene.began_s), "end": str(now), "step": "1"}
        found = scene.server.get("/api/v1/query_range", query=filled(scene, query.expr), **period)["result"]
        yield from (math.isfinite(float(value)) for series in found for _, value in series["values"])
    else:
        yield from (math.isfinite(float(sample["value"][1])) for sample in scene.query(filled(scene, query.expr)))


def test_no_panel_is_empty(scene: EveryMetric) -> None:
    """A quantile without observations is not a number, which Grafana shows as a gap.

    What happened has figures when it is over: a fault's time to useful work only once the job's ranks work again.
    """
    empty = list(queries())

    def filled_in() -> bool:
        empty[:] = [each for each in empty if not any(figures(scene, *each[1:]))]
        return not empty

    with contextlib.suppress(AssertionError):
        eventually("each panel has figures", filled_in, LONG_TIMEOUT_S)
    texts = [f"{dashboard.title} / {panel.title} / {query.legend}: {query.expr}" for dashboard, panel, query in empty]
    assert not texts, "\n".join(texts)


def until_nothing_is_missing(what: str, missing: Callable[[], list[str]]) -> None:
    """Wait until the list is empty. What happens to the cluster has figures a moment later, in no fixed order.

    Raises:
        AssertionError: at the deadline, with the list.
    """
    last: list[str] = []

    def complete() -> bool:
        last[:] = missing()
        return not last

    try:
        eventually(what, complete, LONG_TIMEOUT_S)
    except AssertionError:
        raise AssertionError("\n".join(last)) from None


def test_every_label_of_a_legend_is_there(scene: EveryMetric) -> None:
    """A name in {{...}} that no series has is shown as it is, or as nothing."""
    waiting = [(f"{dashboard.title} / {panel.title}", query) for dashboard, panel, query in queries()]

    def missing() -> list[str]:
        found = [(title, query, without_label(scene, query)) for title, query in waiting]
        waiting[:] = [(title, query) for title, query, text in found if text]
        return [f"{title}: {text}" for title, _, text in found if text]

    until_nothing_is_missing("each label of a legend", missing)


def without_label(scene: EveryMetric, query: Query) -> str:
    """The labels of the legend that no series has, and the first series; "" if one has them all."""
    labels = set(re.findall(r"\{\{(\w+)\}\}", query.legend)) - {"cluster"}
    found = [sample["metric"] for sample in scene.query(filled(scene, query.expr))]
    zero = found == [{}] and query.expr.endswith(or_zero(""))
    return "" if zero or any(labels <= metric.keys() for metric in found) else f"{sorted(labels)} in {found[:2]}"


def test_variables_offer_values(scene: EveryMetric) -> None:
    """`cluster` has none here, since one Prometheus has one cluster; then the variable selects series without it."""
    expected = {"cluster": [], "namespace": ["muster-system", "shadow"]}

    def missing() -> list[str]:
        found = [(each, offered(scene, each)) for dashboard in DASHBOARDS for each in dashboard.variables]
        return [f"{each.query}: {values}" for each, values in found if values != expected.get(each.name, [".*"])]

    until_nothing_is_missing("the values of the variables", missing)


def offered(scene: EveryMetric, variable: Variable) -> list[str]:
    asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable.query)
    if asked is None:
        return [".*"]
    found: list[str] = scene.server.get(f"/api/v1/label/{asked[2]}/values", match=filled(scene, asked[1]))
    return found


def test_every_documented_metric_is_exported_and_every_exported_one_is_documented(scene: EveryMetric) -> None:
    documented = {
        metric.name: metric.kind
        for parts in reference.by_process().values()
        for metrics in parts.values()
        for metric in metrics
    }

    def exported() -> set[str]:
        return {_family(name, documented) for name in scene.exported()}

    until_nothing_is_missing("each documented metric", lambda: sorted(documented.keys() - exported()))
    found = exported()
    own = {name for name in found if name.endswith("_created")}  # of prometheus_client
    assert found - own - documented.keys() == set()


def _family(name: str, documented: dict[str, str]) -> str:
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return base if documented.get(base) == "histogram" else name


def test_hangup_ends_no_process(scene: EveryMetric) -> None:
    """No process of ours needs SIGHUP to read its files again, and all go on after it."""
    processes = scene.processes
    children = {each.name: each.child for each in (*processes.components.values(), *processes.nodes.values())}
    running = {name: child for name, child in children.items() if child.exit_code is None}
    assert {"controller-0", "admission-0", "readcache-0", "guard-0", "agent-0", "cache-0"} <= running.keys()
    for child in running.values():
        os.kill(child.pid, signal.SIGHUP)
    for name, child in running.items():
        eventually(
            f"{name} logs the signal",
            lambda name=name, child=child: (
                child.exit_code is not None or "SIGHUP is ignored" in processes.log(name).read_text()
            ),
        )
    assert {name: child.exit_code for name, child in running.items()} == dict.fromkeys(running)


def test_queries_stay_below_the_limit_of_prometheus_on_7500_nodes(scene: EveryMetric) -> None:
    """The series that each selector touches here, as often as there are such processes on a large cluster."""
    targets = {each.target: each.job for each in scene.processes.components.values()}
    here = Counter(targets.values())
    dear = []
    for dashboard, panel, query in queries():
        series = sum(
            NODES / here[job] if (job := targets[each["instance"]]) in PER_NODE else REPLICAS
            for selector in re.findall(r"\w+\{[^}]*\}", filled(scene, query.expr))
            for each in scene.server.get("/api/v1/series", match=selector)
        )
        samples = series * (SCRAPES if panel.kind == "timeseries" or "$__range" in query.expr else 10)
        if samples > SAMPLES_MAX:
            dear.append(f"{dashboard.title} / {panel.title} / {query.legend}: {samples:,.0f} samples")
    assert not dear, "\n".join(dear)
