"""The chart's DaemonSet of agents, run by a process kubelet: with what its pod is given it writes its node's record.

A process kubelet has no mount namespace: the paths that the chart mounts are replaced in commands and variables, not in
files. So the list of the mesh, which is named in agent.json, is not found, and the check that reads it is off here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import urllib.request
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import muster
from muster.agent.checks import CHECKS
from muster.agent.privilege import CAP_SYSLOG
from muster.api.node_health import NodeHealth, NodeHealthStatus
from muster.controlplane.ports import free_port
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import NotFound
from muster.kube.nodetoken import node_of_token
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from tests.scenarios.agent.conftest import XID
from tests.scenarios.deploy.conftest import CHART, RELEASE, Helm
from tests.scenarios.kubelet.conftest import NodeUnderTest, processes
from tests.support.apiserver import ApiServer
from tests.support.namespaces import install_kinds, make_namespace
from tests.support.waiting import TIMEOUT_S, until

pytestmark = pytest.mark.slow

LABEL = "muster.dev/test-agents"
_PROGRAM = "import encodings.idna, sys; from muster.agent.program import main; sys.exit(main())"
"""As `-m muster.agent`, for a Python that only root may read: what connecting needs is there before the rights go."""


@dataclass
class Installed:
    """The chart's agents, meant for one node."""

    client: Client
    server: ApiServer
    namespace: str
    node: NodeUnderTest
    port: int
    log: Path

    def rendered(self, helm: Helm, *arguments: str) -> list[dict[str, Any]]:
        """What the chart has for agents."""
        selected = LABEL.replace(".", r"\.")
        values = (
            f"health.enabled=true,health.agent.port={self.port},health.agent.nodeSelector.{selected}={self.namespace}"
        )
        only = "--show-only=templates/health-agents.yaml"
        text = helm.ok(
            "template", RELEASE, str(CHART), "--namespace", self.namespace, only, f"--set={values}", *arguments
        )
        return [each for each in yaml.safe_load_all(text) if each]

    async def start(self, daemon_set: dict[str, Any]) -> Pod:
        """Have the DaemonSet's pod run on the node. No scheduler works here, and the embedded cluster has no controller
        of DaemonSets: they are played."""
        if self.server.kind == "embedded":
            await self.client.create(self._pod(daemon_set))
        else:
            await self.client.create(daemon_set)
        pod: Pod = await until("the DaemonSet has a pod", self.pod)
        await self.client.bind(pod.name, self.node.name, namespace=self.namespace, uid=pod.uid)
        return pod

    async def pod(self) -> Pod | None:
        found = (await self.client.list(Pod, self.namespace)).items
        return found[0] if found else None

    def _pod(self, daemon_set: dict[str, Any]) -> dict[str, Any]:
        template = daemon_set["spec"]["template"]
        meta = {**template["metadata"], "name": f"muster-agent-{uuid.uuid4().hex[:5]}", "namespace": self.namespace}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}

    async def health(self) -> NodeHealthStatus:
        try:
            return (await self.client.get(NodeHealth, self.node.name)).status
        except NotFound:
            return NodeHealthStatus()


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that the agent may read too after it gave up root."""
    with tempfile.TemporaryDirectory(prefix="muster-agents-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
async def installed(api_server_for_kubelets: ApiServer, folder: Path) -> AsyncIterator[Installed]:
    """A node in a cluster that knows our kinds."""
    async with Client(load_config(api_server_for_kubelets.kubeconfig)) as client:
        namespace = f"agents-{uuid.uuid4().hex[:8]}"
        flags = ("--cpus=8", "--memory=16Gi", f"--labels={LABEL}={namespace}")
        node = NodeUnderTest(api_server_for_kubelets, client, folder, flags)
        await install_kinds(client)
        await make_namespace(client, namespace)
        await node.start()
        try:
            yield Installed(client, api_server_for_kubelets, namespace, node, free_port(), folder / "kern.log")
        finally:
            await client.request("DELETE", f"/api/v1/namespaces/{namespace}")
            await asyncio.to_thread(node.end)
            with contextlib.suppress(NotFound):
                await client.delete(NodeHealth, node.name)


def held_rights(pod: Pod) -> tuple[bool, int]:
    """Whether the agent's process can gain none, and the set of capabilities that it has."""
    found = [pid for pid in processes(f"MUSTER_POD_UID={pod.uid}") if "muster.agent" in text(f"/proc/{pid}/cmdline")]
    assert len(found) == 1, found
    status = dict(line.split(":\t", 1) for line in text(f"/proc/{found[0]}/status").splitlines() if ":\t" in line)
    return status["NoNewPrivs"] == "1", int(status["CapEff"], 16)


def text(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return str(answer.read().decode())


async def remove(client: Client, body: dict[str, Any]) -> None:
    with contextlib.suppress(NotFound):
        resource = await client.resource(body["apiVersion"], body["kind"])
        await client.request("DELETE", resource.path(body["metadata"].get("namespace"), body["metadata"]["name"]))


async def test_the_charts_pod_writes_its_nodes_record_with_what_it_is_given(
    installed: Installed,
    offline_helm: Helm,
) -> None:
    client, node = installed.client, installed.node
    checks: dict[str, Any] = {name: {"enabled": False} for name in CHECKS if name != "kernel-log"}
    checks["kernel-log"] = {"options": {"file": str(installed.log)}, "periodSeconds": 0.2}
    config = {"checks": checks, "periodSeconds": 0.5, "policyVersion": "chart-test"}
    command = f"--set-json=health.agent.command={json.dumps(['python', '-c', _PROGRAM])}"
    objects = installed.rendered(offline_helm, f"--set-json=health.agent.config={json.dumps(config)}", command)
    [daemon_set] = [each for each in objects if each["kind"] == "DaemonSet"]
    installed.log.write_text(f"4,1,1000000,-;{XID}\n")
    try:
        for each in objects:
            if each is not daemon_set:
                await client.create(each)
        pod = await installed.start(daemon_set)

        async def found() -> NodeHealthStatus | None:
            health = await installed.health()
            return health if health.findings else None

        try:
            health: NodeHealthStatus = await until("the agent writes its node's record", found)
        except AssertionError as error:
            state = str(await installed.pod())
            logs = [file.read_text() for file in node.state_dir.rglob("*.log")]
            raise AssertionError("\n".join([str(error), state, *logs, node.log.read_text()[-3000:]])) from None

        # Its token is the account's, for a pod on this node; so it knows which node that is.
        seen = await client.get(Node, node.name)
        assert health.node_uid == seen.uid
        token = text(node.state_dir / "pods" / pod.uid / "volumes/token/token")
        assert node_of_token(f"Bearer {token}") == (node.name, health.node_uid)
        # What it reads of the machine it finds below the mounted root; its settings are the ConfigMap's.
        assert health.boot_id == text("/proc/sys/kernel/random/boot_id").strip()
        assert [(each.check, each.code) for each in health.findings] == [("xid", "79")]
        assert (health.policy_version, health.agent_version) == ("chart-test", muster.__version__)
        # It listens on the node's address alone, where its probe asks.
        address = seen.status.addresses[0].address
        assert page(f"http://{address}:{installed.port}/healthz") == "ok\n"
        running = await until("it runs", lambda: _running(installed))
        assert (running.status.host_ip, running.status.pod_ip) == (address, address)
        is_final, capabilities = held_rights(pod)
        assert is_final
        assert capabilities & ~(1 << CAP_SYSLOG) == 0, "it has let go of the rights it was started with"
    finally:
        for each in objects:
            await remove(client, each)


async def _running(installed: Installed) -> Pod | None:
    pod = await installed.pod()
    return pod if pod is not None and pod.status.phase == "Running" else None
