"""A real control plane with nodes that say they are ready, and clients with accounts of their own."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench.gang_spike.shape import CAPACITY, NAMESPACE
from muster.controlplane.programs import ControlPlane
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.sim import nodeobjects

SYSTEM = "kube-system"
"""The namespace of schedulers' accounts: flow control serves it before others."""
_WRITES_AT_ONCE = 48
_CREATOR_RULES = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "delete"]},
    {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
    {"apiGroups": ["scheduling.k8s.io", "scheduling.x-k8s.io"], "resources": ["podgroups"], "verbs": ["create"]},
)
_WATCHER_RULES = ({"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},)


@dataclass
class Cluster:
    """One control plane.

    Attributes:
        plane: the components.
        admin: an administrator's client, for setting up only.
        creator: creates pods; for the raw limit also binds them.
        watcher: records the pods' bindings.
        directory: for logs and configurations.
        nodes: names of all nodes.
    """

    plane: ControlPlane
    admin: Client
    creator: Client
    watcher: Client
    directory: Path
    nodes: tuple[str, ...]


@asynccontextmanager
async def cluster(
    side: str,
    nodes: int,
    feature_gates: Mapping[str, bool],
    runtime_config: Mapping[str, bool],
    *,
    apiserver: Sequence[str] = (),
) -> AsyncIterator[Cluster]:
    """Start a control plane with this many nodes, and remove all of it at the end.

    The controller manager is left out, so nothing else writes while a spike is measured. Its necessary work is done
    once by hand: the default service account, and the removal of the taint on a new node. `apiserver` are more
    arguments of the API server.
    """
    with tempfile.TemporaryDirectory(prefix=f"muster-bench-{side}-") as folder:
        data = Path(folder) / "control-plane"
        data.mkdir()
        plane = ControlPlane(
            directory=data,
            controller_manager=False,
            feature_gates=feature_gates,
            runtime_config=runtime_config,
            extra_args={"kube-apiserver": ["--disable-admission-plugins=TaintNodesByCondition", *apiserver]},
        )
        with plane:
            access = plane.access
            creator = access.service_account_kubeconfig(SYSTEM, "spike-creator", _CREATOR_RULES)
            watcher = access.service_account_kubeconfig(SYSTEM, "spike-watcher", _WATCHER_RULES)
            access.kubectl("create", "namespace", NAMESPACE)
            access.kubectl("create", "serviceaccount", "default", "--namespace", NAMESPACE)
            async with (
                Client(load_config(plane.kubeconfig), user_agent="bench-admin") as admin,
                Client(load_config(creator), user_agent="bench-creator") as creating,
                Client(load_config(watcher), user_agent="bench-watcher") as watching,
            ):
                names = tuple(f"node-{number:05d}" for number in range(nodes))
                await _register(admin, names)
                yield Cluster(plane, admin, creating, watching, Path(folder), names)


async def _register(admin: Client, names: tuple[str, ...]) -> None:
    gate = asyncio.Semaphore(_WRITES_AT_ONCE)

    async def register(number: int, name: str) -> None:
        host = f"127.{20 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        async with gate:
            await admin.create(nodeobjects.node(name, host, 0, CAPACITY, {}, datetime.now(UTC)))

    async with asyncio.TaskGroup() as group:
        for number, name in enumerate(names):
            group.create_task(register(number, name))
