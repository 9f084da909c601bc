"""Provisions volumes that depend on a pod's node, before any pod of the gang is bound.

The scheduler writes the node to the claim's annotation. The provisioner of the storage class creates the volume. Then
the pod is bound (Kubernetes: "Storage Classes", volume binding mode). If the volumes miss the deadline, the gang is not
bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from muster.kube.client import Client
from muster.kube.errors import ApiError, ConfigError
from muster.kube.objects.meta import split_key
from muster.kube.objects.selectors import node_term_matches
from muster.kube.objects.storage import PersistentVolumeClaim
from muster.scheduler.actions.claim_lookups import look_up_claim
from muster.scheduler.plan import Bind
from muster.scheduler.state import ClusterState

log = logging.getLogger(__name__)

SELECTED_NODE = "volume.kubernetes.io/selected-node"
POLL_S = 0.5
RETRY_S = 5.0


class Provisioner:
    """Delays the binds of gangs until their volumes are provisioned.

    Args:
        client: the API server.
        state: records abandoned binds and claims.
        bind: executes a bind.
        clock: seconds since the epoch.
        changed: called after each outcome.
        deadline_s: time limit for provisioning the volumes of a gang.
        request_timeout_s: time limit of one request.
    """

    def __init__(
        self,
        client: Client,
        state: ClusterState,
        bind: Callable[[Bind], None],
        *,
        clock: Callable[[], float],
        changed: Callable[[], None],
        deadline_s: float = 120.0,
        request_timeout_s: float = 10.0,
    ) -> None:
        self._client = client
        self._state = state
        self._bind = bind
        self._clock = clock
        self._changed = changed
        self._deadline_s = deadline_s
        self._request_timeout_s = request_timeout_s
        self._parked: dict[str, list[Bind]] = {}
        self._new: asyncio.Queue[str] = asyncio.Queue()

    def submit(self, binds: list[Bind]) -> None:
        """Execute the binds of one plan; gangs that need volumes wait for these."""
        unmade = {pod.gang for uid in self._state.claims.users_of_unmade() if (pod := self._state.pods.get(uid))}
        for bind in binds:
            if bind.gang not in unmade and bind.gang not in self._parked:
                self._bind(bind)
                continue
            self._state.begin_bind(bind.uid, bind.node)
            if bind.gang not in self._parked:
                self._parked[bind.gang] = []
                self._new.put_nowait(bind.gang)
            self._parked[bind.gang].append(bind)

    async def run(self) -> None:
        """Work until cancelled; a new leader starts again from the claims."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._provision(await self._new.get()))

    async def _provision(self, gang: str) -> None:
        problem, nodes = "", self._nodes_by_claim(self._parked[gang])
        missing = list(nodes)
        try:
            async with asyncio.timeout(self._deadline_s):
                for claim, node in nodes.items():
                    await self._annotate(claim, node)
                while True:
                    missing = [claim for claim in missing if not await self._is_bound(claim)]
                    if not missing:
                        break
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            problem = f"volumes of {', '.join(sorted(missing)[:3])} were not made within {self._deadline_s:g} s"
        except (ApiError, ConfigError) as error:
            problem = str(error)
        if problem:
            log.warning("volumes of gang %s: %s", gang, problem)
            await self._withdraw(nodes)
        now = self._clock()
        for bind in self._parked.pop(gang):
            trouble = problem or self._out_of_reach(bind)
            if trouble:
                self._state.end_bind(bind.uid, now, error=trouble, retry_at=now + RETRY_S)
            else:
                self._bind(bind)
        self._changed()

    def _nodes_by_claim(self, binds: list[Bind]) -> Mapping[str, str]:
        """Return the node for each claim: the node of the first pod that uses it."""
        nodes: dict[str, str] = {}
        for bind in binds:
            pod = self._state.pods.get(bind.uid)
            for name in pod.claims if pod is not None else ():
                key = f"{bind.namespace}/{name}"
                if key in self._state.claims.unmade:
                    nodes.setdefault(key, bind.node)
        return nodes

    async def _annotate(self, claim: str, node: str | None) -> None:
        namespace, name = split_key(claim)
        patch = {"metadata": {"annotations": {SELECTED_NODE: node}}}
        await self._client.patch(PersistentVolumeClaim, name, patch, namespace=namespace)

    async def _is_bound(self, claim: str) -> bool:
        await look_up_claim(self._client, self._state, claim, clock=self._clock, timeout_s=self._request_timeout_s)
        known = self._state.claims.known.get(claim)
        return known is not None and known.bound

    async def _withdraw(self, nodes: Mapping[str, str]) -> None:
        """Remove the annotations of an abandoned try, because the next one may choose other nodes."""
        for claim in nodes:
            known = self._state.claims.known.get(claim)
            if known is not None and known.found and not known.bound:
                try:
                    async with asyncio.timeout(self._request_timeout_s):
                        await self._annotate(claim, None)
                except (ApiError, ConfigError, TimeoutError) as error:
                    log.warning("claim %s: %s", claim, str(error) or "no answer in time")

    def _out_of_reach(self, bind: Bind) -> str:
        """Return why the provisioned volumes make the node unusable for the pod; "" if it is usable."""
        labels = self._state.node_labels(bind.node)
        if labels is None:
            return f"node {bind.node} is gone"
        pod = self._state.pods.get(bind.uid)
        for name in pod.claims if pod is not None else ():
            known = self._state.claims.known.get(f"{bind.namespace}/{name}")
            terms = known.terms if known is not None else None
            if terms is not None and not any(node_term_matches(term, labels, bind.node) for term in terms):
                return f"the volume of persistentVolumeClaim {name} cannot be reached from node {bind.node}"
        return ""
