"""Issue 17: alerts about faults that a whole cluster cannot be made to have in a short time."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from muster.kube.health import Progress, health_app, serve
from tests.scenarios.telemetry.parts import Parts
from tests.scenarios.telemetry.rules import TIGHT, Expected, firing, write_rules
from tests.support import prometheus
from tests.support.waiting import LONG_TIMEOUT_S, until
from tests.unit.kube.fakeapi import fake_api

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_TIGHT: Final = {"informerStaleSeconds": 3.0, "reconcileErrorsShare": 0.001, "agentsFailingShare": 0.0}
_AFTER_ALL: Final = "MusterTargetsMissing"


@pytest.mark.fires(
    "MusterAddressProblems",
    "MusterAdmissionFails",
    "MusterAgentChecksFail",
    "MusterBlockOverdue",
    "MusterCertificateExpires",
    "MusterLoopStalled",
    "MusterNodeAddressesShort",
    "MusterPlacementsFail",
    "MusterQueueStuck",
    "MusterReadCacheDiffers",
    "MusterReconcileErrors",
    "MusterWatchStale",
    _AFTER_ALL,
)
async def test_each_fault_of_a_component_fires_its_alert(tmp_path: Path, expected: Expected) -> None:
    faults = expected.names - {_AFTER_ALL}
    rules, folder = write_rules(tmp_path, _TIGHT), tmp_path / "prometheus"
    async with fake_api() as api, AsyncExitStack() as stack:
        parts = Parts(api, tmp_path / "addresses")
        port = await stack.enter_async_context(serve(health_app(Progress(), registry=parts.registry)))
        prometheus.write_config(folder, {"agent": [f"127.0.0.1:{port}"]}, 0.5, rules)
        running = prometheus.running(folder, ["--query.lookback-delta=3s"])
        server = await asyncio.to_thread(running.__enter__)
        stack.push_async_callback(asyncio.to_thread, running.__exit__, None, None, None)
        await stack.enter_async_context(parts.running())

        def evaluated() -> bool:
            return bool(server.get("/api/v1/query", query="count_over_time(up[1m]) > 10")["result"])

        await until("rules have been evaluated", lambda: asyncio.to_thread(evaluated), LONG_TIMEOUT_S)

        def quiet() -> bool:
            return firing(server, TIGHT).isdisjoint(faults)

        await until(
            "no rule fires", lambda: asyncio.to_thread(quiet)
        )  # a pause of a busy machine may have been a fault
        await parts.break_all()
        await asyncio.to_thread(expected.until_firing, server, *faults)
        assert _AFTER_ALL not in await asyncio.to_thread(firing, server, TIGHT, job="agent")
        prometheus.write_config(folder, {}, 0.5, rules)
        server.process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(expected.until_firing, server, _AFTER_ALL, job="agent")
