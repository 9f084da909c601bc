"""What root can have beside plain processes: users, limits through control groups, network namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from muster.embedded.kubelet.containers.cgroups import ControlGroups
from muster.embedded.kubelet.sweep import sweep
from muster.kube.objects.pod import Pod
from tests.scenarios.kubelet.conftest import NodeUnderTest, StartNode, processes
from tests.support.anyserver import BY_KUBELET
from tests.support.controlgroups import need_control_groups

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@root
@BY_KUBELET
async def test_container_runs_as_the_user_it_names(node: NodeUnderTest) -> None:
    # A test's own folder is root's alone, so the container starts elsewhere.
    container = {"securityContext": {"runAsUser": 65534, "runAsGroup": 65533}, "workingDir": "/"}
    pod = await node.run("sh", "-c", "id -u; id -g; id -G", container=container)
    assert node.logs(await node.finished(pod)) == "65534\n65533\n65533\n"


@BY_KUBELET
async def test_container_that_must_not_be_root_and_would_be(node: NodeUnderTest) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root could run it as root")
    pod = await node.run("true", container={"securityContext": {"runAsNonRoot": True}})

    def refused(pod: Pod) -> bool:
        state = pod.status.container_statuses[0].state
        return bool(state and state.waiting and state.waiting.reason == "CreateContainerConfigError")

    await node.until(pod, refused)


@BY_KUBELET
async def test_container_that_takes_too_much_memory(node: NodeUnderTest) -> None:
    need_control_groups()
    limits = {"resources": {"limits": {"memory": "64Mi"}}}
    pod = await node.finished(await node.run(sys.executable, "-c", "x = b'x' * (256 << 20)", container=limits))
    state = pod.status.container_statuses[0].state
    assert state is not None
    assert state.terminated is not None
    assert (state.terminated.reason, state.terminated.exit_code) == ("OOMKilled", 137)
    name = ControlGroups(node.cluster_id, node.name).name
    assert _control_groups(name)
    node.kill()
    sweep(node.cluster_id)
    assert not _control_groups(name)
    await node.start()


@BY_KUBELET
async def test_sidecar_starts_first_and_ends_last(node: NodeUnderTest, tmp_path: Path) -> None:
    order = tmp_path / "order"
    side = f"echo up >> {order}; trap 'echo down >> {order}; exit 0' TERM; while true; do sleep 0.05; done"
    init = [{"name": "side", "image": "none", "restartPolicy": "Always", "command": ["sh", "-c", side]}]
    check = {"exec": {"command": ["test", "-s", str(order)]}, "periodSeconds": 1}
    init[0]["startupProbe"] = check  # type: ignore[assignment]
    pod = await node.finished(await node.run("sh", "-c", f"echo main >> {order}", initContainers=init))
    assert pod.status.phase == "Succeeded"
    assert order.read_text() == "up\nmain\ndown\n"


@BY_KUBELET
async def test_host_network_has_the_nodes_address(node: NodeUnderTest) -> None:
    pod = await node.running(await node.run("sleep", "1000", hostNetwork=True))
    assert pod.status.pod_ip == pod.status.host_ip


@BY_KUBELET
async def test_leftovers_of_a_kubelet_and_its_shims_are_swept_at_the_next_start(node: NodeUnderTest) -> None:
    """Both are killed at once: only the next kubelet can clean up."""
    pod = await node.running(await node.run("sh", "-c", "setsid sleep 1000 & sleep 1000"))
    marker = f"MUSTER_POD_UID={pod.uid}"
    found = processes(marker)
    os.kill(node.pid, signal.SIGSTOP)
    for pid in found:
        if b"shim.py" in _command(pid):
            os.kill(pid, signal.SIGKILL)
    node.kill()
    await node.start()
    assert processes(marker) == []
    await node.finished(pod)


@root
@BY_KUBELET
async def test_network_namespaces(start_node: StartNode) -> None:
    name = uuid.uuid4().hex[:4]
    octet = 16 + int(name, 16) % 200
    node = await start_node("--network=netns", f"--pod-cidr=10.{octet}.7.0/24")
    serve = "import socket; s = socket.create_server(('', 7000)); c, _ = s.accept(); c.sendall(b'hello'); c.close()"
    server = await node.running(await node.run(sys.executable, "-c", serve))
    assert server.status.pod_ip.startswith(f"10.{octet}.7.")
    bridge = _bridge(f"10.{octet}.7.1")
    links, spaces = {bridge, *_links("master", bridge)}, _namespaces(bridge)
    assert (len(links), len(spaces)) == (2, 1), "those of one pod"
    ask = (
        "import socket, time\n"
        "for _ in range(600):\n"
        "  try: print(socket.create_connection(('" + server.status.pod_ip + "', 7000), 5).recv(9).decode()); break\n"
        "  except OSError: time.sleep(0.1)\n"
    )
    client = await node.finished(await node.run(sys.executable, "-c", ask))
    assert node.logs(client) == "hello\n"
    await node.finished(server)
    await node.terminate()
    assert not links & _links()
    assert not _namespaces(bridge)
    await node.start()


def _control_groups(name: str) -> list[Path]:
    """Return the control groups of this name. Others may vanish meanwhile, which `os.walk` passes over."""
    return [Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup") if Path(folder).name == name]


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _bridge(address: str) -> str:
    """The bridge with this address. Kubelets of other tests of this machine have others."""
    words = ["ip", "-o", "-4", "address", "show", "to", address]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[1]


def _links(*which: str) -> set[str]:
    lines = subprocess.run(["ip", "-o", "link", "show", *which], capture_output=True, text=True, check=True).stdout
    return {line.split(":")[1].strip().partition("@")[0] for line in lines.splitlines()}


def _namespaces(bridge: str) -> set[str]:
    """Network namespaces of the cluster that has the bridge."""
    return {path.name for path in Path("/run/netns").glob(f"muster-{bridge.removeprefix('mb')}-*")}
