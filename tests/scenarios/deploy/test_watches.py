"""Issue 12.2: a controller with every part on holds one watch per kind, besides those with a selector."""

from __future__ import annotations

import asyncio
import os
import sys
import urllib.request
import uuid
from pathlib import Path

import pytest

from muster.controlplane.children import Child
from muster.controlplane.ports import free_port
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from tests.support.apiserver import ApiServer
from tests.support.namespaces import install_kinds, make_namespace
from tests.support.waiting import until
from tests.support.watchproxy import WatchProxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PARTS = ("--teams", "--balloons", "--joins", "--scaling", "--health", "--preflight", "--preflight-required")
LOOPS = {"trainingjobs", "scheduler", "teams", "joins", "scaling", "remediation", "preflight", "uplink"}
SHARED = ("pods", "nodes", "placements", "trainingjobs", "preflights", "nodehealths", "noderemediations", "namespaces")
CONFIGS = {
    "muster-teams": {"teams.yaml": "allocations: []\n"},
    "muster-scaling": {
        "scaling.yaml": "pools: [{name: none, provider: external, group: g, min: 0, max: 1, price: 1, "
        "template: {labels: {muster.dev/pool: none-such}, capacity: {cpu: 1, memory: 1Gi}}}]\n"
    },
}


def one_each(proxy: WatchProxy) -> bool:
    """Whether no watch is open twice, and each shared kind has one without a selector."""
    whole = {path.rpartition("/")[2]: count for (path, *by), count in proxy.open.items() if not any(by)}
    return max(proxy.open.values()) == 1 and all(whole.get(kind) == 1 for kind in SHARED)


async def test_a_controller_with_every_part_on_holds_one_watch_per_kind(api_server: ApiServer, tmp_path: Path) -> None:
    config = load_config(api_server.kubeconfig)
    namespace, port = f"m-{uuid.uuid4().hex[:8]}", free_port()
    async with Client(config) as client:
        await install_kinds(client)
        await make_namespace(client, namespace)
        for name, data in CONFIGS.items():
            await client.create(ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace), data=data))
    proxy = WatchProxy(config)
    loops = LOOPS if api_server.kind == "embedded" else {*LOOPS, "balloons"}  # the embedded server has no Deployments
    async with proxy.serving(tmp_path) as kubeconfig:
        command = [sys.executable, "-m", "muster.cli.main", "controller", *PARTS, f"--kubeconfig={kubeconfig}"]
        command += [f"--namespace={namespace}", f"--metrics-listen=127.0.0.1:{port}", "--uplink-listen=127.0.0.1:0"]
        controller = Child(command, tmp_path / "controller.log", dict(os.environ))
        try:

            def silent() -> set[str]:
                """The loops that have no complete caches yet."""
                assert controller.exit_code is None, controller.log_tail()
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                    text = answer.read().decode()
                return {loop for loop in loops if f'muster_progress_age_seconds{{loop="{loop}"}}' not in text}

            async def all_plan() -> bool:
                return not await asyncio.to_thread(silent)

            await until(f"every part plans: {controller.log}", all_plan, ignoring=(OSError,))
            # A watch that its client has just left may be open for a moment.
            # A cache is complete before its watch begins.
            await until(f"no watch is open twice: {proxy.open}", lambda: one_each(proxy))
        finally:
            controller.stop(grace_s=5)
