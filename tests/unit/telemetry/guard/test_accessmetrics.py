"""Issue 17 A3: metrics of callers and budgets have a bounded number of series."""

from __future__ import annotations

from pathlib import Path

import pytest
from multidict import CIMultiDict
from prometheus_client import CollectorRegistry

from muster.telemetry.guard.accessmetrics import ACCESS_METRICS, AccessMetrics
from muster.telemetry.guard.budgets.budgets import Budgets, Grant
from muster.telemetry.guard.callers.caller import NotIdentified, Peer
from muster.telemetry.guard.callers.callers import Callers
from muster.telemetry.guard.configfile import ConfigFile
from muster.telemetry.guard.dearest.asked import Asked
from muster.telemetry.guard.dearest.config import DearestConfig
from muster.telemetry.guard.dearest.dearest import Dearest
from muster.telemetry.guard.dearest.source import Source
from muster.telemetry.guard.serving.upstreamfiles import UpstreamFiles

TEXT = """
upstream: {url: http://prometheus:9090}
groups: {people: {eachCaller: {concurrentCost: 50}}}
inAll: {concurrentCost: 100000}
callers: {peers: [{name: grafana, addresses: [10.0.0.0/8], group: people}]}
"""


async def test_many_users_and_forged_names_make_few_series(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    path.write_text(TEXT)
    file = ConfigFile(path)
    callers, budgets = Callers(file.loaded.config), Budgets(file.loaded.config)
    dearest, registry = Dearest(DearestConfig()), CollectorRegistry()
    registry.register(AccessMetrics(callers, budgets, dearest, file, UpstreamFiles(file.loaded.config.upstream)))
    labels = set()
    for n in range(300):
        headers = CIMultiDict({"X-Grafana-User": f"user-{n}"})
        caller = await callers.identify(Peer("10.0.0.1"), headers)
        labels.add(caller.label)
        assert isinstance(await budgets.take(caller, 20), Grant)
        await budgets.take(caller, 60)
        dearest.record(Asked(caller, "query", f"up{n}", 0, 0, 1, Source(f"uid-{n}"), "sent"), 0.0)
        with pytest.raises(NotIdentified):
            await callers.identify(Peer("192.0.2.1"), headers)
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    assert len(samples) <= 20
    assert labels == {"grafana/*"}
    value = registry.get_sample_value
    assert value("muster_guard_running_cost", {"group": "people"}) == 300 * 20
    assert value("muster_guard_minute_cost", {"group": "people"}) == 300 * 20
    assert value("muster_guard_callers") == 300
    assert value("muster_guard_dearest_queries") == 300
    assert value("muster_guard_running_cost_limit") == 100000
    assert value("muster_guard_unidentified_requests_total", {"reason": "forged_header"}) == 300
    over = {"group": "people", "whose": "caller", "which": "concurrentCost"}
    assert value("muster_guard_over_budget_total", over) == 300


async def test_state_of_the_configuration_is_a_metric(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    path.write_text(TEXT + "dryRun: true\n")
    file, registry = ConfigFile(path), CollectorRegistry()
    config = file.loaded.config
    parts = (Callers(config), Budgets(config), Dearest(DearestConfig()), file, UpstreamFiles(config.upstream))
    registry.register(AccessMetrics(*parts))
    assert registry.get_sample_value("muster_guard_dry_run") == 1
    path.write_text("{")
    file.check(lambda _: None)
    assert registry.get_sample_value("muster_guard_config_problem") == 1
    path.write_text(TEXT)
    file.check(lambda _: None)
    assert registry.get_sample_value("muster_guard_config_problem") == 0
    assert registry.get_sample_value("muster_guard_config_reloads_total") == 1
    assert registry.get_sample_value("muster_guard_dry_run") == 0
    names = {metric.name for metric in registry.collect()}
    assert names == {each.name.removesuffix("_total") for each in ACCESS_METRICS}
