"""Logs and exec through the API server, with kubectl."""

from __future__ import annotations

import asyncio
import re
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from tests.scenarios.kubelet.conftest import NAMESPACE, NodeUnderTest, StartNode
from tests.support.anyserver import BY_KUBELET
from tests.support.waiting import TIMEOUT_S, until

OVER_WEBSOCKET = pytest.mark.kubernetes_since("1.36")
"""Older API servers speak SPDY with kubelets, and the process kubelet speaks WebSocket only."""


async def running(node: NodeUnderTest) -> Pod:
    return await node.running(await node.run("sh", "-c", "echo ready; sleep 1000"))


@BY_KUBELET
async def test_log_options(node: NodeUnderTest) -> None:
    pod = await node.finished(await node.run("sh", "-c", "for i in 1 2 3 4 5; do echo line $i; done; printf end"))
    assert node.logs(pod, "--tail=3") == "line 4\nline 5\nend"
    assert node.logs(pod, "--limit-bytes=4") == "line"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z end", node.logs(pod, "--tail=1", "--timestamps"))
    assert node.logs(pod, "--since=1h").startswith("line 1\n")
    assert node.logs(pod, "--since-time=2999-01-01T00:00:00Z") == ""


async def test_follow_ends_with_the_container(node: NodeUnderTest) -> None:
    pod = await node.running(await node.run("sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.3; done"))
    done = await asyncio.to_thread(node.kubectl, "logs", "--follow", pod.name)
    assert done.stdout == b"1\n2\n3\n"


async def test_carriage_returns_and_bytes_survive(node: NodeUnderTest) -> None:
    pod = await node.finished(await node.run("printf", r"10%%\r50%%\r100%%\n\377\n"))
    done = await asyncio.to_thread(node.kubectl, "logs", pod.name, "--tail=2")
    assert done.stdout == b"10%\r50%\r100%\n\xff\n"


@OVER_WEBSOCKET
async def test_exec_streams_and_exit_code(node: NodeUnderTest) -> None:
    pod = await running(node)
    done = await asyncio.to_thread(
        node.kubectl,
        "exec",
        "-i",
        pod.name,
        "--",
        "sh",
        "-c",
        "cat; echo err >&2; exit 7",
        stdin=b"x" * 200_000,
    )
    assert done.stdout == b"x" * 200_000
    assert done.stderr.startswith(b"err\n")
    assert done.returncode == 7


@OVER_WEBSOCKET
async def test_exec_runs_in_the_containers_environment(node: NodeUnderTest) -> None:
    volumes = [{"name": "v", "emptyDir": {}}]
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/data"}], "env": [{"name": "A", "value": "b"}]}
    pod = await node.running(
        await node.run("sh", "-c", "echo hello > /data/x; sleep 1000", container=mounts, volumes=volumes)
    )

    async def said() -> bool:
        command = ("exec", pod.name, "--", "sh", "-c", "echo $A; cat /data/x")
        return (await asyncio.to_thread(node.kubectl, *command)).stdout == b"b\nhello\n"

    await until("the file is there", said)


@OVER_WEBSOCKET
async def test_exec_of_what_is_not_there(node: NodeUnderTest) -> None:
    pod = await running(node)
    done = await asyncio.to_thread(node.kubectl, "exec", pod.name, "--", "no-such-program")
    assert done.returncode != 0
    assert b"no-such-program" in done.stderr


@pytest.mark.parametrize("protocol", ["v4.channel.k8s.io", pytest.param("v5.channel.k8s.io", marks=OVER_WEBSOCKET)])
async def test_exec_with_a_terminal(node: NodeUnderTest, protocol: str) -> None:
    pod = await running(node)
    query = "command=sh&stdin=true&stdout=true&tty=true&container=main"
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod.name}/exec?{query}"
    async with node.client.websocket(path, protocols=(protocol,)) as socket:
        await socket.send_bytes(b'\x04{"Width":91,"Height":17}')
        await socket.send_bytes(b"\x00stty size; exit 3\n")
        channels: dict[int, bytes] = {}
        async with asyncio.timeout(TIMEOUT_S):
            async for message in socket:
                channels[message.data[0]] = channels.get(message.data[0], b"") + message.data[1:]
    assert b"17 91" in channels[1]
    assert 2 not in channels
    assert b'"message": "3"' in channels[3] or b'"message":"3"' in channels[3]


async def test_command_dies_with_its_client(node: NodeUnderTest) -> None:
    pod = await running(node)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod.name}/exec?command=sleep&command=4242&stdout=true"

    async def found(code: int) -> bool:
        done = await asyncio.to_thread(node.kubectl, "exec", pod.name, "--", "pgrep", "-f", "^sleep 4242$")
        return done.returncode == code

    async with node.client.websocket(path, protocols=("v5.channel.k8s.io",)):
        await until("the command runs", lambda: found(0))
    await until("the command is gone", lambda: found(1))


async def test_clients_without_token_or_certificate_are_refused(node: NodeUnderTest) -> None:
    pod = await running(node)
    status = (await node.client.get(Node, node.name)).status
    base = f"https://{status.addresses[0].address}:{await node.serving_port()}"
    context = ssl._create_unverified_context()

    def ask(path: str, **headers: str) -> int:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(base + path, headers=headers), context=context
            ) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    assert await asyncio.to_thread(ask, "/healthz") == 200
    for path in ("/pods", f"/containerLogs/{NAMESPACE}/{pod.name}/main", f"/exec/{NAMESPACE}/{pod.name}/main"):
        assert await asyncio.to_thread(ask, path) == 401
        assert await asyncio.to_thread(ask, path, Authorization="Bearer wrong") == 401


FLOOD = """
import os, sys, time
first, go = int(sys.argv[1]), sys.argv[2]
for number in range(80_000):
    if number == 10:
        sys.stdout.flush()
        while not os.path.exists(go):
            time.sleep(0.05)
    if number == first:
        sys.stdout.flush()
        while not os.path.exists(go + "2"):
            time.sleep(0.05)
    print(f"{number:06d} {'x' * 40}", file=sys.stderr if number % 1000 == 999 else sys.stdout)
"""


@BY_KUBELET
async def test_flood_is_bounded_and_followed_across_rotation(start_node: StartNode, tmp_path: Path) -> None:
    """Issue 11.4: logs are rotated; `kubectl logs -f` continues, and `kubectl logs` serves the newest file."""
    size, files, first = 64 << 10, 50, 25_000
    node = await start_node(f"--container-log-max-size={size >> 10}Ki", f"--container-log-max-files={files}")
    go = tmp_path / "go"
    pod = await node.running(await node.run("python3", "-c", FLOOD, str(first), str(go)))
    folder = node.state_dir / "pods" / pod.uid / "logs" / "main"
    follower = await asyncio.create_subprocess_exec(
        *node.kubectl_command("logs", "--follow", pod.name), stdout=asyncio.subprocess.PIPE
    )
    assert follower.stdout is not None
    assert (await follower.stdout.readline()).startswith(b"000000 ")
    go.touch()
    lines = [int((await follower.stdout.readline()).split()[0]) for _ in range(first - 1)]
    assert sorted(lines) == list(range(1, first)), "the follower got every line of about thirty files"
    (tmp_path / "go2").touch()
    rest = asyncio.create_task(follower.stdout.read())
    pod = await node.finished(pod)
    assert (await rest).endswith(b"x\n")
    assert await follower.wait() == 0
    kept = {path.name: path.stat().st_size for path in await asyncio.to_thread(lambda: list(folder.iterdir()))}
    assert len(kept) == files
    assert sum(kept.values()) <= files * size
    newest = node.logs(pod).splitlines()
    # The last line of stdout; stderr arrives on its own, so that its last line may be in the file before.
    assert 79_998 in [int(line.split()[0]) for line in newest]
    assert kept["0.log"] >= sum(len(line) for line in newest)
    tail = node.logs(pod, "--tail=100000").splitlines()
    assert tail == newest, "as in the kubelet, rotated files are not served"
