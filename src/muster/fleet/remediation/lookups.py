"""Polls the objects that are needed only at times: pods on drained nodes, empty nodes, Leases of suspects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import aclosing

from msgspec.structs import replace

from muster.api.names import LABEL_BALLOON, LABEL_GANG, LABEL_PREFLIGHT
from muster.fleet.remediation.draining.evictions import Evictions
from muster.fleet.remediation.evidence.dead_nodes import Silence, look
from muster.fleet.remediation.repairs.steps import LABEL_STEP
from muster.fleet.remediation.snapshot import PodView
from muster.fleet.scaling.node_views import pod_keeps
from muster.kube.client import Client
from muster.kube.errors import ApiError, ConfigError
from muster.kube.objects.coordination import Lease
from muster.kube.objects.pod import Pod

log = logging.getLogger(__name__)

Seen = dict[str, tuple[PodView, ...] | None]
"""By node, the pods that must leave it; None if they are not known."""

LEASES = "kube-node-lease"
"""The namespace of the kubelets' Leases (Kubernetes docs, "Node heartbeats")."""
REQUEST_TIMEOUT_S = 10.0
WHOLE_TIMEOUT_S = 60.0
"""The time limit for a list of all pods."""
AT_ONCE = 32
FREE_S = 5.0
"""How long a node that was seen empty counts as empty."""
WHOLE = 64
"""From this many nodes on, one list of all pods costs the API server less than one list per node."""
REST = 4.0
"""The pause after a list of all pods, as a multiple of how long the list took: it takes long in a large cluster."""


class Looker:
    """Reads pods and Leases from the API server.

    Args:
        client: the API server.
        clock: seconds since the epoch.
        evictions: the states of evictions.
        namespace: Muster's namespace. The labels of balloons, tests and steps count only there.
    """

    def __init__(self, client: Client, clock: Callable[[], float], evictions: Evictions, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._evictions = evictions
        self._pace = asyncio.Semaphore(AT_ONCE)
        self._whole: dict[str, tuple[PodView, ...]] | None = None
        self._rested_at = float("-inf")
        self._free: dict[str, float] = {}
        self.pods: dict[str, tuple[PodView, ...]] = {}
        self.silences: dict[str, Silence] = {}

    @property
    def free(self) -> frozenset[str]:
        """Nodes that were seen empty a moment ago."""
        now = self._clock()
        self._free = {name: until for name, until in self._free.items() if until > now}
        return frozenset(self._free)

    async def at_pods(self, nodes: Collection[str]) -> None:
        """List the pods of these nodes and forget those of other nodes. If a request fails, the known pods stay."""
        if len(nodes) < WHOLE:
            found = await self._one_by_one(nodes)
            self._whole = None
        elif await self._at_all() and self._whole is not None:
            found = {name: self._whole.get(name, ()) for name in nodes}
        else:
            found = dict.fromkeys(nodes)
        known = {name: pods if pods is not None else self.pods.get(name) for name, pods in found.items()}
        self.pods = {name: self._refreshed(pods) for name, pods in known.items() if pods is not None}
        self._evictions.keep({pod.uid for pods in self.pods.values() for pod in pods})

    async def for_free(self, nodes: Iterable[str]) -> bool:
        """Check which of these nodes are empty. Returns whether one of them was not known to be empty."""
        names = list(nodes)
        before = self.free
        if len(names) < WHOLE:
            found = await self._one_by_one(names)
        else:
            await self._at_all()
            found = {name: self._whole.get(name, ()) for name in names} if self._whole is not None else {}
        for name, pods in found.items():
            if pods is not None and not pods:
                self._free[name] = self._clock() + FREE_S
        return bool(self.free - before)

    async def at_leases(self, nodes: Iterable[str]) -> None:
        """Read the Leases of these suspects, and forget those of other nodes."""
        names = list(nodes)
        renewed = await asyncio.gather(*map(self._renewed, names))
        read = {name: renewed_s for name, renewed_s in zip(names, renewed, strict=True) if renewed_s is not None}
        self.silences = look(self.silences, read, self._clock())

    async def is_empty(self, node: str, *, of_tests: bool = False) -> bool:
        """Return whether no pod on the node has to leave, by a consistent read. Raises ApiError.

        Args:
            node: its name.
            of_tests: the node's test pods must have left too: they hold GPUs, and a GPU in use cannot be reset.
        """
        pods = await self._list(node)
        if of_tests and any(LABEL_PREFLIGHT in pod.metadata.labels and not pod.finished for pod in pods):
            return False
        return not self._views(pods)

    async def _one_by_one(self, nodes: Collection[str]) -> Seen:
        return dict(zip(nodes, await asyncio.gather(*map(self._pods, nodes)), strict=True))

    async def _at_all(self) -> bool:
        """List the pods of all nodes, unless it is too early. Returns whether it was done and succeeded."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if began < self._rested_at:
            return False
        views: dict[str, list[PodView]] = {}
        try:
            async with asyncio.timeout(WHOLE_TIMEOUT_S):
                pages = self._client.pages(Pod, field_selector="spec.nodeName!=")
                async with aclosing(pages):
                    async for page in pages:
                        for pod in filter(self._leaves, page.items):
                            views.setdefault(pod.spec.node_name, []).append(self._view(pod))
        except (ApiError, ConfigError, TimeoutError) as error:
            log.warning("pods of all nodes: %s", str(error) or "no answer in time")
            self._whole = None
        else:
            self._whole = {name: tuple(each) for name, each in views.items()}
        self._rested_at = loop.time() + REST * (loop.time() - began)
        return self._whole is not None

    async def _pods(self, node: str) -> tuple[PodView, ...] | None:
        try:
            return self._views(await self._list(node))
        except (ApiError, ConfigError, TimeoutError) as error:
            log.info("pods of node %s: %s", node, str(error) or "no answer in time")
            return None

    async def _list(self, node: str) -> list[Pod]:
        async with self._pace, asyncio.timeout(REQUEST_TIMEOUT_S):
            return (await self._client.list_all(Pod, field_selector=f"spec.nodeName={node}")).items

    def _views(self, pods: Iterable[Pod]) -> tuple[PodView, ...]:
        return tuple(self._view(pod) for pod in pods if self._leaves(pod))

    def _leaves(self, pod: Pod) -> bool:
        """Return whether the pod must leave before the machine is touched. Tests, steps and balloons need not."""
        labels = pod.metadata.labels
        ours = LABEL_PREFLIGHT in labels or LABEL_STEP in labels or labels.get(LABEL_BALLOON) == "true"
        return not (ours and pod.namespace == self._namespace) and any(True for _ in pod_keeps(pod))

    def _view(self, pod: Pod) -> PodView:
        gang = pod.metadata.labels.get(LABEL_GANG, "")
        return PodView(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            gang=f"{pod.namespace}/{gang}" if gang else "",
            terminating=pod.terminating,
        )

    def _refreshed(self, pods: tuple[PodView, ...]) -> tuple[PodView, ...]:
        """Return the same pods with the current states of their evictions."""
        return tuple(map(self._with_answer, pods))

    def _with_answer(self, pod: PodView) -> PodView:
        words, retry_at, hopeless, granted = self._evictions.answer(pod.uid)
        terminating = pod.terminating or granted
        if (words, retry_at, hopeless, terminating) == (pod.refused, pod.retry_at, pod.hopeless, pod.terminating):
            return pod
        return replace(pod, refused=words, retry_at=retry_at, hopeless=hopeless, terminating=terminating)

    async def _renewed(self, node: str) -> float | None:
        """Return when the node's Lease was renewed; None if that is not known."""
        try:
            async with self._pace, asyncio.timeout(REQUEST_TIMEOUT_S):
                lease = await self._client.get(Lease, node, LEASES)
        except (ApiError, ConfigError, TimeoutError):
            return None
        return lease.spec.renew_time.timestamp() if lease.spec.renew_time is not None else None
