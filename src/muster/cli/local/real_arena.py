"""A temporary cluster with a real control plane, process kubelets, the controller with the chart's rights, and S3."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import tempfile
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from muster.api.names import SYSTEM_NAMESPACE
from muster.cli.errors import CliError
from muster.cli.local.arena import NODE_GRACE_S, OnStage, undisturbed
from muster.cli.target import Cluster
from muster.controlplane.chart import rendered
from muster.controlplane.children import Child
from muster.controlplane.goprograms import NotBuiltError, find_built
from muster.controlplane.ports import free_port
from muster.controlplane.programs import ControlPlane, ControlPlaneError, ControlPlaneUnavailableError, find_binaries
from muster.controlplane.s3server import REGION, S3Server, S3ServerError
from muster.embedded import programs, ranks, readiness
from muster.embedded.kubelet.sweep import sweep
from muster.embedded.layout import ClusterSpec
from muster.embedded.realplane import NODE_ACCOUNT, NODE_RULES, SERVICE_ACCOUNT
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.objects.core import Secret
from muster.kube.objects.meta import ObjectMeta

_READY_S = 90.0
_NAMESPACE, _BUCKET, _SECRET = "default", "demo", "demo-store"


class RealArena:
    """A cluster of kube-apiserver, etcd, kube-controller-manager, process kubelets and the controller; an S3 server."""

    def __init__(self, nodes: int, gpus: int, on_stage: OnStage) -> None:
        """Nothing runs yet."""
        if importlib.util.find_spec("obstore") is None:
            raise CliError("the real demo keeps checkpoints in an S3 server with obstore", "pip install obstore")
        try:
            binaries = find_binaries(build=False)
            find_built("versitygw", build=False)
            self._rbac = rendered(["rbac"], namespace=SYSTEM_NAMESPACE, build=False)
        except (ControlPlaneUnavailableError, NotBuiltError) as error:
            raise CliError(
                f"a program of the real demo is missing: {error}",
                "`make demo-real` builds it; leave out --real for the embedded one",
            ) from None
        self.folder = Path(tempfile.mkdtemp(prefix="muster-demo-"))
        supervise = free_port()
        self._spec = ClusterSpec(
            name="demo",
            nodes=nodes,
            gpus=gpus,
            node_grace_s=NODE_GRACE_S,
            cache_size="0",
            cluster_id=uuid.uuid4().hex,
            supervise_port=supervise,
            health_port=free_port({supervise}),
        )
        self._env = programs.environment(self._spec)
        self._on_stage = on_stage
        self._children: dict[str, Child] = {}
        self._store: S3Server | None = None
        self._plane = ControlPlane(
            binaries,
            directory=self.folder / "controlplane",
            extra_args={
                "kube-controller-manager": [
                    f"--node-monitor-grace-period={NODE_GRACE_S:g}s",
                    "--node-monitor-period=1s",
                ]
            },
        )

    def __enter__(self) -> Self:
        """Start everything and wait until it is ready."""
        self.folder.joinpath("controlplane").mkdir()
        try:
            self._on_stage("starting the control plane")
            self._plane.__enter__()
            self._store = S3Server(self.folder / "s3", _BUCKET, build=False)
            asyncio.run(self._prepare())
            self._on_stage("starting the controller and the nodes")
            self._start(programs.controller(self._spec, self._controller_account()))
            nodes = self._plane.access.service_account_kubeconfig(SYSTEM_NAMESPACE, NODE_ACCOUNT, NODE_RULES)
            trust = f"--client-ca-file={self._plane.ca_path}"
            for number, name in enumerate(self._spec.node_names()):
                folder = self.folder / "nodes" / name
                self._start(programs.kubelet(self._spec, number, nodes, folder, trust))
            asyncio.run(self._wait())
        except (ControlPlaneError, S3ServerError, readiness.NotReadyError) as error:
            tails = "\n".join(f"{name}: {child.log_tail(3)}" for name, child in self._children.items())
            self._remove()
            raise CliError(f"{error}\n{tails}") from None
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything and remove the folder."""
        self._remove()

    def cluster(self) -> Cluster:
        """Returns how to reach the cluster as its administrator."""
        return Cluster(load_config(self._plane.kubeconfig), "default", "a real control plane", None)

    def checkpoints(self) -> dict[str, Any]:
        """Returns `spec.checkpoint` for a job of the demo: the bucket of the S3 server."""
        assert self._store is not None
        return {
            "path": f"s3://{_BUCKET}/checkpoints",
            "endpoint": self._store.endpoint,
            "region": REGION,
            "credentials": {"secretName": _SECRET},
        }

    def kill_rank(self, pod_uid: str) -> int:
        """Kill a rank's process in a pod; returns the rank."""
        rank = ranks.kill_rank(pod_uid)
        if rank is None:
            raise CliError("no rank runs in that pod now")
        return rank

    def vanish(self, node: str) -> None:
        """Make a node fail: kill its kubelet and every process of its pods."""
        self._children[node].stop(grace_s=0)
        sweep(self._spec.cluster_id, node)

    def logs(self) -> list[Path]:
        """The log files of Muster's programs."""
        return [*sorted(self.folder.glob("*.log")), *([self._store.log] if self._store is not None else [])]

    def _start(self, program: programs.Program) -> None:
        self._children[program.name] = Child(program.command, self.folder / f"{program.name}.log", self._env)

    async def _prepare(self) -> None:
        async with Client(load_config(self._plane.kubeconfig)) as client:
            await readiness.install_kinds(client)
            assert self._store is not None
            account = {name: value.encode() for name, value in self._store.credentials.items()}
            await client.create(Secret(metadata=ObjectMeta(name=_SECRET, namespace=_NAMESPACE), data=account))

    async def _wait(self) -> None:
        async with Client(load_config(self._plane.kubeconfig)) as client:

            async def nodes_ready() -> bool:
                ready = await readiness.ready_nodes(client)
                self._on_stage(f"waiting for nodes: {len(ready)} of {self._spec.nodes} ready")
                return len(ready) == self._spec.nodes

            await readiness.poll("the nodes", nodes_ready, _READY_S)
            self._on_stage("waiting for the controller")
            await readiness.poll("the controller", lambda: readiness.healthy(self._spec.health_port), _READY_S)

    def _controller_account(self) -> Path:
        """A kubeconfig of the controller's service account, with the rights of the chart and no others."""
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": SERVICE_ACCOUNT, "namespace": SYSTEM_NAMESPACE},
        }
        self._plane.access.apply(account, *self._rbac)
        return self._plane.access.service_account_kubeconfig(SYSTEM_NAMESPACE, SERVICE_ACCOUNT)

    def _remove(self) -> None:
        with undisturbed():
            for child in self._children.values():
                child.stop(grace_s=0)
            sweep(self._spec.cluster_id)
            if self._store is not None:
                self._store.stop()
            self._plane.stop()
            shutil.rmtree(self.folder, ignore_errors=True)
