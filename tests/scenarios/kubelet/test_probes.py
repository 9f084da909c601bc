"""Probes change what is reported of a container, and end it where they must."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.kubelet.conftest import NodeUnderTest
from tests.support.anyserver import BY_KUBELET
from tests.support.waiting import until


async def test_readiness_follows_an_exec_probe(node: NodeUnderTest, tmp_path: Path) -> None:
    flag = tmp_path / "ready"
    probe = {"exec": {"command": ["test", "-e", str(flag)]}, "periodSeconds": 1, "failureThreshold": 1}
    pod = await node.running(await node.run("sleep", "1000", container={"readinessProbe": probe}))
    assert not pod.ready
    flag.touch()
    pod = await node.until(pod, lambda pod: pod.ready)
    flag.unlink()
    pod = await node.until(pod, lambda pod: not pod.ready)
    assert pod.status.phase == "Running"
    assert pod.status.container_statuses[0].restart_count == 0


@BY_KUBELET
async def test_liveness_restarts_the_container(node: NodeUnderTest, tmp_path: Path) -> None:
    flag = tmp_path / "alive"
    flag.touch()
    probe = {"exec": {"command": ["test", "-e", str(flag)]}, "periodSeconds": 1, "failureThreshold": 1}
    script = f"touch {flag}; echo alive; trap 'exit 0' TERM; while true; do sleep 0.05; done"
    pod = await node.running(
        await node.run("sh", "-c", script, container={"livenessProbe": probe}, restartPolicy="Always")
    )
    await until("it has touched the file", lambda: node.logs(pod) == "alive\n")
    flag.unlink()
    pod = await node.until(pod, lambda pod: pod.ready and pod.status.container_statuses[0].restart_count >= 1)


@BY_KUBELET
async def test_http_and_tcp_probes_ask_the_pods_address(node: NodeUnderTest, tmp_path: Path) -> None:
    ports = [{"name": "web", "containerPort": 8000}]
    env = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    script = f"cd {tmp_path} && touch ok && exec python3 -m http.server --bind $IP 8000"
    container = {
        "ports": ports,
        "env": env,
        "startupProbe": {"tcpSocket": {"port": "web"}, "periodSeconds": 1, "failureThreshold": 30},
        "readinessProbe": {"httpGet": {"path": "/ok", "port": "web"}, "periodSeconds": 1, "failureThreshold": 1},
    }
    pod = await node.run("sh", "-c", script, container=container)
    pod = await node.until(pod, lambda pod: pod.ready)
    assert pod.status.container_statuses[0].started
    (tmp_path / "ok").unlink()
    await node.until(pod, lambda pod: not pod.ready)


@BY_KUBELET
async def test_startup_probe_that_never_succeeds_ends_the_container(node: NodeUnderTest) -> None:
    probe = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1}
    pod = await node.finished(await node.run("sleep", "1000", container={"startupProbe": probe}))
    state = pod.status.container_statuses[0].state
    assert state is not None
    assert state.terminated is not None
    assert state.terminated.exit_code == 143
