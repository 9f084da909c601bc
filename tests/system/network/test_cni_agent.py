"""The part `pods` of the real network agent in a network namespace: from an AddressPool to a pod that has a network."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from muster.embedded.readiness import install_kinds
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node as KubeNode
from muster.network.agent.part import HostPaths
from muster.network.agent.program import AgentOptions, run_agent
from muster.network.agent.removal import remove_parts
from muster.network.cni import install, part
from muster.network.config import parse_config
from tests.support.apiserver import EmbeddedServer
from tests.support.cninode import CniFailed, need_cni
from tests.support.networknamespaces import Namespace, Network, Node, connected, need_namespaces, transfer
from tests.support.waiting import eventually

NODE = "node-1"
POLICIES = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "networkpolicies.networking.k8s.io"},
    "spec": {
        "group": "networking.k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "networkpolicies", "kind": "NetworkPolicy"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


class Cluster:
    """A node in namespaces, an API server that only it reaches, and its network agent in a thread of this process."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.programs, self.shim = need_cni()
        self.network = network
        self.node: Node = network.node()
        self.folder = folder
        self.bin, self.net = folder / "opt-cni-bin", folder / "etc-cni-net.d"
        for each in (self.bin, self.net):
            each.mkdir(parents=True)
        for plugin in ("portmap", "bandwidth", "loopback"):
            shutil.copy(self.programs / plugin, self.bin)
        self.paths = HostPaths(state=folder / "state", run=folder / "run")
        self.server = EmbeddedServer(folder / "api")
        self.port = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.error: BaseException | None = None

    def in_host(self, coroutine: Any) -> Any:
        return self.node.host.call(asyncio.run, coroutine)

    async def objects(self, *bodies: dict[str, Any]) -> None:
        async with Client(load_config(self.server.kubeconfig)) as client:
            for body in bodies:
                await client.create(body)

    async def prepare(self) -> None:
        async with Client(load_config(self.server.kubeconfig)) as client:
            await install_kinds(client)
            await client.create(KubeNode(metadata=ObjectMeta(name=NODE)))
            for name, cidr, prefix in (("four", "10.20.0.0/16", 28), ("six", "fd00:20::/48", 112)):
                spec = {"cidr": cidr, "blockPrefix": prefix}
                pool = {"apiVersion": "muster.dev/v1alpha1", "kind": "AddressPool", "metadata": {"name": name}}
                await client.create({**pool, "spec": spec})

    def config(self, more: str = "") -> str:
        return f"""
pods:
  enabled: true
  cniVersion: "1.1.0"
  socket: {self.paths.run}/cni.sock
  binDir: {self.bin}
  netDir: {self.net}
  addresses: {{families: [IPv4, IPv6], cooldownSeconds: 0, targets: {{warm: 2, minimum: 4, maximum: 64}}}}
{more}"""

    def options(self) -> AgentOptions:
        return AgentOptions(
            node=NODE,
            kubeconfig=self.server.kubeconfig,
            listen=("127.0.0.1", 0),
            paths=self.paths,
        )

    def start(self, more: str = "") -> None:
        config = parse_config(self.config(more))
        started = threading.Event()

        async def run() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()

            def ready(port: int) -> None:
                self.port = port
                started.set()

            await run_agent(self.options(), config, self._stop, on_ready=ready, registry=CollectorRegistry())

        def work() -> None:
            try:
                asyncio.run(run())
            except BaseException as error:
                self.error = error
                started.set()

        self._thread = threading.Thread(target=work, daemon=True)
        self.node.host.call(self._thread.start)
        assert started.wait(30)
        assert self.error is None, self.error

    def stop(self) -> None:
        if self._thread is not None:
            assert self._loop is not None
            assert self._stop is not None
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)
            assert not self._thread.is_alive()
            self._thread = None

    def remove(self) -> str:
        """Remove all parts; return why the part `pods` was not."""
        removed = self.node.host.call(remove_parts, self.paths, parse_config(self.config()))
        return next(each.problem for each in removed if each.part == "pods")

    def page(self, name: str) -> Any:
        def get() -> Any:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{name}", timeout=10) as answer:
                text = answer.read()
            return json.loads(text) if name.startswith("v1/") else text.decode()

        return self.node.host.call(get)

    def cnitool(self, verb: str, pod: Namespace) -> Any:
        environment = {"CNI_PATH": str(self.bin), "NETCONFPATH": str(self.net), "XDG_CACHE_HOME": str(self.folder)}
        try:
            printed = self.node.host.run(
                str(self.programs / "cnitool"), verb, install.NETWORK, pod.path, env=environment
            )
        except AssertionError as error:
            raise CniFailed({"msg": str(error)}) from None
        return json.loads(printed) if printed.strip() else {}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    need_namespaces("nft", "iptables")
    with Network() as network, contextlib.ExitStack() as stack:
        made = Cluster(network, tmp_path)
        monkeypatch.setattr(part, "SHIM", made.shim)
        for setting in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
            made.node.host.sysctl(setting, "0")
        made.node.host.call(made.server.start)
        stack.callback(made.server.kill)
        made.in_host(made.prepare())
        stack.callback(made.stop)
        yield made


def test_agent_gives_pods_a_network_and_keeps_it_without_the_api_server(cluster: Cluster) -> None:
    cluster.start()
    eventually("the list is installed", lambda: cluster.page("v1/pods")["installed"])
    eventually("there is no problem", lambda: cluster.page("v1/pods")["problem"] == "")
    eventually("the metric says so", lambda: "muster_network_cni_ready 1.0" in cluster.page("metrics"))
    eventually("addresses are warm", lambda: cluster.page("v1/addresses")["status"]["free"] >= 2)
    first, second = cluster.network.namespace("first"), cluster.network.namespace("second")
    result = cluster.cnitool("add", first)
    outside = cluster.node.outside_address("198.51.100.20")
    with connected(cluster.node.outside, outside, first) as (accepted, dialing):
        transfer(dialing, accepted, 1000)
        assert accepted.getpeername()[0] == "192.0.2.1"
    cluster.server.kill()
    cluster.stop()  # what pods have stays while the agent is away, and requests are refused at once
    with connected(cluster.node.outside, outside, first) as (accepted, dialing):
        transfer(dialing, accepted, 1000)
    with pytest.raises(CniFailed, match="network agent of this node does not answer"):
        cluster.cnitool("add", second)
    cluster.start()
    eventually("the daemon answers", lambda: (cluster.paths.run / "cni.sock").exists())
    cluster.cnitool("check", first)
    other = cluster.cnitool("add", second)
    assert not {each["address"] for each in result["ips"]} & {each["address"] for each in other["ips"]}
    metrics = cluster.page("metrics")
    assert 'muster_network_cni_request_seconds_count{command="ADD",result="ok"} 1.0' in metrics
    cluster.stop()
    cluster.node.host.call(cluster.server.start)
    assert "2 interfaces of pods" in cluster.remove()
    assert not (cluster.net / install.LIST).exists()
    assert (cluster.bin / install.PROGRAM).exists()  # pods need it to end


def test_uninstalling_leaves_nothing_on_a_drained_node(cluster: Cluster) -> None:
    cluster.start()
    eventually("the list is installed", lambda: cluster.page("v1/pods")["installed"])
    eventually("addresses are warm", lambda: cluster.page("v1/addresses")["status"]["free"] >= 2)
    pod = cluster.network.namespace("pod")
    cluster.cnitool("add", pod)
    cluster.cnitool("del", pod)
    cluster.stop()
    assert cluster.remove() == ""
    assert list(cluster.net.iterdir()) == []
    assert sorted(each.name for each in cluster.bin.iterdir()) == ["bandwidth", "loopback", "portmap"]
    assert "muster_pods" not in cluster.node.host.run("nft", "list", "tables")
    assert cluster.remove() == ""


def test_list_is_not_installed_while_network_policies_exist_and_no_enforcer_is_named(cluster: Cluster) -> None:
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "deny", "namespace": "default"},
        "spec": {"podSelector": {}},
    }
    cluster.in_host(cluster.objects(POLICIES))
    eventually("the kind is served", lambda: cluster.in_host(created(cluster, policy)))
    cluster.start()
    eventually("the refusal", lambda: "networkPolicyEnforcer" in cluster.page("v1/pods")["problem"])
    assert not (cluster.net / install.LIST).exists()
    cluster.stop()
    cluster.start("  networkPolicyEnforcer: kube-network-policies")
    eventually("the list is installed", lambda: cluster.page("v1/pods")["installed"])
    cluster.stop()
    cluster.start()  # a list that is there stays: pods of this node use it
    eventually("the agent has looked", lambda: cluster.page("v1/pods")["problem"] == "")
    assert cluster.page("v1/pods")["installed"]


async def created(cluster: Cluster, body: dict[str, Any]) -> bool:
    try:
        await cluster.objects(body)
    except Exception:
        return False
    return True


def test_list_of_another_network_that_the_runtime_prefers_is_reported(cluster: Cluster) -> None:
    (cluster.net / "00-other.conflist").write_text("{}")
    cluster.start()
    eventually("the report", lambda: "00-other.conflist" in cluster.page("v1/pods")["problem"])
    eventually("the metric says so", lambda: "muster_network_cni_ready 0.0" in cluster.page("metrics"))
    assert cluster.page("v1/pods")["preferred"] == ["00-other.conflist"]


def test_missing_plugin_is_named_and_nothing_is_installed(cluster: Cluster) -> None:
    (cluster.bin / "portmap").unlink()
    cluster.start()
    eventually("the report", lambda: "pods.hostPorts" in cluster.page("v1/pods")["problem"])
    assert not (cluster.net / install.LIST).exists()
    assert not (cluster.bin / install.PROGRAM).exists()


def test_rules_that_another_program_flushed_are_put_back_and_forwarding_is_reported(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "_PERIOD_S", 0.1)
    cluster.start()
    eventually("the list is installed", lambda: cluster.page("v1/pods")["installed"])
    cluster.node.host.run("nft", "flush", "ruleset")
    eventually("the rules are back", lambda: "muster_pods" in cluster.node.host.run("nft", "list", "tables"))
    cluster.node.host.sysctl("ipv4/ip_forward", "0")
    eventually("the report", lambda: "ip_forward" in cluster.page("v1/pods")["problem"])
    with pytest.raises(CniFailed, match="may have lost connections"):
        cluster.cnitool("status", cluster.network.namespace("pod"))
