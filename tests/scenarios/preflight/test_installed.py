"""The chart with preflight, installed on a real control plane: it has the rights that it needs, and no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.deploy.conftest import ACCOUNT, SYSTEM, Cluster, helm_program, making_cluster  # noqa: F401
from tests.scenarios.deploy.rights import forbidden, granted, unused, used
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(420)]

CONFIG = {"backend": "cpu", "runAsUser": 0, "resources": {"cpu": "100m", "memory": "64Mi"}}
VALUES = (
    "--set=replicas=1,pools.policy=Deny,health.enabled=true",
    "--set=health.preflight.enabled=true,health.preflight.required=true,health.agent.nodeSelector.role=missing",
    f"--set-json=health.preflight.config={json.dumps(CONFIG)}",
)
NODE = "worker-0"
WAIT_S = 120.0


@pytest.fixture(scope="module")
def installed(
    control_plane_binaries: Path,
    helm_program: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    with making_cluster(control_plane_binaries, helm_program, tmp_path_factory.mktemp("chart"), workers=1) as cluster:
        cluster.install(*VALUES)
        yield cluster


def record(cluster: Cluster) -> dict[str, Any]:
    found = [each for each in cluster.get("preflights")["items"] if each["metadata"]["name"] == NODE]
    return dict(found[0]) if found else {}


def passed_since(cluster: Cluster, version: str = "") -> dict[str, Any]:
    """Wait for a record of a pass in the node's boot that is another one than this version."""
    boot = cluster.get("node", NODE)["status"]["nodeInfo"]["bootID"]

    def there() -> dict[str, Any]:
        found = record(cluster)
        own = bool(found) and found["spec"]["bootID"] == boot and found["metadata"]["resourceVersion"] != version
        return found if own else {}

    found: dict[str, Any] = eventually(f"node {NODE} is tested", there, WAIT_S)
    assert found["spec"]["passed"], found
    return found


def bound(cluster: Cluster, name: str) -> None:
    """A pod with all GPUs gets the node."""
    resources = {"limits": {"nvidia.com/gpu": "2"}}
    container = {"name": "c", "image": "none", "command": ["sleep", "600"], "resources": resources}
    spec = {"schedulerName": "muster", "containers": [container], "terminationGracePeriodSeconds": 0}
    meta = {"name": name, "namespace": "default"}
    cluster.plane.access.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    where = lambda: cluster.get("pod", name)["spec"].get("nodeName") == NODE  # noqa: E731
    eventually(f"pod {name} gets the node", where, WAIT_S)
    cluster.kubectl("delete", "pod", name, "--wait=true")


def test_node_is_tested_and_retested_for_a_foreign_record_and_every_right_is_needed(
    installed: Cluster,
) -> None:
    cluster = installed
    first = passed_since(cluster)
    taints = lambda: [each["key"] for each in cluster.get("node", NODE)["spec"].get("taints", ())]  # noqa: E731
    eventually("the taint goes", lambda: "muster.dev/preflight" not in taints(), WAIT_S)
    bound(cluster, "one")

    # As after a reboot.
    cluster.kubectl("patch", "preflight", NODE, "--type=merge", '--patch={"spec":{"bootID":"another"}}')
    second = passed_since(cluster, first["metadata"]["resourceVersion"])
    bound(cluster, "two")

    # As after another driver was loaded.
    versions = {"versions": {"agent_driver": "550"}}
    cluster.kubectl("patch", "preflight", NODE, "--type=merge", f"--patch={json.dumps({'spec': versions})}")
    node = cluster.get("node", NODE)
    cluster.plane.access.apply({"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": NODE}})
    status = {"nodeUID": node["metadata"]["uid"], "bootID": node["status"]["nodeInfo"]["bootID"], "driver": "570"}
    patch = json.dumps({"status": {**status, "time": "2026-01-01T00:00:00Z"}})
    cluster.kubectl("patch", "nodehealth", NODE, "--subresource=status", "--type=merge", f"--patch={patch}")
    retested = lambda: record(cluster)["spec"].get("versions", {}).get("agent_driver") == "570"  # noqa: E731
    eventually("the record is revoked and the node tested again", retested, WAIT_S)
    third = record(cluster)
    assert third["metadata"]["uid"] == second["metadata"]["uid"]
    assert third["spec"]["passed"]
    assert "revokedTime" not in third["spec"]
    bound(cluster, "three")

    assert forbidden(cluster, ACCOUNT) == set()
    entries = used(cluster, ACCOUNT)
    assert unused(granted(cluster)["muster-preflight"], entries) == []
    assert any("fieldManager=muster-preflight" in each.request_uri for each in entries)
    left = lambda: cluster.get("pods", f"--namespace={SYSTEM}", "--selector=muster.dev/preflight")["items"]  # noqa: E731
    eventually("no pod of a test is left", lambda: not left())
