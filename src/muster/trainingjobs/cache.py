"""Caches of the cluster's state: informers with their indexes, Leases on demand, and hardware evidence."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from muster.api.names import LABEL_GANG, LABEL_MANAGED_BY, MANAGED_BY
from muster.api.placement import Placement
from muster.api.training_job import TrainingJob
from muster.kube.client import Client
from muster.kube.clock import steady_time
from muster.kube.errors import ApiError
from muster.kube.informer import Informer
from muster.kube.informers import Informers, SharedInformer
from muster.kube.objects.coordination import Lease
from muster.kube.objects.core import Event, Namespace
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.trainingjobs.faults.hardware import from_event, from_node
from muster.trainingjobs.faults.rules import HARDWARE_WINDOW_S
from muster.trainingjobs.snapshot import HardwareEvidence

log = logging.getLogger(__name__)

NODE_LEASES: Final = "kube-node-lease"
_LEASE_AGAIN_S: Final = 2.5
_EVENTS_WATCH_S: Final = 40.0
"""Events have no watch cache and so no bookmarks (kubernetes pkg/registry/core/rest/storage_core.go). An idle watch
with a longer limit would look stalled, and the informer would list again."""
_LOOKS_S: Final = 10.0
"""If two reads of a Lease are further apart than this, they do not show that the node is alive: kubelets renew every 10
s.
"""
_PLAUSIBLE_S: Final = 120.0
_GANG, _NODE = "gang", "node"
_ENFORCED: Final = "pod-security.kubernetes.io/enforce"
_NO_HOST_PATHS: Final = ("baseline", "restricted")
"""Levels that refuse hostPath volumes (Kubernetes docs, "Pod Security Standards")."""


class Caches:
    """Informers of jobs, their pods, Placements, nodes, and Events of nodes."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Callable[[], float] = steady_time,
        rng: random.Random | None = None,
        *,
        host_paths: bool = False,
    ) -> None:
        """Create the informers; `run` starts them. `host_paths`: pods get hostPath volumes where that is allowed."""
        self._client = client
        self._clock = clock
        self.jobs = informers.of(TrainingJob)
        self.pods = informers.of(
            Pod,
            label_selector=f"{LABEL_MANAGED_BY}={MANAGED_BY}",
            indexes={_GANG: _gang_keys, _NODE: lambda pod: (pod.spec.node_name,) if pod.spec.node_name else ()},
        )
        self.placements = informers.of(Placement)
        self.nodes = informers.of(Node)
        self.namespaces = informers.of(Namespace) if host_paths else None
        self.events = Informer(
            client,
            Event,
            field_selector="involvedObject.kind=Node,type=Warning",
            watch_timeout_s=_EVENTS_WATCH_S,
            rng=rng,
        )
        self.events.add_handler(self._event_seen)
        self.jobs.add_index(_NODE, lambda job: () if job.status.completion_time else job.status.excluded_nodes)
        self._hardware: dict[str, HardwareEvidence] = {}
        self._leases: dict[str, Renewal] = {}
        self._asking: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.hardware_seen: Callable[[str], None] = lambda node: None

    @property
    def required(self) -> list[SharedInformer[Any]]:
        """Informers that must be complete before the first decision."""
        namespaces = [self.namespaces] if self.namespaces is not None else []
        return [self.jobs, self.pods, self.placements, self.nodes, *namespaces]

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self.required:
                group.create_task(informer.run())
            group.create_task(self.events.run())

    def pods_of(self, job: TrainingJob) -> tuple[Pod, ...]:
        """The job's pods, without pods of an earlier job of the same name."""
        found = self.pods.by_index(_GANG, job.key).values()
        return tuple(pod for pod in found if any(owner.uid == job.uid for owner in pod.metadata.owner_references))

    def jobs_on(self, node: str) -> list[str]:
        """Keys of the jobs with a pod on the node."""
        return list(dict.fromkeys(key for pod in self.pods.by_index(_NODE, node).values() for key in _gang_keys(pod)))

    def jobs_avoiding(self, node: str) -> list[str]:
        """Keys of the jobs that exclude the node, if the node is not Ready."""
        return [job.key for job in self.jobs.by_index(_NODE, node).values()]

    def nodes_named(self, names: Iterable[str]) -> Mapping[str, Node]:
        """Returns those of the named nodes that exist."""
        store = self.nodes.store
        return {name: store[name] for name in names if name in store}

    def allows_host_paths(self, namespace: str) -> bool:
        """Returns whether pods of the namespace may have hostPath volumes, as far as its labels show."""
        found = self.namespaces.get(namespace) if self.namespaces is not None else None
        return found is not None and found.metadata.labels.get(_ENFORCED, "") not in _NO_HOST_PATHS

    def hardware_of(self, nodes: Mapping[str, Node]) -> tuple[HardwareEvidence, ...]:
        """Evidence of broken hardware on these nodes."""
        evidence = [each for name in nodes if (each := self._hardware.get(name)) is not None]
        evidence += [each for node in nodes.values() if (each := from_node(node)) is not None]
        return tuple(evidence)

    def _event_seen(self, old: Event | None, new: Event | None) -> None:
        evidence = from_event(new) if new is not None else None
        if evidence is None:
            return
        if self.events.has_synced:  # use the time of arrival, because the sender's clock may be wrong
            evidence = replace(evidence, time=self._clock())
        known = self._hardware.get(evidence.node)
        if known is None or known.time < evidence.time:
            horizon = self._clock() - 2 * HARDWARE_WINDOW_S
            self._hardware = {name: each for name, each in self._hardware.items() if each.time > horizon}
            self._hardware[evidence.node] = evidence
            self.hardware_seen(evidence.node)

    def leases_of(self, nodes: Iterable[str], changed: Callable[[], None]) -> dict[str, float]:
        """Returns when these nodes were last known to have renewed their Leases.

        If the last read of a Lease is old, it is read again in the background. `changed` is called if the node has
        renewed it.
        """
        now, known = self._clock(), {}
        for name in nodes:
            last = self._leases.get(name, NEVER)
            if last.alive_at:
                known[name] = last.alive_at
            if now - last.asked_at > _LEASE_AGAIN_S and name not in self._asking:
                self._asking.add(name)
                task = asyncio.create_task(self._ask(name, changed))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return known

    async def _ask(self, name: str, changed: Callable[[], None]) -> None:
        before, now = self._leases.get(name, NEVER), self._clock()
        try:
            lease = await self._client.get(Lease, name, NODE_LEASES)
        except ApiError as error:
            log.debug("Lease of %s: %s", name, error)
            self._leases[name] = Renewal(now, None, 0.0)
        else:
            self._leases[name] = renewed(before, lease.spec.renew_time, now)
            if self._leases[name].alive_at != before.alive_at:
                changed()
        finally:
            self._asking.discard(name)


class Renewal(NamedTuple):
    """The result of one read of a Lease."""

    asked_at: float
    renew_time: datetime | None
    alive_at: float


NEVER: Final = Renewal(0.0, None, 0.0)


def renewed(before: Renewal, renew_time: datetime | None, now: float) -> Renewal:
    """Compare a read of a Lease with the previous one.

    If the Lease changed between two reads, the node was alive after the first of them, perhaps only briefly. For the
    time before the first read, the node's own timestamp counts if its clock is plausible.
    """
    if renew_time is None:
        return Renewal(now, None, 0.0)
    said = renew_time.timestamp()
    if before.renew_time is not None and now - before.asked_at <= _LOOKS_S:
        alive_at = before.alive_at if renew_time == before.renew_time else before.asked_at
    else:
        alive_at = min(said, now) if abs(now - said) <= _PLAUSIBLE_S else 0.0
    return Renewal(now, renew_time, alive_at)


def _gang_keys(pod: Pod) -> tuple[str, ...]:
    gang = pod.metadata.labels.get(LABEL_GANG)
    return (f"{pod.namespace}/{gang}",) if gang else ()
