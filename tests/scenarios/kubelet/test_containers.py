"""Containers as processes: how they start, end, restart and are reported."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil

from muster.kube.objects.container import ContainerStateTerminated
from muster.kube.objects.pod import Pod
from tests.scenarios.kubelet.conftest import NAMESPACE, NodeUnderTest, exists, processes
from tests.support.anyserver import BY_KUBELET
from tests.support.waiting import until


def ended(pod: Pod, index: int = 0) -> ContainerStateTerminated:
    state = pod.status.container_statuses[index].state
    assert state is not None
    assert state.terminated is not None
    return state.terminated


async def test_success_and_failure(node: NodeUnderTest) -> None:
    good = await node.run("sh", "-c", "echo out; echo err >&2")
    bad = await node.run("sh", "-c", "exit 3")
    good, bad = await node.finished(good), await node.finished(bad)
    assert (good.status.phase, ended(good).exit_code, ended(good).reason) == ("Succeeded", 0, "Completed")
    assert (bad.status.phase, ended(bad).exit_code, ended(bad).reason) == ("Failed", 3, "Error")
    assert sorted(node.logs(good).split()) == ["err", "out"]
    conditions = {condition.type: condition.status for condition in good.status.conditions}
    assert conditions["Ready"] == conditions["ContainersReady"] == "False"
    assert conditions["Initialized"] == "True"
    assert good.status.qos_class == "BestEffort"


@BY_KUBELET
async def test_signal_is_reported_as_128_plus_its_number(node: NodeUnderTest) -> None:
    # `$$` is Kubernetes' own escape for one dollar sign.
    pod = await node.finished(await node.run("sh", "-c", "kill -TERM $$$$"))
    assert ended(pod).exit_code == 143


@BY_KUBELET
async def test_program_that_is_not_there(node: NodeUnderTest) -> None:
    pod = await node.finished(await node.run("no-such-program-anywhere"))
    assert (ended(pod).exit_code, ended(pod).reason) == (128, "StartError")
    assert "no-such-program-anywhere" in ended(pod).message


@BY_KUBELET
async def test_container_without_command_says_what_to_do(node: NodeUnderTest) -> None:
    pod = await node.create({"containers": [{"name": "main", "image": "none"}]})

    def refusal(pod: Pod) -> str:
        """Why it waits; a slow start is reported as ContainerCreating before."""
        state = pod.status.container_statuses[0].state if pod.status.container_statuses else None
        refused = state and state.waiting and state.waiting.reason == "CreateContainerError"
        return state.waiting.message if state and state.waiting and refused else ""

    assert "set `command`" in refusal(await node.until(pod, refusal))


@BY_KUBELET
async def test_running_pod_is_ready_and_has_an_address_it_can_bind(node: NodeUnderTest) -> None:
    server = (
        "import os, socket, time; s = socket.create_server((os.environ['IP'], 7000)); print('bound', flush=True);"
        " time.sleep(60)"
    )
    env = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    one = await node.running(await node.run("python3", "-c", server, container={"env": env}))
    two = await node.running(await node.run("python3", "-c", server, container={"env": env}))
    assert one.ready
    assert two.ready
    assert one.status.pod_ip != two.status.pod_ip  # or the second could not have bound

    async def both() -> bool:
        return node.logs(one) == node.logs(two) == "bound\n"

    await until("both servers listen", both)


@BY_KUBELET
async def test_init_containers_run_one_after_the_other_before_the_rest(node: NodeUnderTest) -> None:
    volume = {"name": "v", "emptyDir": {}}
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/scratch"}], "image": "none"}
    pod = await node.create(
        {
            "volumes": [volume],
            "initContainers": [
                {"name": "a", "command": ["sh", "-c", "sleep 0.2; echo a >> /scratch/order"], **mount},
                {"name": "b", "command": ["sh", "-c", "echo b >> /scratch/order"], **mount},
            ],
            "containers": [{"name": "main", "command": ["cat", "/scratch/order"], **mount}],
        }
    )
    pod = await node.finished(pod)
    assert node.logs(pod) == "a\nb\n"
    assert all(status.ready for status in pod.status.init_container_statuses)


@BY_KUBELET
async def test_failing_init_container_fails_the_pod(node: NodeUnderTest) -> None:
    init = [{"name": "init", "image": "none", "command": ["sh", "-c", "exit 7"]}]
    pod = await node.finished(await node.run("true", initContainers=init))
    assert pod.status.phase == "Failed"
    state = pod.status.container_statuses[0].state
    assert state is not None
    assert state.waiting is not None
    assert state.waiting.reason == "PodInitializing"


async def test_restart_with_backoff_keeps_the_log_before(node: NodeUnderTest) -> None:
    pod = await node.run("sh", "-c", "echo run $$$$; exit 1", restartPolicy="OnFailure")
    pod = await node.until(
        pod, lambda pod: pod.status.container_statuses and pod.status.container_statuses[0].restart_count >= 2
    )
    status = pod.status.container_statuses[0]
    assert status.last_state is not None
    assert status.last_state.terminated is not None
    assert status.last_state.terminated.exit_code == 1
    assert pod.status.phase == "Running"
    assert node.logs(pod, "--previous").startswith("run ")

    def waits(pod: Pod) -> bool:
        state = pod.status.container_statuses[0].state
        return bool(state and state.waiting and state.waiting.reason == "CrashLoopBackOff")

    await node.until(pod, waits)


@BY_KUBELET
async def test_on_failure_does_not_restart_what_succeeded(node: NodeUnderTest) -> None:
    pod = await node.finished(await node.run("true", restartPolicy="OnFailure"))
    assert pod.status.phase == "Succeeded"
    assert pod.status.container_statuses[0].restart_count == 0


@BY_KUBELET
async def test_process_that_ignores_sigterm_is_killed_after_its_grace(node: NodeUnderTest) -> None:
    pod = await node.run("sh", "-c", "trap '' TERM; echo ready; while true; do sleep 0.1; done")
    await until("it runs", lambda: _logged(node, pod, "ready"))
    began = time.monotonic()
    await node.client.delete(Pod, pod.name, namespace=NAMESPACE)
    await node.gone(pod)
    assert time.monotonic() - began >= 1.0  # the grace was given
    assert processes(f"MUSTER_POD_UID={pod.uid}") == []


async def test_sigterm_lets_a_process_end_in_peace(node: NodeUnderTest, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"trap 'echo stopped > {mark}; exit 0' TERM; echo ready; while true; do sleep 0.05; done"
    pod = await node.run("sh", "-c", script, terminationGracePeriodSeconds=600)
    await until("it runs", lambda: _logged(node, pod, "ready"))
    await node.client.delete(Pod, pod.name, namespace=NAMESPACE)
    await node.gone(pod)
    assert mark.read_text() == "stopped\n"


@BY_KUBELET
async def test_daemon_that_left_does_not_outlive_its_pod(node: NodeUnderTest, tmp_path: Path) -> None:
    """Forked twice, in a session of its own, and with an empty environment."""
    mark = tmp_path / "pid"
    script = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sh", ["sh", "-c", "echo $$$$ > {mark}; exec sleep 1000"], {{}})
    os._exit(0)
while not (os.path.exists("{mark}") and os.path.getsize("{mark}")): time.sleep(0.01)
"""
    pod = await node.finished(await node.run(sys.executable, "-c", script))
    assert pod.status.phase == "Succeeded"
    pid = int(mark.read_text())
    assert not exists(f"/proc/{pid}")


@BY_KUBELET
async def test_killed_shim_takes_its_container_with_it(node: NodeUnderTest) -> None:
    pod = await node.run("sh", "-c", "setsid sleep 1000 & setsid env -i sleep 1000 & echo ready; sleep 1000")
    await until("it runs", lambda: _logged(node, pod, "ready"))
    marker = f"MUSTER_POD_UID={pod.uid}"
    (shim,) = [pid for pid in processes(marker) if _is_shim(pid)]
    below = await until("the shell has started the last program", lambda: _children(shim, 4))
    os.kill(shim, 9)
    pod = await node.finished(pod)
    assert ended(pod).exit_code == 137

    async def nothing() -> bool:
        return not any(exists(f"/proc/{pid}/exe") for pid in below)

    await until("everything is gone", nothing)


@BY_KUBELET
async def test_termination_message(node: NodeUnderTest) -> None:
    reported = await node.run("sh", "-c", "echo why > /dev/termination-log; exit 1")
    fallback = await node.run(
        "sh", "-c", "echo last words; exit 1", container={"terminationMessagePolicy": "FallbackToLogsOnError"}
    )
    assert ended(await node.finished(reported)).message == "why\n"
    assert ended(await node.finished(fallback)).message == "last words\n"


@BY_KUBELET
async def test_active_deadline(node: NodeUnderTest) -> None:
    pod = await node.finished(await node.run("sleep", "100", activeDeadlineSeconds=1))
    assert (pod.status.phase, pod.status.reason) == ("Failed", "DeadlineExceeded")
    assert processes(f"MUSTER_POD_UID={pod.uid}") == []


@BY_KUBELET
async def test_pre_stop_hook_runs_before_sigterm(node: NodeUnderTest, tmp_path: Path) -> None:
    order = tmp_path / "order"
    container = {"lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", f"echo hook >> {order}"]}}}}
    script = f"trap 'echo term >> {order}; exit 0' TERM; echo ready; while true; do sleep 0.05; done"
    pod = await node.run("sh", "-c", script, container=container, terminationGracePeriodSeconds=20)
    await until("it runs", lambda: _logged(node, pod, "ready"))
    await node.client.delete(Pod, pod.name, namespace=NAMESPACE)
    await node.gone(pod)
    assert order.read_text() == "hook\nterm\n"


async def test_force_deletion_kills_at_once(node: NodeUnderTest) -> None:
    pod = await node.running(await node.run("sh", "-c", "trap '' TERM; sleep 1000", terminationGracePeriodSeconds=600))
    await node.client.delete(Pod, pod.name, namespace=NAMESPACE, grace_s=0)

    async def nothing() -> bool:
        return not processes(f"MUSTER_POD_UID={pod.uid}")

    await until("its processes are gone", nothing)


async def _logged(node: NodeUnderTest, pod: Pod, text: str) -> bool:
    done = await asyncio.to_thread(node.kubectl, "logs", pod.name, "-c", "main")
    return text in done.stdout.decode()


def _is_shim(pid: int) -> bool:
    return b"shim.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def _children(pid: int, count: int) -> list[int]:
    """Everything below a process, once there are so many."""
    below = [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return below if len(below) == count else []
