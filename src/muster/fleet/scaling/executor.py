"""Executes scaling plans: first the API server, then the provider. Deletions need a final precondition check."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from muster.api.placement import Placement
from muster.fleet.providers.base import Provider, ProviderError
from muster.fleet.scaling.node_views import (
    ANNOTATION_RECORD,
    Record,
    instance_of,
    placement_keeps,
    pod_keeps,
    record_of,
)
from muster.fleet.scaling.plan import Action, Cordon, Delete, ForgetNode, SetSize, Uncordon
from muster.fleet.scaling.snapshot import Fault, PoolSpec
from muster.kube.client import Client
from muster.kube.clock import instant
from muster.kube.errors import ApiError, ConfigError, Conflict, NotFound
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod

log = logging.getLogger(__name__)

MANAGER = "muster-scaling"
_TRIES = 5


class Carried(msgspec.Struct, frozen=True):
    """The result of an action: `fault` if the provider failed, `refused` if a precondition did not hold."""

    action: Action
    fault: ProviderError | None = None
    refused: str = ""

    @property
    def done(self) -> bool:
        """Whether it was executed."""
        return self.fault is None and not self.refused


class Carrier:
    """Executes actions one after the other.

    Args:
        client: the API server.
        providers: by name.
        clock: seconds since the epoch.
    """

    def __init__(self, client: Client, providers: Mapping[str, Provider], clock: Callable[[], float]) -> None:
        self._client = client
        self._providers = providers
        self._clock = clock

    async def carry_out(self, action: Action, pool: PoolSpec) -> Carried:
        """Execute an action. Returns why not, if it was not executed."""
        try:
            if isinstance(action, SetSize):
                self._client.require_leading(f"size {action.size} of {pool.name}")
                await self._providers[pool.provider].set_size(pool, action.size)
                return Carried(action)
            if isinstance(action, Cordon):
                return Carried(action, refused=await self._mark(action, "Draining"))
            if isinstance(action, Uncordon):
                return Carried(action, refused=await self._mark(action, ""))
            if isinstance(action, Delete):
                return await self._delete(action, pool)
            return Carried(action, refused=await self._forget(action))
        except ProviderError as error:
            return Carried(action, fault=error)
        except (ApiError, ConfigError, TimeoutError) as error:
            log.warning("%s: %s", action, error)
            return Carried(action, refused=str(error) or "no answer in time")

    async def _delete(self, action: Delete, pool: PoolSpec) -> Carried:
        if action.node:
            reason = await self._needed(action.node) or await self._mark(action, "Deleting")
            # A pod may have been bound between the two: a cordon stops schedulers, but not binds that are under way.
            reason = reason or await self._needed(action.node)
        else:
            reason = await self._joined(action)
        if reason:
            return Carried(action, refused=reason)
        self._client.require_leading(f"the deletion of {action.instance}")
        await self._providers[pool.provider].delete(pool, action.instance, replace=action.replace)
        return Carried(action)

    async def _needed(self, node: str) -> str:
        """Return who needs the node, by consistent reads; "" if it is not needed."""
        pods = await self._client.list_all(Pod, field_selector=f"spec.nodeName={node}")
        for pod in pods.items:
            if node in pod_keeps(pod):
                return f"pod {pod.key} is on the node"
        for placement in (await self._client.list_all(Placement)).items:
            if node in placement_keeps(placement):
                return f"a slot of {placement.key} reserves the node"
        return ""

    async def _joined(self, action: Delete) -> str:
        """Return which Node an instance has, by a consistent read; "" if it has none. A watch can be minutes late."""
        for node in (await self._client.list_all(Node)).items:
            if instance_of(node, {action.instance: action.pool})[0]:
                return f"it has joined as node {node.name}"
        return ""

    async def _mark(self, action: Cordon | Uncordon | Delete, state: str) -> str:
        """Cordon the node with a record, or undo both if `state` is "". Returns why not; "" if it was done."""
        for _ in range(_TRIES):
            try:
                node = await self._client.get(Node, action.node)
                reason = _not_to_be_marked(node, action, state)
                if reason is not None:
                    return reason
                await self._client.patch(Node, action.node, self._patch(node, action, state), field_manager=MANAGER)
            except Conflict:
                continue
            except NotFound:
                return "" if isinstance(action, Delete) else "the node is gone"
            return ""
        return "other writers change it again and again"

    def _patch(self, node: Node, action: Cordon | Uncordon | Delete, state: str) -> dict[str, Any]:
        since = instant(self._clock())
        record = None
        if not isinstance(action, Uncordon):
            made = Record(state, since, action.why, action.pool, action.instance)
            record = msgspec.json.encode(made).decode()
        return {
            "metadata": {
                "uid": node.uid,
                "resourceVersion": node.metadata.resource_version,
                "annotations": {ANNOTATION_RECORD: record},
            },
            "spec": {"unschedulable": True if state else None},
        }

    async def _forget(self, action: ForgetNode) -> str:
        try:
            await self._client.delete(Node, action.node, uid=action.uid)
        except (NotFound, Conflict):
            return "it is gone or was recreated"
        return ""


def _not_to_be_marked(node: Node, action: Cordon | Uncordon | Delete, state: str) -> str | None:
    """Return why the node must not be changed, or "" if it is already as wanted; None to change it."""
    ours = record_of(node) is not None
    if node.uid != action.uid:
        return "another node has its name now"
    if state == "Deleting" and node.ready and not (ours and node.spec.unschedulable):
        return "it is ready, and open to pods"
    if state == "Draining" and node.spec.unschedulable and not ours:
        return "it was cordoned by another user or tool"
    return "" if not state and not ours else None


def fault_of(carried: Carried) -> tuple[Fault, str, float] | None:
    """Return the provider's error in the form that `decide` uses."""
    error = carried.fault
    return (error.fault, error.message, error.wait_s) if error is not None else None
