"""Agents as processes of their own, each with the token of a pod on its node, on both API servers."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
import urllib.request
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from muster.api.node_health import NodeHealth, NodeHealthStatus
from muster.controlplane.children import Child
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.errors import ApiError, NotFound
from muster.kube.objects.affinity import Toleration
from muster.kube.objects.auth import BoundObjectReference, TokenRequest, TokenRequestSpec
from muster.kube.objects.container import Container
from muster.kube.objects.core import ServiceAccount
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod, PodSpec
from tests.support.namespaces import install_kinds, make_namespace
from tests.support.waiting import TIMEOUT_S, until

ROOT: Final = Path(__file__).parents[3]
ACCOUNT: Final = "muster-agent"
XID: Final = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python3, GPU has fallen off the bus."
_PROGRAM: Final = """
import sys
from muster.agent.checks import CHECKS
from muster.agent.program import main
keep = {"kernel-log"}
for name in [name for name in CHECKS if name not in keep]:
    del CHECKS[name]
CHECKS.update(arg.split("=") for arg in sys.argv[1].split(",") if arg)
sys.exit(main(sys.argv[2:]))
"""
"""The agent with the kernel log and the checks it is given: what else this machine has to look at is not a test's."""


@dataclass
class Machine:
    """What an agent sees of a node, below a folder."""

    folder: Path
    node: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log.parent.mkdir(parents=True)
        self.log.touch()
        proc = self.folder / "proc"
        (proc / "sys/kernel/random").mkdir(parents=True)
        (proc / "sys/kernel/random/boot_id").write_text(f"{uuid.uuid4()}\n")
        self.drive("570.86.15", gpus=8)

    @property
    def log(self) -> Path:
        return self.folder / "var/log/kern.log"

    @property
    def boot_id(self) -> str:
        return (self.folder / "proc/sys/kernel/random/boot_id").read_text().strip()

    def drive(self, version: str, gpus: int) -> None:
        """Load a driver, as /proc says it."""
        driver = self.folder / "proc/driver/nvidia"
        for number in range(gpus):
            (driver / f"gpus/0000:{number:02x}:00.0").mkdir(parents=True, exist_ok=True)
        line = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Thu Jan  9 00:00:00 UTC 2025\n"
        (driver / "version").write_text(line)

    def say(self, *messages: str, at_s: float = 100.0) -> None:
        """Have the kernel log lines, as /dev/kmsg has them."""
        with self.log.open("a") as file:
            file.write("".join(f"4,1,{int(at_s * 1e6)},-;{message}\n" for message in messages))


class Agent:
    """One agent's process. Its metrics are at a port that the system chose."""

    def __init__(self, machine: Machine, kubeconfig: Path, checks: str, options: tuple[str, ...] = ()) -> None:
        self.machine = machine
        settings = machine.folder / "agent.json"
        checks_set = {"kernel-log": {"options": {"file": "var/log/kern.log"}, "periodSeconds": 0.1}}
        settings.write_text(json.dumps({"periodSeconds": 0.2, "checks": checks_set, **machine.settings}))
        self._log = machine.folder / "agent.log"
        self._before = len(self.said())
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "KUBECONFIG": str(kubeconfig)}
        arguments = ["--listen=127.0.0.1:0", f"--node={machine.node}", f"--settings={settings}", *options]
        command = [sys.executable, "-c", _PROGRAM, checks, *arguments, f"--root={machine.folder}"]
        self.child = Child(command, self._log, env)

    def said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def page(self, path: str) -> str:
        """What it answers, or "" while it does not."""
        said = self.said()[self._before :]
        if "metrics on http://" not in said:
            return ""
        base = said.split("metrics on ")[1].split("/metrics")[0]
        with urllib.request.urlopen(base + path, timeout=TIMEOUT_S) as answer:
            return str(answer.read().decode())

    def metric(self, name: str) -> float:
        """A value of /metrics; 0 where it is not there."""
        lines = self.page("/metrics").splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name), 0.0)


class Agents:
    """Nodes, and agents on them."""

    def __init__(self, client: Client, config: ClusterConfig, namespace: str, folder: Path) -> None:
        self.client, self._config, self.namespace, self._folder = client, config, namespace, folder
        self._running: list[Agent] = []
        self._machines: list[str] = []

    async def machine(self, name: str = "", **settings: Any) -> Machine:
        """A node of the cluster, with files of its own."""
        name = name or f"node-{uuid.uuid4().hex[:8]}"
        await self.client.create(Node(metadata=ObjectMeta(name=name)))
        self._machines.append(name)
        return Machine(self._folder / name, name, settings)

    async def token(self, node: str, account: str = ACCOUNT) -> str:
        """The token of a pod of that account on that node, as its kubelet would ask for it."""
        name = f"agent-{uuid.uuid4().hex[:8]}"
        spec = PodSpec(
            containers=(Container(name="agent", image="agent"),),
            service_account_name=account,
            node_name=node,
            tolerations=(Toleration(operator="Exists"),),
        )
        pod = await self.client.create(Pod(metadata=ObjectMeta(name=name, namespace=self.namespace), spec=spec))
        bound = BoundObjectReference(kind="Pod", api_version="v1", name=name, uid=pod.uid)
        request = TokenRequest(spec=TokenRequestSpec(bound_object_ref=bound))
        return (await self.client.create_token(account, request, namespace=self.namespace)).status.token

    def kubeconfig(self, token: str) -> Path:
        """A kubeconfig for the bearer of this token; JSON is YAML."""
        cluster = {"server": self._config.server}
        if self._config.ca_data:
            cluster["certificate-authority-data"] = base64.b64encode(self._config.ca_data).decode()
        path = self._folder / f"{uuid.uuid4().hex}.kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": "u", "user": {"token": token}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "c",
                }
            )
        )
        return path

    async def start(self, machine: Machine, checks: str = "", options: tuple[str, ...] = ()) -> Agent:
        agent = Agent(machine, self.kubeconfig(await self.token(machine.node)), checks, options)
        self._running.append(agent)
        return agent

    async def health(self, node: str) -> NodeHealthStatus:
        """The content of its record; empty without a record."""
        try:
            return (await self.client.get(NodeHealth, node)).status
        except NotFound:
            return NodeHealthStatus()

    async def until_found(self, node: str, check: str, code: str, count: int = 1) -> NodeHealthStatus:
        """Wait until its record has so many of them."""

        async def found() -> NodeHealthStatus | None:
            health = await self.health(node)
            seen = sum(each.count for each in health.findings if (each.check, each.code) == (check, code))
            return health if seen >= count else None

        status: NodeHealthStatus = await until(f"{check}/{code} of {node} is written", found, ignoring=(ApiError,))
        return status

    async def end(self) -> None:
        """Stop the agents and delete their nodes: the tests of other files use the same cluster."""
        for agent in self._running:
            agent.child.stop(grace_s=2)
        for name in self._machines:
            with contextlib.suppress(NotFound):
                await self.client.delete(Node, name)


@pytest.fixture
async def client(cluster_config: ClusterConfig) -> AsyncIterator[Client]:
    async with Client(cluster_config, timeout_s=20) as made:
        yield made


async def account_of_agents(client: Client, namespace: str, name: str = ACCOUNT) -> list[dict[str, Any]]:
    """A service account with the rights that the chart gives to agents, under a name of its own. Returns its rules."""
    await client.create(ServiceAccount(metadata=ObjectMeta(name=name, namespace=namespace)))
    role = f"{namespace}-{name}"
    rules = [
        {"apiGroups": ["muster.dev"], "resources": ["nodehealths"], "verbs": ["get", "create"]},
        {"apiGroups": ["muster.dev"], "resources": ["nodehealths/status"], "verbs": ["patch"]},
    ]
    group = "rbac.authorization.k8s.io"
    await client.create(
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": role}, "rules": rules}
    )
    await client.create(
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": role},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
    )
    return rules


@pytest.fixture
async def agents(client: Client, cluster_config: ClusterConfig, tmp_path: Path) -> AsyncIterator[Agents]:
    """Agents with exactly the rights they have in the chart."""
    await install_kinds(client)
    namespace = f"agents-{uuid.uuid4().hex[:8]}"
    await make_namespace(client, namespace)
    await account_of_agents(client, namespace)
    made = Agents(client, cluster_config, namespace, tmp_path)
    try:
        yield made
    finally:
        await made.end()
