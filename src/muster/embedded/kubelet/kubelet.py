"""The process kubelet: a node and its pods."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
from collections.abc import AsyncIterator, Awaitable
from urllib.parse import urlsplit

from muster.embedded.kubelet.containers.cgroups import ControlGroups
from muster.embedded.kubelet.logs.compression import keep_compressed
from muster.embedded.kubelet.node import NodeRegistration
from muster.embedded.kubelet.pods.context import NodeServices
from muster.embedded.kubelet.pods.manager import PodManager
from muster.embedded.kubelet.pods.network import HostNetwork, NamespaceNetwork, PodNetwork
from muster.embedded.kubelet.pods.objects import ObjectSource, TokenSource
from muster.embedded.kubelet.pods.pool import DevicePool
from muster.embedded.kubelet.serving.server import KubeletServer
from muster.embedded.kubelet.settings import Settings
from muster.embedded.kubelet.sweep import end_orphans, sweep
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.events import EventRecorder
from muster.kube.informer import Informer
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_ORPHAN_PERIOD_S = 1.0
_SYNC_DEADLINE_S = 300.0
log = logging.getLogger(__name__)


class Kubelet:
    """Runs one node."""

    def __init__(self, settings: Settings, config: ClusterConfig) -> None:
        """Create the kubelet; `run` starts it."""
        self._settings = settings
        self._config = config

    async def run(self, stop: asyncio.Event) -> None:
        """Run the node until `stop` is set, then end all pods' processes. Locks the folder against other kubelets."""
        settings = self._settings
        settings.pods_dir.mkdir(parents=True, exist_ok=True)
        ctypes.CDLL(None).prctl(
            _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0
        )  # this process inherits the processes of a killed shim
        await asyncio.to_thread(sweep, settings.cluster_id, settings.node)
        async with (
            Client(self._config, user_agent="muster-kubelet") as client,
            EventRecorder(client, "kubelet", instance=settings.node) as recorder,
            self._network() as network,
        ):
            server = KubeletServer(settings)
            port = await server.start()
            registration = NodeRegistration(client, settings, port)
            tasks = [
                asyncio.create_task(self._end_orphans()),
                asyncio.create_task(keep_compressed(settings.pods_dir)),
            ]
            cgroups = ControlGroups(settings.cluster_id, settings.node)
            manager = None
            try:
                if not await _unless(stop, registration.register()):
                    return
                services = self._services(client, recorder, network, cgroups, registration)
                nodes = Informer(client, Node, field_selector=f"metadata.name={settings.node}")
                pods = Informer(client, Pod, field_selector=f"spec.nodeName={settings.node}")

                def heard() -> None:
                    nodes.hurry()
                    pods.hurry()

                works = (registration.keep_lease(heard), registration.keep_status(), nodes.run(), pods.run())
                tasks += [asyncio.create_task(work) for work in works]
                synced = asyncio.gather(nodes.wait_synced(_SYNC_DEADLINE_S), pods.wait_synced(_SYNC_DEADLINE_S))
                if not await _unless(stop, synced):
                    return
                manager = PodManager(services, lambda: nodes.get(settings.node) or registration.node)
                server.manager = manager
                manager.start(pods.store.values())
                pods.add_handler(manager.changed)
                log.info("node %s is ready, listening on %s port %d", settings.node, settings.address, port)
                await stop.wait()
            finally:
                if manager is not None:
                    await manager.shut_down()
                await server.stop()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                cgroups.remove()

    def _services(
        self,
        client: Client,
        recorder: EventRecorder,
        network: PodNetwork,
        cgroups: ControlGroups,
        registration: NodeRegistration,
    ) -> NodeServices:
        settings = self._settings
        url = urlsplit(self._config.server)
        return NodeServices(
            settings=settings,
            client=client,
            event=recorder.event,
            objects=ObjectSource(client),
            tokens=TokenSource(client),
            network=network,
            devices=DevicePool(settings.gpus),
            cgroups=cgroups,
            allocatable=registration.capacity,
            service_variables={
                "KUBERNETES_SERVICE_HOST": url.hostname or "",
                "KUBERNETES_SERVICE_PORT": str(url.port or 443),
                "KUBERNETES_SERVICE_PORT_HTTPS": str(url.port or 443),
            },
        )

    @contextlib.asynccontextmanager
    async def _network(self) -> AsyncIterator[PodNetwork]:
        settings = self._settings
        network: PodNetwork
        if settings.network == "netns":
            namespaces = NamespaceNetwork(settings.pod_cidr, settings.cluster_id, settings.node)
            await namespaces.prepare()
            network = namespaces
        else:
            network = HostNetwork(settings.pod_cidr, settings.address)
        try:
            yield network
        finally:
            await network.close()

    async def _end_orphans(self) -> None:
        while True:
            await asyncio.sleep(_ORPHAN_PERIOD_S)
            end_orphans()


async def _unless(stop: asyncio.Event, work: Awaitable[object]) -> bool:
    """Wait for `work` unless `stop` is set first; returns whether it ended."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        task.result()
        return True
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return False
