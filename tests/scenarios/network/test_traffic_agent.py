"""Issue 16.A: the network agent on a node with real packets: jobs of the API server, counters of the kernel.

The node is a network namespace. Its pods are objects of the API server, and namespaces with the pods' addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.controlplane.ports import free_port
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.objects.pod import Pod
from muster.network.traffic.report import Nic, TrafficReport
from muster.network.traffic.usage import usage
from tests.support.apiserver import Api, ApiServer
from tests.support.namespaces import make_namespace
from tests.support.netnsrelay import relayed
from tests.support.networknamespaces import Namespace, Network, Node, connected, need_namespaces, transfer
from tests.support.waiting import until

pytestmark = pytest.mark.slow

INTERNET, STORE = "198.51.100.7", "203.0.113.9"
CONFIG = {
    "traffic": {
        "enabled": True,
        "periodSeconds": 0.2,
        "uplinkInterfaces": ["eth0"],
        "classes": {"object-store": ["203.0.113.0/24"]},
        "pods": True,
        "exporterNames": True,
    }
}


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    need_namespaces("nft")
    with Network() as network:
        made = network.node(pods=3)
        for address in (INTERNET, STORE):
            made.outside_address(address)
        yield made


@dataclass
class Site:
    """An agent on the node, and the API server that knows the node's pods."""

    client: Client
    namespace: str
    node: Node
    node_name: str
    folder: Path
    kubeconfig: Path
    config: dict[str, Any] = field(default_factory=lambda: CONFIG)
    options: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def command(self, *more: str) -> list[str]:
        """The command line of an agent in the node's network."""
        config = self.folder / "network.yaml"
        config.write_text(json.dumps(self.config))
        options = (
            f"--node={self.node_name} --config={config} --kubeconfig={self.kubeconfig} "
            f"--state-dir={self.folder}/state --run-dir={self.folder}/run"
        )
        program = (sys.executable, "-m", "muster.cli.main", "network", "agent")
        return self.node.host.argv(*program, *options.split(), *self.options, *more)

    def start(self) -> None:
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(f"--listen=127.0.0.1:{self.port}"),
                stderr=log,
                stdout=log,
                env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None

    def text(self, path: str) -> str:
        def get() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                found: str = answer.read().decode()
                return found

        return self.node.host.call(get)

    async def report(self) -> dict[str, Any]:
        """The newest report, once the agent has read the counters."""

        async def read() -> dict[str, Any] | None:
            try:
                found: dict[str, Any] = json.loads(await asyncio.to_thread(self.text, "/v1/traffic"))
            except (urllib.error.URLError, ConnectionError):
                return None
            return found if found["taken_s"] else None

        return await until("the agent has a report", read)

    async def counted(self, wanted: dict[str, int]) -> dict[str, int]:
        """Wait until these rows have these bytes; return the bytes of all rows. Names are `job/class/direction`.

        Name all rows that the test asserts: the agent may have read the counters between two flows, or within one.
        """

        async def read() -> dict[str, int] | None:
            found = sums(await self.report())
            return found if all(found.get(row, 0) >= size for row, size in wanted.items()) else None

        return await until(f"counted: {wanted}; see {self.folder}/agent.log", read)

    async def pod(self, name: str, number: int | None, labels: dict[str, str]) -> Pod:
        """Create a pod on the node with the addresses of its pod `number`; with None, on the host network."""
        spec = {
            "nodeName": self.node_name,
            "hostNetwork": number is None,
            "containers": [{"name": "c", "image": "image:1"}],
            "automountServiceAccountToken": False,
        }
        await self.client.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": self.namespace, "labels": labels},
                "spec": spec,
            }
        )
        addresses = self.node.addresses(number) if number is not None else ("192.0.2.1",)
        status = {"phase": "Running", "podIP": addresses[0], "podIPs": [{"ip": each} for each in addresses]}
        return await self.client.patch(Pod, name, {"status": status}, namespace=self.namespace, subresource="status")


def sums(report: dict[str, Any]) -> dict[str, int]:
    found: defaultdict[str, int] = defaultdict(int)
    for _, job, _, cls, direction, size, _ in report["rows"]:
        found[f"{job}/{cls}/{direction}"] += size
    return dict(found)


def download(node: Node, pod: Namespace, count: int, *, address: str = INTERNET, size: int = 972) -> int:
    """Send datagrams from the outside to a pod; return their IP bytes."""
    to = node.addresses(node.pods.index(pod))[0]
    with pod.socket(kind=socket.SOCK_DGRAM) as receiver, node.outside.socket(kind=socket.SOCK_DGRAM) as sender:
        receiver.bind((to, 0))
        sender.bind((address, 0))
        for _ in range(count):
            sender.sendto(bytes(size), receiver.getsockname())
            receiver.recv(2048)
    return count * (size + 28)


@pytest.fixture
async def site(api_server: ApiServer, node: Node, tmp_path: Path) -> AsyncIterator[Site]:
    """A site on each API server."""
    async with making_site(api_server, node, tmp_path) as made:
        yield made


@pytest.fixture
async def one_site(embedded_server: ApiServer, node: Node, tmp_path: Path) -> AsyncIterator[Site]:
    """A site for what does not depend on the API server."""
    async with making_site(embedded_server, node, tmp_path) as made:
        yield made


@contextlib.asynccontextmanager
async def making_site(api_server: ApiServer, node: Node, tmp_path: Path) -> AsyncIterator[Site]:
    port = Api(api_server.kubeconfig).server.port
    assert port
    async with Client(load_config(api_server.kubeconfig)) as client, relayed(node.host, port):
        namespace = f"traffic-{uuid.uuid4().hex[:8]}"
        await make_namespace(client, namespace)
        made = Site(client, namespace, node, f"node-{namespace}", tmp_path, api_server.kubeconfig)
        try:
            yield made
        finally:
            made.kill()
            node.host.run("nft", "flush", "ruleset")
            await client.request("DELETE", f"/api/v1/namespaces/{namespace}")


async def test_bytes_of_a_job_survive_kills_of_the_agent_and_the_end_of_its_pods(site: Site) -> None:
    node = site.node
    await site.pod("train-0", 0, {"muster.dev/gang": "train", "muster.dev/team": "vision"})
    await site.pod("web-0", 1, {"app": "web"})
    site.start()
    await site.report()
    await until("the pods are counted", lambda: _counts(site, "train-0", "web-0"))
    sent = download(node, node.pods[0], 30)
    other = download(node, node.pods[1], 10)
    stored = download(node, node.pods[0], 5, address=STORE)
    wanted = {"train/internet/in": sent, "train/object-store/in": stored, "/internet/in": other}
    found = await site.counted(wanted)
    assert {row: found[row] for row in wanted} == wanted
    page = site.text("/metrics")
    labels = f'class="internet",direction="in",job="train",namespace="{site.namespace}",team="vision"'
    assert metric(page, "muster_network_bytes_total", labels) == sent
    rule = f'chain="forward",rule="namespace={site.namespace} job=train traffic=internet-in",table="mangle"'
    assert metric(page, "iptables_bytes", rule) == sent
    assert metric(page, "iptables_packets", rule) == 30
    assert site.text("/healthz") == "ok\n"

    site.kill()
    sent += download(node, node.pods[0], 20)
    await site.client.delete(Pod, "train-0", namespace=site.namespace, grace_s=0)
    site.start()
    found = await site.counted({"train/internet/in": sent})
    assert found["train/internet/in"] == sent, "what it moved while the agent was down"
    await site.pod("train-1", 2, {"muster.dev/gang": "train", "muster.dev/team": "vision"})
    await until("the next pod is counted", lambda: _counts(site, "train-1"))
    sent += download(node, node.pods[2], 7)
    found = await site.counted({"train/internet/in": sent})
    assert found["train/internet/in"] == sent
    assert found["/internet/in"] == other

    report = msgspec.convert(await site.report(), TrafficReport)
    since_the_ledger_began = msgspec.structs.replace(report, interval_s=1.0, previous=(), nic_previous=Nic())
    checks = usage([since_the_ledger_began]).checks
    assert checks["in"].nic_bps >= (sent + other + stored) * 8
    assert abs(checks["in"].difference) < 0.01, "out is a few packets of ARP, which is not IP"


async def test_top_shows_who_uses_the_uplink_and_what_it_could_not_reach(one_site: Site) -> None:
    node = one_site.node
    await one_site.pod("load-0", 0, {"muster.dev/gang": "load", "muster.dev/team": "vision"})
    one_site.start()
    await one_site.report()
    await until("the pod is counted", lambda: _counts(one_site, "load-0"))

    async def shown() -> dict[str, Any] | None:
        download(node, node.pods[0], 40)
        report = await one_site.report()
        now, before = (sums(each).get("load/internet/in", 0) for each in (report, {"rows": report["previous"]}))
        return report if now > before else None

    await until("a reading with traffic", shown)
    gone = f"http://127.0.0.1:{free_port()}"
    urls = ("--url", f"http://127.0.0.1:{one_site.port}", "--url", gone)
    done = await asyncio.to_thread(
        subprocess.run,
        node.host.argv(sys.executable, "-m", "muster.cli.main", "network", "top", *urls, "-o", "json"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, "one of the two did not answer"
    data = json.loads(done.stdout)
    assert [each["node"] for each in data["problems"]] == [gone]
    job = next(each for each in data["jobs"] if each["job"] == "load")
    assert (job["namespace"], job["team"], job["nodes"]) == (one_site.namespace, "vision", 1)
    assert job["in_bytes"] >= 40_000
    assert set(job["classes"]) == {"internal", "internet", "object-store"}


async def test_network_card_that_is_attached_later_is_counted_and_no_total_is_lost(one_site: Site) -> None:
    """As a CNI of a cloud attaches them. Here another link of the node gets a device."""
    node = one_site.node
    cards = one_site.folder / "sys/class/net"
    (cards / "eth0/device").mkdir(parents=True)
    one_site.config = {"traffic": {"enabled": True, "periodSeconds": 0.2, "pods": True}}
    one_site.options = (f"--sys={one_site.folder}/sys",)
    await one_site.pod("load-0", 0, {"muster.dev/gang": "load"})
    one_site.start()
    assert (await one_site.report())["interfaces"] == ["eth0"]
    await until("the pod is counted", lambda: _counts(one_site, "load-0"))
    sent = download(node, node.pods[0], 10)
    await one_site.counted({"load/internet/in": sent})
    (cards / "pod2/device").mkdir(parents=True)

    async def both() -> bool:
        return sorted((await one_site.report())["interfaces"]) == ["eth0", "pod2"]

    await until("the further card is found", both)
    sent += download(node, node.pods[0], 10)
    address = node.addresses(2)[0]
    with node.pods[2].socket(kind=socket.SOCK_DGRAM) as receiver, node.pods[0].socket(kind=socket.SOCK_DGRAM) as sender:
        receiver.bind((address, 0))
        for _ in range(20):
            sender.sendto(bytes(972), receiver.getsockname())
            receiver.recv(2048)

    found = await one_site.counted({"load/internal/out": 20_000, "load/internet/in": sent})
    assert found["load/internal/out"] == 20_000
    assert found["load/internet/in"] == sent


async def test_remove_takes_the_counters_out_of_the_kernel_and_keeps_the_ledger(one_site: Site) -> None:
    one_site.start()
    await one_site.report()
    tables = one_site.node.host.run("nft", "list", "tables")
    assert "muster" in tables
    one_site.kill()
    assert one_site.node.host.run("nft", "list", "tables") == tables, "the kernel counts while the agent is away"
    for _ in range(2):
        done = await asyncio.to_thread(
            subprocess.run, one_site.command("--remove"), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "muster" not in one_site.node.host.run("nft", "list", "tables")
    assert (one_site.folder / "state/traffic/ledger.json").exists()


async def _counts(site: Site, *pods: str) -> bool | None:
    await site.report()
    page = await asyncio.to_thread(site.text, "/metrics")
    return all(f'pod="{pod}"' in page for pod in pods) or None


def metric(page: str, name: str, labels: str) -> float:
    line = next(line for line in page.splitlines() if line.startswith(f"{name}{{{labels}}}"))
    return float(line.rpartition(" ")[2])


@pytest.fixture
def kubepods() -> Iterator[Path]:
    """A folder of control groups as a kubelet makes it, of the unified hierarchy."""
    top = Path("/sys/fs/cgroup")
    root = (top if (top / "cgroup.controllers").exists() else top / "unified") / f"muster-test-{uuid.uuid4().hex[:8]}"
    folder = root / "kubepods"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        reason = f"no control groups of version 2 for this user: {error}"
        if os.environ.get("MUSTER_REQUIRE_REAL") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    try:
        yield folder
    finally:
        for group in sorted(root.rglob("*"), reverse=True):
            if group.is_dir():
                group.rmdir()
        root.rmdir()


SEND = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    for _ in range(int(sys.argv[1])):
        sender.sendto(bytes(972), ("198.51.100.7", 9999))
"""


def upload(node: Node, group: Path, count: int) -> int:
    """Send datagrams from the host's network, as a process of a control group; return their IP bytes."""
    enter = f"echo $$ > {group}/cgroup.procs && exec {sys.executable} -c '{SEND}' {count}"
    node.host.run("sh", "-c", enter)
    return count * 1000


async def test_google_cadvisor_2615_and_opencost_335_pods_on_the_host_network_are_counted_apart(
    one_site: Site, kubepods: Path
) -> None:
    """Both share the node's address, and cAdvisor reports the node's bytes for each. OpenCost splits them evenly."""
    node = one_site.node
    groups = []
    for job in ("one", "three"):
        made = await one_site.pod(f"{job}-0", None, {"muster.dev/gang": job})
        groups.append(kubepods / f"pod{made.uid}")
        groups[-1].mkdir()
    one_site.start()
    await until("the pods are counted", lambda: _counts(one_site, "one-0", "three-0"))
    with node.outside.socket(kind=socket.SOCK_DGRAM) as receiver:
        receiver.bind((INTERNET, 9999))
        one, three = upload(node, groups[0], 50), upload(node, groups[1], 150)

    async def read() -> dict[str, int] | None:
        found = sums(await one_site.report())
        return found if found.get("three/internet/out", 0) >= three else None

    found = await until("three is counted", read)
    assert (found["one/internet/out"], found["three/internet/out"]) == (one, three)
    assert (found["one/internet/in"], found["three/internet/in"]) == (0, 0)
    assert found["(host)/internet/out"] < one


async def test_opencost_1299_download_that_a_pod_starts_is_counted_as_its_own_behind_snat(one_site: Site) -> None:
    """The outside sees the node's address only, and sends to that."""
    node = one_site.node
    node.host.run(
        "nft",
        "add table ip nat; add chain ip nat post { type nat hook postrouting priority 100; }; "
        "add rule ip nat post oifname eth0 masquerade",
    )
    await one_site.pod("load-0", 0, {"muster.dev/gang": "load"})
    one_site.start()
    await until("the pod is counted", lambda: _counts(one_site, "load-0"))
    size = 300_000
    with connected(node.outside, INTERNET, node.pods[0]) as (server, client):
        assert server.getpeername()[0] == "192.0.2.1"
        transfer(server, client, size)
    found = await one_site.counted({"load/internet/in": size})
    assert size <= found["load/internet/in"] < size * 1.1
    assert 0 < found["load/internet/out"] < size * 0.1
