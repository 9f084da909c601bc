"""What the controller knows of the cluster: informers with their indexes, Leases on demand, hardware evidence."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from muster.api.names import LABEL_GANG, LABEL_MANAGED_BY, MANAGED_BY
from muster.api.placement import Placement
from muster.api.training_job import TrainingJob
from muster.kube.client import Client
from muster.kube.coordination import Lease
from muster.kube.core import Event
from muster.kube.errors import ApiError
from muster.kube.health import Progress
from muster.kube.informer import Informer
from muster.kube.node import Node
from muster.kube.pod import Pod
from muster.trainingjobs.faults import HARDWARE_WINDOW_S
from muster.trainingjobs.hardware import from_event, from_node
from muster.trainingjobs.snapshot import HardwareEvidence

log = logging.getLogger(__name__)

NODE_LEASES: Final = "kube-node-lease"
_LEASE_AGAIN_S: Final = 2.5
_GANG, _NODE = "gang", "node"


class Caches:
    """Informers of jobs, their pods, Placements, nodes, and Events of nodes."""

    def __init__(self, client: Client, progress: Progress | None, clock: Callable[[], float] = time.time) -> None:
        """Nothing is listed before `run`."""
        self._client = client
        self._clock = clock
        self.jobs = Informer(client, TrainingJob, progress=progress)
        self.pods = Informer(
            client,
            Pod,
            label_selector=f"{LABEL_MANAGED_BY}={MANAGED_BY}",
            indexes={_GANG: _gang_keys, _NODE: lambda pod: (pod.spec.node_name,) if pod.spec.node_name else ()},
            progress=progress,
        )
        self.placements = Informer(client, Placement, progress=progress)
        self.nodes = Informer(client, Node, progress=progress)
        self.events = Informer(client, Event, field_selector="involvedObject.kind=Node,type=Warning")
        self.events.add_handler(self._event_seen)
        self._hardware: dict[str, HardwareEvidence] = {}
        self._leases: dict[str, tuple[float, float]] = {}
        self._asking: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.hardware_seen: Callable[[str], None] = lambda node: None

    @property
    def required(self) -> list[Informer[TrainingJob] | Informer[Pod] | Informer[Placement] | Informer[Node]]:
        """Those that must be complete before anything is decided."""
        return [self.jobs, self.pods, self.placements, self.nodes]

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in (*self.required, self.events):
                group.create_task(informer.run())

    def pods_of(self, job: TrainingJob) -> tuple[Pod, ...]:
        """The job's pods; those of an earlier job of the same name are not its."""
        found = self.pods.by_index(_GANG, job.key).values()
        return tuple(pod for pod in found if any(owner.uid == job.uid for owner in pod.metadata.owner_references))

    def jobs_on(self, node: str) -> set[str]:
        """Keys of the jobs with a pod on the node."""
        return {key for pod in self.pods.by_index(_NODE, node).values() for key in _gang_keys(pod)}

    def nodes_named(self, names: Iterable[str]) -> Mapping[str, Node]:
        """Those of the nodes that exist."""
        store = self.nodes.store
        return {name: store[name] for name in names if name in store}

    def hardware_of(self, nodes: Mapping[str, Node]) -> tuple[HardwareEvidence, ...]:
        """Evidence of broken hardware on these nodes."""
        evidence = [each for name in nodes if (each := self._hardware.get(name)) is not None]
        evidence += [each for node in nodes.values() if (each := from_node(node)) is not None]
        return tuple(evidence)

    def _event_seen(self, old: Event | None, new: Event | None) -> None:
        evidence = from_event(new) if new is not None else None
        if evidence is None:
            return
        known = self._hardware.get(evidence.node)
        if known is None or known.time < evidence.time:
            horizon = self._clock() - 2 * HARDWARE_WINDOW_S
            self._hardware = {name: each for name, each in self._hardware.items() if each.time > horizon}
            self._hardware[evidence.node] = evidence
            self.hardware_seen(evidence.node)

    def leases_of(self, nodes: Iterable[str], changed: Callable[[], None]) -> dict[str, float]:
        """When these nodes renewed their Lease as far as is known; asks where that is old, and calls `changed` then."""
        now, known = self._clock(), {}
        for name in nodes:
            asked_at, renewed = self._leases.get(name, (0.0, 0.0))
            if renewed:
                known[name] = renewed
            if now - asked_at > _LEASE_AGAIN_S and name not in self._asking:
                self._asking.add(name)
                task = asyncio.create_task(self._ask(name, changed))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return known

    async def _ask(self, name: str, changed: Callable[[], None]) -> None:
        try:
            lease = await self._client.get(Lease, name, NODE_LEASES)
        except ApiError as error:
            log.debug("Lease of %s: %s", name, error)
            self._leases[name] = (self._clock(), 0.0)
        else:
            renewed = lease.spec.renew_time
            old = self._leases.get(name, (0.0, 0.0))[1]
            self._leases[name] = (self._clock(), renewed.timestamp() if renewed is not None else 0.0)
            if self._leases[name][1] != old:
                changed()
        finally:
            self._asking.discard(name)


def _gang_keys(pod: Pod) -> tuple[str, ...]:
    gang = pod.metadata.labels.get(LABEL_GANG)
    return (f"{pod.namespace}/{gang}",) if gang else ()
