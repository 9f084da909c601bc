"""What is looked at only when it matters: pods on nodes that are emptied, empty nodes, Leases of suspects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

from msgspec.structs import replace

from muster.api.names import LABEL_BALLOON, LABEL_GANG, TAINT_PREFLIGHT
from muster.fleet.remediation.dead import Silence, look
from muster.fleet.remediation.snapshot import PodView
from muster.fleet.remediation.steps import LABEL_STEP
from muster.fleet.scaling.nodeviews import pod_keeps
from muster.kube.client import Client
from muster.kube.coordination import Lease
from muster.kube.errors import ApiError, ConfigError, Conflict, NotFound, ServerTimeout, TooManyRequests, Unavailable
from muster.kube.pod import Pod

log = logging.getLogger(__name__)

LEASES = "kube-node-lease"
"""The namespace in which kubelets renew (Kubernetes docs, "Node heartbeats")."""
REQUEST_TIMEOUT_S = 10.0
AT_ONCE = 32
FREE_S = 5.0
"""A node that was seen empty counts as empty for so long."""
REFUSED_S = 5.0
"""A refused eviction is tried again after this, or when the API server says."""
REFUSED_MAX_S = 30.0


class Looker:
    """Asks the API server.

    Args:
        client: the API server.
        clock: seconds since the epoch.
    """

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._pace = asyncio.Semaphore(AT_ONCE)
        self._refused: dict[str, tuple[str, float, bool]] = {}
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
        """Look at the pods of these nodes; what is known of others is forgotten. A look that fails changes nothing."""
        found = dict(zip(nodes, await asyncio.gather(*map(self._pods, nodes)), strict=True))
        self.pods = {
            name: pods if pods is not None else self.pods[name]
            for name, pods in found.items()
            if pods is not None or name in self.pods
        }
        there = {pod.uid for pods in self.pods.values() for pod in pods}
        self._refused = {uid: known for uid, known in self._refused.items() if uid in there}

    async def for_free(self, nodes: Iterable[str]) -> bool:
        """Look which of these nodes are empty; whether any is that was not known to be."""
        names = list(nodes)
        before = self.free
        for name, pods in zip(names, await asyncio.gather(*map(self._pods, names)), strict=True):
            if pods is not None and not pods:
                self._free[name] = self._clock() + FREE_S
        return bool(self.free - before)

    async def at_leases(self, nodes: Iterable[str]) -> None:
        """Read the Leases of suspects; of others nothing is known then."""
        names = list(nodes)
        renewed = await asyncio.gather(*map(self._renewed, names))
        read = {name: text for name, text in zip(names, renewed, strict=True) if text}
        self.silences = look(self.silences, read, self._clock())

    async def evict(self, pod: PodView) -> str:
        """Evict a pod. Returns what came of it, in a word."""
        try:
            async with self._pace, asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._client.evict(pod.name, namespace=pod.namespace, uid=pod.uid)
        except (NotFound, Conflict):
            return "gone"
        except (Unavailable, ServerTimeout, TimeoutError, ConfigError) as error:
            log.warning("evicting %s/%s: %s", pod.namespace, pod.name, str(error) or "no answer in time")
            return "unanswered"
        except TooManyRequests as error:
            wait_s = min(REFUSED_MAX_S, max(REFUSED_S, error.retry_after_s or 0.0))
            self._refused[pod.uid] = (_words(error), self._clock() + wait_s, False)
            return "refused"
        except ApiError as error:
            # Kubernetes' words where several cover one pod; it answers so each time, until somebody takes one away.
            hopeless = error.status == 500 and "PodDisruptionBudget" in error.message
            self._refused[pod.uid] = (_words(error), self._clock() + REFUSED_MAX_S, hopeless)
            log.warning("evicting %s/%s: %s", pod.namespace, pod.name, error)
            return "impossible" if hopeless else "refused"
        self._refused.pop(pod.uid, None)
        return "evicted"

    async def is_empty(self, node: str) -> bool:
        """Whether nothing is on the node that has to leave, by a consistent read just now. Raises ApiError."""
        return not self._views(await self._list(node))

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
        return tuple(self._view(pod) for pod in pods if _leaves(pod))

    def _view(self, pod: Pod) -> PodView:
        gang = pod.metadata.labels.get(LABEL_GANG, "")
        view = PodView(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            gang=f"{pod.namespace}/{gang}" if gang else "",
            terminating=pod.terminating,
        )
        refused = self._refused.get(pod.uid)
        if refused is None:
            return view
        return replace(view, refused=refused[0], retry_at=refused[1], hopeless=refused[2])

    async def _renewed(self, node: str) -> str:
        try:
            async with self._pace, asyncio.timeout(REQUEST_TIMEOUT_S):
                lease = await self._client.get(Lease, node, LEASES)
        except (ApiError, ConfigError, TimeoutError):
            return ""
        return lease.spec.renew_time.isoformat() if lease.spec.renew_time is not None else ""


def _leaves(pod: Pod) -> bool:
    """Whether the pod has to leave before the machine is touched: what tests the node, or keeps it busy, need not."""
    labels = pod.metadata.labels
    if TAINT_PREFLIGHT in labels or LABEL_STEP in labels or labels.get(LABEL_BALLOON) == "true":
        return False
    return any(True for _ in pod_keeps(pod))


def _words(error: ApiError) -> str:
    causes = error.details.get("causes")
    reasons = [cause.get("message", "") for cause in causes if isinstance(cause, dict)] if causes else []
    return ": ".join([error.message.rstrip("."), *reasons])[:512]
