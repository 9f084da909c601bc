"""Issue 17: each alert about a cluster fires with its fault in real processes, and stays quiet otherwise."""

from __future__ import annotations

import contextlib
import http.server
import os
import sys
import textwrap
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest

from tests.scenarios.telemetry.rules import AS_SHIPPED, TIGHT, Expected, firing, write_rules
from tests.support.anyserver import BY_METRICS
from tests.support.everyconfig import GPUS, JOBS_PATH, MERGE, UPLINK
from tests.support.everyfault import (
    data_is_read,
    guard_answers,
    large_shard_is_kept,
    objects_are_read,
    rank_dies,
    read_cache_is_read,
)
from tests.support.everymetric import EveryMetric, every_metric
from tests.support.ownserver import OwnServer
from tests.support.waiting import LONG_TIMEOUT_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), BY_METRICS]

_UNSAVED: Final = """
    import time
    import muster
    from muster.sdk import reports
    muster.report(step=1)
    while True:
        time.sleep(1)  # a later report replaces one that was not sent yet
        reports.problem(1, "c", "no space left on device")
"""
_LATE: Final = tuple(f"late-{number}" for number in range(1, 12))


@pytest.fixture(scope="module")
def scene(plane: OwnServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EveryMetric]:
    folder = tmp_path_factory.mktemp("alerts")
    (folder / "scene").mkdir()
    with every_metric(folder / "scene", plane, rules=write_rules(folder)) as made:
        made.jobs.train("steady")
        yield made


def submit(scene: EveryMetric, name: str, program: str, **spec: Any) -> None:
    folder = scene.folder / name
    folder.mkdir()
    (folder / "program.py").write_text(textwrap.dedent(program))
    command = [sys.executable, str(folder / "program.py")]
    scene.jobs.submit(name, 1, command=command, checkpoint={"path": str(folder / "c")}, **spec)


def test_a_healthy_cluster_is_quiet(scene: EveryMetric) -> None:
    scene.until("muster_trainingjob_members > 0")
    scene.until("muster_network_tuning_settings == 3 and on () count_over_time(up[1m]) > 6")
    assert firing(scene.server, AS_SHIPPED) == set()
    # A process that a busy machine did not run for a second is a fault that rules with short waits see.
    eventually("no rule with short waits fires", lambda: firing(scene.server, TIGHT) == set())


@pytest.mark.fires(
    "MusterCheckpointsNotSaved",
    "MusterCheckpointsQuarantined",
    "MusterConfigBroken",
    "MusterGangsWaitWithIdleGpus",
    "MusterJobFaultsRepeat",
    "MusterJobsStalled",
    "MusterJoinsSlow",
    "MusterNodesNeedOperator",
    "MusterPreflightsFail",
    "MusterProcessRestarts",
    "MusterRemediationHeld",
    "MusterScalingBlocked",
    "MusterTeamsCautions",
    "MusterTimeToUsefulHigh",
    "MusterUnhealthyNodes",
)
def test_faults_of_configuration_jobs_and_nodes(scene: EveryMetric, expected: Expected) -> None:
    growing(scene)
    submit(scene, "unsaved", _UNSAVED)
    submit(scene, "silent", "import time; time.sleep(600)")
    for name in ("unsaved", "silent"):
        until_running(scene, name)
    team = {"nodeSelector": {"role": "worker"}, "team": "red", "amount": 30}
    scene.configure("muster-teams", {"allocations": [team]})
    scene.configure("muster-balloons", "pools: [")
    tests = {"runAsUser": os.geteuid(), "backend": "cpu:7", "resources": {"cpu": "100m", "memory": "64Mi"}}
    scene.configure("muster-preflight", tests)
    scene.configure("muster-health", {"mode": "act", "breaker": {"share": "0%", "nodes": 0}, "shared": {"nodes": 0}})
    scene.configure("muster-network", {"uplink": {**UPLINK, "leaseSeconds": 11}})
    scene.processes.add_node("late-0", role="late")
    scene.jobs.submit("large", 2, command=["true"])
    scene.processes.restart("admission-0")
    expected.until_firing(
        scene.server,
        "MusterJobFaultsRepeat",
        "MusterCheckpointsQuarantined",
        meanwhile=lambda: rank_dies(scene, "steady"),
    )
    scene.processes.break_gpu()  # only now: a rank that dies on such a node moves to another, and all are in use
    expected.until_firing(scene.server, "MusterScalingBlocked")  # before joins slow down what scaling asks for
    late(scene)
    expected.until_firing(scene.server, "MusterJoinsSlow", meanwhile=lambda: report_ready(scene))
    stall(scene, "silent")
    expected.until_firing(scene.server, *expected.missing - {"MusterNodesNeedOperator"})
    act = {"mode": "act", "breaker": {"share": "100%", "nodes": 9}, "shared": {"nodes": 1}}
    scene.configure("muster-health", act)
    expected.until_firing(scene.server)


def growing(scene: EveryMetric) -> None:
    """A gang needs nodes that the other autoscaler never adds."""
    template = {"labels": {"role": "cloud"}, "capacity": {"cpu": 8, "memory": "32Gi", "nvidia.com/gpu": GPUS}}
    pool = {"name": "cloud", "provider": "external", "max": 2, "pollSeconds": 1, "joinTimeoutSeconds": 1}
    scene.configure("muster-scaling", {"pools": [{**pool, "template": template}]})
    submit(scene, "growing", "", template={"spec": {"nodeSelector": {"role": "cloud"}}})
    approved = {"metadata": {"annotations": {"muster.dev/scale-up": "approved"}}}
    scene.api.send("PATCH", f"{JOBS_PATH}/growing", approved, content_type=MERGE)


def late(scene: EveryMetric) -> None:
    """More nodes join at once than may be opened in a period."""
    scene.configure(
        "muster-joins", {"periodSeconds": 15, "startNodes": 1, "maxNodes": 1, "nodeSelector": {"role": "late"}}
    )
    taint = {"key": "muster.dev/joining", "value": "pending", "effect": "NoSchedule"}
    for name in _LATE:
        meta = {"name": name, "labels": {"role": "late"}}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"taints": [taint]}}
        scene.api.create("/api/v1/nodes", node)
    scene.until("(muster_joins_pace_nodes == 1) and on (instance) (muster_leader == 1)")  # else all may be opened now


def report_ready(scene: EveryMetric) -> None:
    """The kubelets of the late nodes report, as they do again and again."""
    for name in _LATE:
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        scene.api.send("PATCH", f"/api/v1/nodes/{name}/status", ready, content_type=MERGE)


def until_running(scene: EveryMetric, name: str) -> None:
    eventually(f"{name} runs", lambda: scene.jobs.status(name).get("phase") == "Running", LONG_TIMEOUT_S)


def stall(scene: EveryMetric, name: str) -> None:
    """The state that a controller writes when a job has not reported for long: waiting for it takes a minute."""
    status = {"stall": {"attempt": 1, "since": "2026-01-01T00:00:00Z", "limitSeconds": 900}}
    scene.api.send("PATCH", f"{JOBS_PATH}/{name}/status", {"status": status}, content_type=MERGE)


@pytest.mark.fires(
    "MusterCniFails",
    "MusterDataCacheBypassed",
    "MusterDataCacheCorrupt",
    "MusterGuardConfigBroken",
    "MusterGuardRefuses",
    "MusterGuardUpstreamFilesBroken",
    "MusterGuardWithoutPrice",
    "MusterGuardWithoutUpstream",
    "MusterNetworkAgentFails",
    "MusterShardCopiesFail",
    "MusterTrafficNotCounted",
    "MusterUplinkWithoutHub",
)
def test_faults_of_networks_caches_and_the_guard(scene: EveryMetric, expected: Expected) -> None:
    scene.network.lose_hub()
    data_is_read(scene)
    state = scene.folder / "cache-0" / "state"
    for file in state.rglob("*"):
        if file.is_file() and file.stat().st_size > 50_000:
            file.write_bytes(b"damaged" + file.read_bytes()[7:])
    scene.network.node.host.run("nft", "flush", "ruleset")
    scene.network.reset_neighbour_sizes()
    data_is_read(scene)
    every = urllib.parse.quote('{__name__=~".+"}')
    for number in range(2):
        refused_pod(scene)
        assert guard_answers(scene, f"query?query={every}") == 422
        scene.until(f'muster_guard_requests_total{{outcome="refused"}} > {number}')
        scene.until(f'muster_network_cni_request_seconds_count{{command="ADD", result="failed"}} > {number}')
        large_shard_is_kept(scene, number + 2)
    unfinished = state / "partial"
    unfinished.rmdir()
    unfinished.touch()  # new files cannot be written
    objects_are_read(scene, ["new"])
    expected.until_firing(scene.server, "MusterGuardRefuses")
    with broken_server() as broken:
        guard_asks(scene, broken)
        expected.until_firing(
            scene.server, "MusterGuardWithoutPrice", meanwhile=partial(dashboard_asks, scene, "query?query=up")
        )
    expected.until_firing(
        scene.server, "MusterGuardWithoutUpstream", meanwhile=partial(dashboard_asks, scene, "status/buildinfo")
    )
    (scene.folder / "guard.yaml").write_text("groups: [")  # only now: a guard that restarts could not use it
    expected.until_firing(scene.server, "MusterGuardConfigBroken")
    (scene.folder / "guard-token").write_text("")
    expected.until_firing(scene.server)


@contextlib.contextmanager
def broken_server() -> Iterator[str]:
    """A server whose storage fails: it can be reached, and each answer is an error. It ends with the context."""

    class Broken(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(500)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def guard_asks(scene: EveryMetric, url: str) -> None:
    """Restart the guard with another server behind it."""
    guard = scene.folder / "guard.yaml"
    guard.write_text(guard.read_text().replace(scene.server.url, url))
    scene.processes.restart("guard-0")


def dashboard_asks(scene: EveryMetric, path: str) -> None:
    """A dashboard asks the guard once more, which may still be starting."""
    with contextlib.suppress(OSError):
        guard_answers(scene, path)


def refused_pod(scene: EveryMetric) -> None:
    """The container runtime asks for the network of a pod whose namespace is gone."""
    with pytest.raises(AssertionError):
        scene.network.attach_to("/run/netns/missing")


@pytest.mark.fires(
    "MusterAgentsMissing",
    "MusterApiErrors",
    "MusterFindingsNotWritten",
    "MusterNoLeader",
    "MusterReadCacheFails",
    "MusterReadCacheStale",
    "MusterSchedulerNotPlanning",
    "MusterTargetsDown",
)
def test_faults_of_the_control_plane_and_of_targets(scene: EveryMetric, expected: Expected) -> None:
    last = {"MusterAgentsMissing", "MusterTargetsDown"}
    with read_cache_is_read(scene) as status:
        scene.lose_api_server()
        scene.processes.break_gpu("86")  # the agent writes a new finding at once

        def read() -> None:
            assert status("/api/v1/nodes") == 503  # not proven to be fresh

        expected.until_firing(scene.server, "MusterReadCacheFails", meanwhile=read)
        expected.until_firing(scene.server, *expected.missing - last)
    scene.processes.components["agent-0"].child.stop(grace_s=0)
    expected.until_firing(scene.server)
