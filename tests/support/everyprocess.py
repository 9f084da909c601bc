"""The processes of tests/support/everymetric.py: those of ours that export metrics, and process kubelets.

Each process has the job label that the chart's monitors give it (`jobLabel: app.kubernetes.io/component`).
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from muster.controlplane.children import Child
from muster.controlplane.ports import free_port
from muster.data.cache.program import SOCKET
from muster.embedded.kubelet.sweep import sweep
from tests.support.apiserver import SOURCE, ApiServer
from tests.support.awsserver import CREDENTIALS
from tests.support.everyconfig import GPUS, SYSTEM, Json
from tests.support.loopback import loopback_subnet
from tests.support.peergang import SIGNER, loopback

GUARD_TOKENS: Final = {"people": "token-of-people-0123456789", "tiny": "token-of-tiny-0123456789"}
"""Tokens for the guard, by caller."""
SMALL_CACHE_BYTES: Final = 8 << 20
"""Size of the cache of the second node. The first one has more."""
_XID: Final = "NVRM: Xid (PCI:0000:{}:00): 79, pid=4711, name=python3, GPU has fallen off the bus."


@dataclass
class Component:
    """A process of ours that exports metrics.

    Attributes:
        job: its label `job`.
        name: of its pod.
        child: the process.
        port: of its metrics on 127.0.0.1.
        command: that starts it; () if nothing starts it again.
        namespace: of its pod.
    """

    job: str
    name: str
    child: Child
    port: int
    command: Sequence[str] = ()
    namespace: str = SYSTEM

    @property
    def target(self) -> str:
        """As Prometheus scrapes it."""
        return f"127.0.0.1:{self.port}"


@dataclass
class KubeletNode:
    """A process kubelet. Its cluster id is its own, so that all of a node can be lost at once."""

    name: str
    child: Child
    cluster_id: str

    def lose(self) -> None:
        """As when the machine loses power: kubelet, supervisors and ranks are gone at once."""
        self.child.stop(grace_s=0)
        sweep(self.cluster_id)


class Processes:
    """All processes except the API server, Prometheus and the network agent.

    Args:
        folder: of their files.
        plane: the API server.

    Attributes:
        components: the processes with metrics, by the name of their pod.
        nodes: the kubelets by node.
        read_cache: where the read cache serves.
        webhook: where the webhook answers.
        guard: where the guard of Prometheus serves.
        prometheus_port: of the server behind the guard.
        cloud_port: where pools of provider aws look for AWS.
        hub_port: where network agents connect to the first controller.
        cache_addresses: where data caches serve other nodes.
    """

    def __init__(self, folder: Path, plane: ApiServer) -> None:
        self.components: dict[str, Component] = {}
        self.nodes: dict[str, KubeletNode] = {}
        self.cache_addresses: list[str] = loopback(2)
        self._folder = folder
        self._plane = plane
        self._taken: set[int] = set()
        self.cloud_port, self.hub_port, self.prometheus_port = (self.free_port() for _ in range(3))
        self.read_cache, self.webhook, self.guard = (f"127.0.0.1:{self.free_port()}" for _ in range(3))

    def free_port(self) -> int:
        """A port that is free, and was not returned before."""
        port = free_port(self._taken)
        self._taken.add(port)
        return port

    @property
    def targets(self) -> dict[str, list[str]]:
        """Addresses by job."""
        found: dict[str, list[str]] = {}
        for each in self.components.values():
            found.setdefault(each.job, []).append(each.target)
        return found

    def scrape_configs(self) -> list[Json]:
        """As the Prometheus Operator writes them for the chart's monitors, without discovery."""
        found = []
        for job in self.targets:
            static = [
                {"targets": [each.target], "labels": {"namespace": each.namespace, "pod": each.name}}
                for each in self.components.values()
                if each.job == job
            ]
            # These monitors have honorLabels: `job` and `namespace` are those of the traffic, or of the readers.
            found.append({"job_name": job, "static_configs": static, "honor_labels": job in ("network", "cache")})
        return found

    def start(self) -> None:
        """Start all but the second controller, which waits until the first one leads."""
        for number in range(3):
            self.add_node(f"worker-{number}", role="worker")
        self.control("controller-0", self.hub_port)
        self._start("admission", "admission-0", "admission", f"--namespace={SYSTEM}", f"--listen={self.webhook}")
        self._start(
            "readcache", "readcache-0", "readcache", f"--listen={self.read_cache}", f"--namespace={SYSTEM}",
            "--decision-age=600",
        )  # fmt: skip
        self._start("controller", "shadow-0", "controller", "--shadow", "--namespace=shadow", namespace="shadow")
        self._agent("worker-2")
        self._guard()
        (self._folder / "ticket.pub").write_text(f"{SIGNER.public_key}\n")
        for number, (address, size) in enumerate(zip(self.cache_addresses, (1 << 30, SMALL_CACHE_BYTES), strict=True)):
            self._cache(f"cache-{number}", address, size)

    def control(self, name: str, hub_port: int = 0) -> None:
        """Start a controller with all parts; one of them leads."""
        parts = ["teams", "balloons", "joins", "scaling", "health", "preflight", "break-glass"]
        self._start(
            "controller",
            name,
            "controller",
            *(f"--{part}" for part in parts),
            f"--namespace={SYSTEM}",
            f"--listen=127.0.0.1:{self.free_port()}",
            f"--uplink-listen=127.0.0.1:{hub_port}",
            "--lease-duration=6",
        )

    def add_node(self, name: str, *, role: str, gpus: int = GPUS) -> None:
        """Start a kubelet."""
        cluster_id = f"test-{uuid.uuid4().hex[:12]}"
        subnet = loopback_subnet()
        arguments = (
            f"--node={name}", f"--kubeconfig={self._plane.kubeconfig}", f"--state-dir={self._folder / name}",
            f"--cluster-id={cluster_id}", f"--address={subnet}.1", f"--pod-cidr={subnet}.0/24", f"--gpus={gpus}",
            f"--labels=role={role}", "--cpus=8", "--memory=16Gi", "--sync-period-s=0.5", "--lease-period-s=2",
            *self._plane.kubelet_flags,
        )  # fmt: skip
        child = Child([sys.executable, "-m", "muster.embedded.kubelet", *arguments], self.log(name), self._environment)
        self.nodes[name] = KubeletNode(name, child, cluster_id)

    def accept_clients(self) -> bool:
        """Return whether each process accepts connections of its clients: its metrics can be scraped before that."""
        served = (each.rpartition(":") for each in (self.read_cache, self.webhook, self.guard))
        caches = (str(self._folder / each.name / SOCKET) for each in self.components.values() if each.job == "cache")
        return all(_accepts(socket.AF_INET, (host, int(port))) for host, _, port in served) and all(
            _accepts(socket.AF_UNIX, path) for path in caches
        )

    def restart(self, name: str) -> None:
        """Kill a process and start it again, as the kubelet does with a container."""
        component = self.components[name]
        component.child.stop(grace_s=0)
        component.child = Child(component.command, self.log(name), self._environment)

    def stop(self) -> None:
        """End all processes."""
        for each in self.components.values():
            each.child.stop(grace_s=0)
        for node in self.nodes.values():
            node.lose()

    def logs(self) -> str:
        """The ends of all logs, for a test that fails."""
        return "\n".join(f"--- {each.name}\n{each.child.log_tail(12)}" for each in self.components.values())

    @property
    def _environment(self) -> dict[str, str]:
        cloud = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.cloud_port}", **CREDENTIALS}
        return {**os.environ, "PYTHONPATH": str(SOURCE), **cloud}

    def log(self, name: str) -> Path:
        """The file for the output of a process."""
        return self._folder / f"{name}.log"

    def _start(self, job: str, name: str, *arguments: str, namespace: str = SYSTEM) -> None:
        port = self.free_port()
        command = [sys.executable, "-m", "muster.cli.main", *arguments, f"--metrics-listen=127.0.0.1:{port}"]
        if job != "guard":
            command.append(f"--kubeconfig={self._plane.kubeconfig}")
        child = Child(command, self.log(name), self._environment)
        self.components[name] = Component(job, name, child, port, command, namespace)

    def _agent(self, node: str) -> None:
        root = self._folder / f"{node}-root"
        (root / "var/log").mkdir(parents=True)
        (root / "var/log/kern.log").touch()
        (root / "proc/sys/kernel/random").mkdir(parents=True)
        (root / "proc/sys/kernel/random/boot_id").write_text(f"{uuid.uuid4()}\n")
        settings = root / "agent.json"
        checks = {"kernel-log": {"options": {"file": "var/log/kern.log"}, "periodSeconds": 0.1}}
        settings.write_text(json.dumps({"periodSeconds": 0.5, "checks": checks}))
        port = self.free_port()
        command = [
            sys.executable, "-m", "muster.agent", f"--node={node}", f"--kubeconfig={self._plane.kubeconfig}",
            f"--root={root}", f"--settings={settings}", f"--listen=127.0.0.1:{port}",
        ]  # fmt: skip
        self.components["agent-0"] = Component(
            "agent", "agent-0", Child(command, self.log("agent-0"), self._environment), port
        )

    def break_gpu(self, bus: str = "3b") -> None:
        """The kernel of the agent's node logs that the GPU on this PCI bus cannot be reached any more."""
        with (self._folder / "worker-2-root/var/log/kern.log").open("a") as file:
            file.write(f"4,1,{int(time.monotonic() * 1e6)},-;{_XID.format(bus)}\n")

    def _guard(self) -> None:
        config, token = self._folder / "guard.yaml", self._folder / "guard-token"
        token.write_text("of-the-guard\n")  # Prometheus has no callers, so it does not look at it
        upstream = {"url": f"http://127.0.0.1:{self.prometheus_port}", "tokenFile": str(token)}
        callers = [
            {"name": name, "group": name, "sha256": hashlib.sha256(token.encode()).hexdigest()}
            for name, token in GUARD_TOKENS.items()
        ]
        groups = {"people": {"limits": {"maxSeries": 1000}}, "tiny": {"eachCaller": {"costPerMinute": 1}}}
        content = {"callers": {"tokens": callers}, "groups": groups, "inAll": {"concurrentCost": 1_000_000_000}}
        config.write_text(yaml.safe_dump({"upstream": upstream, **content, "queue": {"waitSeconds": 0}}))
        self._start("guard", "guard-0", "guard", f"--config={config}", f"--listen={self.guard}")

    def _cache(self, name: str, address: str, size_bytes: int) -> None:
        port = self.free_port()
        command = [
            sys.executable, "-m", "muster.data.cache", f"--node={name}", f"--state-dir={self._folder / name}/state",
            f"--socket-dir={self._folder / name}", f"--size={size_bytes}", "--floor=0", f"--metrics-port={port}",
            f"--address={address}", f"--ticket-key={self._folder / 'ticket.pub'}",
        ]  # fmt: skip
        (self._folder / name).mkdir()
        self.components[name] = Component("cache", name, Child(command, self.log(name), self._environment), port)


def _accepts(family: socket.AddressFamily, address: tuple[str, int] | str) -> bool:
    with socket.socket(family) as client:
        return client.connect_ex(address) == 0
