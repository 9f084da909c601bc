"""Issue 11.6: docs/reference/metrics.md holds what the real processes export, no more and no less."""

from __future__ import annotations

import os
import re
import sys
import urllib.request
import uuid
from collections import defaultdict
from pathlib import Path

import pytest

from muster.cli.reference import metrics as metricsreference
from muster.controlplane.children import Child
from muster.controlplane.ports import free_port
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from tests.support.apiserver import ApiServer
from tests.support.namespaces import install_kinds, make_namespace
from tests.support.waiting import until

pytestmark = pytest.mark.slow

PARTS = (
    "--teams",
    "--balloons",
    "--joins",
    "--scaling",
    "--health",
    "--preflight",
    "--break-glass",
    "--uplink-listen=127.0.0.1:0",
)
_SAMPLE = re.compile(r"^(muster_\w+)(?:\{(.*)\})? \S+$", re.MULTILINE)


def families(text: str) -> dict[str, set[str]]:
    """The metrics of a page that are ours, with the labels that their samples have."""
    found: dict[str, set[str]] = defaultdict(set)
    kinds = dict(re.findall(r"^# TYPE (muster_\w+) (\w+)$", text, re.MULTILINE))
    for name in kinds:
        if not name.endswith("_created"):  # prometheus_client's own, beside counters and histograms
            found[name] = set()
    for name, labels in _SAMPLE.findall(text):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        family = base if kinds.get(base) == "histogram" else name
        if not name.endswith("_created"):
            found[family] |= set(re.findall(r'(\w+)="', labels)) - {"le"}
    return dict(found)


def test_the_page_is_what_the_code_says() -> None:
    assert metricsreference.main(["--check"]) == 0
    for process, parts in metricsreference.by_process().items():
        for metric in (metric for metrics in parts.values() for metric in metrics):
            assert metric.meaning.endswith("."), (process, metric)


async def test_the_page_is_what_the_processes_export(embedded_server: ApiServer, tmp_path: Path) -> None:
    namespace = f"m-{uuid.uuid4().hex[:8]}"
    async with Client(load_config(embedded_server.kubeconfig)) as client:
        await install_kinds(client)
        await make_namespace(client, namespace)
    common = (f"--kubeconfig={embedded_server.kubeconfig}",)
    programs = {
        "`muster controller`": ("muster.cli.main", "controller", *PARTS, *common, f"--namespace={namespace}"),
        "`muster admission`": ("muster.cli.main", "admission", *common, f"--namespace={namespace}"),
        "`muster readcache`": ("muster.cli.main", "readcache", *common, "--listen=127.0.0.1:0", "--kind=nodes"),
        "`muster.agent`": ("muster.agent", "--node=missing-node", f"--root={tmp_path}", *common),
        "`muster.data.cache`": (
            "muster.data.cache",
            "--node=n",
            f"--state-dir={tmp_path}/b",
            f"--socket-dir={tmp_path}",
        ),
    }
    children = {}
    try:
        for process, (module, *arguments) in programs.items():
            port = free_port()
            option = {
                "muster.agent": f"--listen=127.0.0.1:{port}",
                "muster.data.cache": f"--metrics-port={port}",
            }.get(module, f"--metrics-listen=127.0.0.1:{port}")
            command = [sys.executable, "-m", module, *arguments, option]
            children[process] = Child(command, tmp_path / f"{len(children)}.log", dict(os.environ)), port
        documented = metricsreference.by_process()
        for process, (child, port) in children.items():
            metrics = {metric.name: set(metric.labels) for part in documented[process].values() for metric in part}
            # What a process has not done yet has no sample, and the agent writes no TYPE lines that would name it.
            certain = {"muster_agent_findings"} if process == "`muster.agent`" else set(metrics)

            def exported(port: int = port, certain: set[str] = certain) -> dict[str, set[str]]:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                    found = families(answer.read().decode())
                return found if certain <= found.keys() else {}

            found = await until(f"{process} exports every metric: {child.log}", exported, ignoring=(OSError,))
            assert found.keys() <= metrics.keys(), process
            assert {name: labels for name, labels in found.items() if labels and labels != metrics[name]} == {}
    finally:
        for child, _ in children.values():
            child.stop(grace_s=2)
