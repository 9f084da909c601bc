"""`muster data` reaches the caches of a real cluster by exec into their pods: the pod is like one of the chart's."""

from __future__ import annotations

import pytest

from muster.cli.data.links import CONTAINER, RELAY, CacheRefusal, pod_link
from muster.cli.data.nodes import SELECTOR, ask_each, find_caches
from muster.cli.errors import CliError, ExitCode
from muster.cli.target import Cluster
from muster.kube.connection.config import load_config
from muster.kube.objects.pod import Pod
from muster.sdk.data.wire import MAX_FRAME_BYTES
from tests.scenarios.kubelet.conftest import NAMESPACE, NodeUnderTest
from tests.scenarios.kubelet.test_logs_and_exec import OVER_WEBSOCKET
from tests.support.waiting import until

pytestmark = OVER_WEBSOCKET
SOCKETS = "/var/run/muster-cache"
BLOCKS = "/var/lib/muster-cache"


async def cache_pod(node: NodeUnderTest) -> Pod:
    """A pod as the chart makes it, which runs a node cache."""
    container = {
        "name": CONTAINER,
        "image": "none",
        "command": ["python3", "-m", "muster.data.cache"],
        "args": [
            "--node=$(NODE_NAME)",
            f"--state-dir={BLOCKS}",
            f"--socket-dir={SOCKETS}",
            "--size=64Mi",
            "--floor=1%",
        ],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "volumeMounts": [{"name": "blocks", "mountPath": BLOCKS}, {"name": "socket", "mountPath": SOCKETS}],
    }
    volumes = [{"name": name, "emptyDir": {}} for name in ("blocks", "socket")]
    labels = dict(each.split("=") for each in SELECTOR.split(","))
    return await node.running(await node.create({"containers": [container], "volumes": volumes}, labels=labels))


async def test_requests_travel_by_exec_into_the_pod_of_the_cache(node: NodeUnderTest) -> None:
    cluster = Cluster(load_config(node.server.kubeconfig), "default", "the cluster", None)
    with pytest.raises(CliError, match="has no pods of the node data cache") as none:
        await find_caches(cluster, node.client, NAMESPACE)
    assert none.value.exit_code == ExitCode.NOT_FOUND

    pod = await cache_pod(node)
    socket = node.state_dir / "pods" / pod.uid / "volumes" / "blocks" / "control.sock"
    assert len(str(socket)) > 107, "longer than an address may be"
    await until("the cache listens", socket.is_socket)
    (cache,) = await find_caches(cluster, node.client, NAMESPACE, [node.name])
    (outcome,) = await ask_each([cache], lambda cache, link: link.ask({"op": "status"}, 30))
    assert outcome.error is None
    assert outcome.value is not None
    assert (outcome.value["node"], outcome.value["size_bytes"]) == (node.name, 64 << 20)

    async with pod_link(node.client, pod) as link:
        with pytest.raises(CacheRefusal, match="there is no operation") as refused:
            await link.ask({"op": "nothing", "padding": "x" * 100_000}, 30)
        assert refused.value.code == "bad-request"
        assert (await link.ask({"op": "evict"}, 30))["blocks"] == 0, "the connection continues"
        with pytest.raises(CliError, match=f"longer than {MAX_FRAME_BYTES}"):
            await link.ask({"op": "status", "padding": "x" * MAX_FRAME_BYTES}, 30)
    with pytest.raises(CliError, match="no node cache on elsewhere"):
        await find_caches(cluster, node.client, NAMESPACE, [node.name, "elsewhere"])
    assert RELAY[-1] == f"{BLOCKS}/control.sock"
