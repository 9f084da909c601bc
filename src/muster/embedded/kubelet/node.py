"""Registers the Node object, renews its Lease, and reports its status."""

from __future__ import annotations

import asyncio
import datetime
import logging
import platform
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.embedded.kubelet.settings import Settings
from muster.kube.client import STRATEGIC_MERGE_PATCH, Client
from muster.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from muster.kube.objects.coordination import Lease, LeaseSpec
from muster.kube.objects.meta import ObjectMeta, OwnerReference
from muster.kube.objects.node import Node
from muster.kube.objects.struct import to_dict

VERSION = "v1.36.3"
"""The kubelet whose behaviour this one follows."""
_LEASE_NAMESPACE = "kube-node-lease"
_LEASE_DURATION_S = 40
_STATUS_CHECK_S = 10.0
_RETRY_S = 0.5
_RETRY_LONGEST_S = 7.0
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
log = logging.getLogger(__name__)


def boot_id(state_dir: Path, new: bool) -> str:
    """Return the node's boot ID. It stays the same if the kubelet restarts, and changes after a simulated reboot."""
    file = state_dir / "boot-id"
    if new or not file.exists():
        file.write_text(str(uuid.uuid4()))
    return file.read_text().strip()


class NodeRegistration:
    """Maintains this node's object and Lease.

    Attributes:
        node: the Node as it was registered.
    """

    def __init__(self, client: Client, settings: Settings, port: int) -> None:
        """Create the registration without writes; `port` is that of the kubelet's server."""
        self._client = client
        self._settings = settings
        self._port = port
        self._boot_id = boot_id(settings.state_dir, settings.new_boot)
        self.node = Node(metadata=ObjectMeta(name=settings.node))

    @property
    def labels(self) -> dict[str, str]:
        """Returns the labels that the node registers with."""
        machine = _ARCHITECTURES.get(platform.machine(), platform.machine())
        return {
            "kubernetes.io/hostname": self._settings.node,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": machine,
            **self._settings.labels,
        }

    @property
    def capacity(self) -> dict[str, str]:
        """Returns the node's capacity; all of it is allocatable."""
        settings = self._settings
        found = {"cpu": settings.cpus, "memory": settings.memory, "pods": str(settings.max_pods)}
        if settings.gpus:
            found[settings.gpu_resource] = str(settings.gpus)
        return found

    async def register(self) -> None:
        """Create or update the Node, with retries until the API server accepts it."""
        retry_s = _RETRY_S
        while True:
            try:
                await self._register()
                return
            except ApiError as error:
                log.warning("node %s: not registered yet: %s", self._settings.node, error)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _RETRY_LONGEST_S)

    async def keep_lease(self, again: Callable[[], None]) -> None:
        """Renew the Lease for ever. `again` is called at the first success after failures."""
        period_s, away = self._settings.lease_period_s, False
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(period_s):
                    await self._renew()
                if away:
                    again()
                away = False
                pause_s = period_s - (time.monotonic() - began)
            except (ApiError, TimeoutError) as error:
                log.warning("node %s: lease not renewed: %s", self._settings.node, str(error) or "no answer in time")
                away, pause_s = True, min(1.0, period_s)
            await asyncio.sleep(max(0.0, pause_s))

    async def keep_status(self) -> None:
        """Report the status periodically, and soon if the API server shows the node as not ready.

        Source: kubernetes pkg/kubelet/kubelet_node_status.go (nodeStatusUpdateFrequency, nodeStatusReportFrequency).
        """
        period_s, reported_at = self._settings.status_period_s, time.monotonic()
        while True:
            await asyncio.sleep(min(_STATUS_CHECK_S, period_s))
            try:
                if time.monotonic() - reported_at >= period_s or await self._doubted():
                    await self._report()
                    reported_at = time.monotonic()
            except ApiError as error:
                log.warning("node %s: status not reported: %s", self._settings.node, error)

    async def _doubted(self) -> bool:
        return not (await self._client.get(Node, self._settings.node)).ready

    async def _register(self) -> None:
        settings = self._settings
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": settings.node, "labels": self.labels},
            "spec": {"taints": [to_dict(taint) for taint in settings.taints]} if settings.taints else {},
            "status": self._status(None),
        }
        try:
            self.node = await self._client.create(body, kind=Node, retry_lost=True)
        except AlreadyExists:
            self.node = await self._client.get(Node, settings.node)
            if any(self.node.metadata.labels.get(name) != value for name, value in self.labels.items()):
                self.node = await self._client.patch(Node, settings.node, {"metadata": {"labels": self.labels}})
            await self._report()

    async def _report(self) -> None:
        try:
            known = await self._client.get(Node, self._settings.node)
        except NotFound:
            log.warning("node %s: deleted; restart the kubelet to register it again", self._settings.node)
            return
        self.node = await self._client.patch(
            Node,
            self._settings.node,
            {"status": self._status(known)},
            subresource="status",
            content_type=STRATEGIC_MERGE_PATCH,
        )

    def _status(self, known: Node | None) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        before = {condition.type: condition for condition in known.status.conditions} if known else {}
        conditions = []
        for kind, status, reason, message in (
            ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ):
            same = kind in before and before[kind].status == status and before[kind].last_transition_time is not None
            changed = before[kind].last_transition_time if same else now
            conditions.append(
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": changed,
                }
            )
        settings = self._settings
        return {
            "capacity": self.capacity,
            "allocatable": self.capacity,
            "conditions": conditions,
            "addresses": [
                {"type": "InternalIP", "address": settings.address},
                {"type": "Hostname", "address": settings.node},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "nodeInfo": {
                "machineID": uuid.uuid5(uuid.NAMESPACE_DNS, f"{settings.cluster_id}.{settings.node}").hex,
                "systemUUID": str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{settings.cluster_id}.{settings.node}")),
                "bootID": self._boot_id,
                "kernelVersion": platform.release(),
                "osImage": "Muster process node",
                "containerRuntimeVersion": "muster://0.1.0",
                "kubeletVersion": VERSION,
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            },
            # With this, kube-apiserver >= 1.36 forwards exec as WebSocket (KEP-4006), otherwise as SPDY.
            "declaredFeatures": ["ExtendWebSocketsToKubelet"],
        }

    async def _renew(self) -> None:
        name = self._settings.node
        now = datetime.datetime.now(datetime.UTC)
        spec = LeaseSpec(holder_identity=name, lease_duration_seconds=_LEASE_DURATION_S, renew_time=now)
        owner = OwnerReference(api_version="v1", kind="Node", name=name, uid=self.node.uid)
        patch = {"metadata": {"ownerReferences": [to_dict(owner)]}, "spec": to_dict(spec)}
        try:
            await self._client.patch(Lease, name, patch, namespace=_LEASE_NAMESPACE)
        except NotFound:
            metadata = ObjectMeta(name=name, namespace=_LEASE_NAMESPACE, owner_references=(owner,))
            try:
                await self._client.create(Lease(metadata=metadata, spec=spec))
            except (AlreadyExists, Conflict):
                log.debug("lease %s was made meanwhile", name)
            except NotFound:
                # The namespace is missing: kube-apiserver creates it shortly after its start.
                raise
