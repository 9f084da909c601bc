"""The ConfigMap `muster-scaling-status`: pools with their conditions, and nodes in transition.

It is written only when its content changes. So it contains neither a clock nor a counter.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import msgspec

from muster.fleet.scaling.plan import Answer, Plan
from muster.fleet.scaling.pool_memory import blocked
from muster.fleet.scaling.snapshot import PoolMemory, PoolSpec, View
from muster.fleet.scaling.states import NodeState
from muster.kube.client import Client
from muster.kube.clock import instant
from muster.kube.errors import AlreadyExists, NotFound
from muster.kube.objects.core import ConfigMap

STATUS_MAP = "muster-scaling-status"
STATUS_KEY = "status.json"
NAMED_MAX = 500
"""The most nodes that are listed by name; all nodes are counted. A ConfigMap holds 1 MiB."""
_AT_REST = frozenset({NodeState.IDLE, NodeState.IN_USE})


class PoolCondition(msgspec.Struct, frozen=True, rename="camel"):
    """Like metav1.Condition. Available is False while requests to the pool are paused."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str = ""


class PoolStatus(msgspec.Struct, frozen=True, rename="camel"):
    """A pool: sizes, how many nodes are in each state, conditions, and the state of each node in transition."""

    name: str
    provider: str
    size: int
    min: int
    max: int
    states: dict[str, int]
    conditions: tuple[PoolCondition, ...]
    nodes: dict[str, str]


class ScalingStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The whole status: pools by price, the outcome for each gang that lacks nodes, and the configuration's error."""

    pools: tuple[PoolStatus, ...] = ()
    gangs: dict[str, Answer] = msgspec.field(default_factory=dict)
    config_error: str = ""


def status_of(view: View, plan: Plan, config_error: str, now: float) -> ScalingStatus:
    """Return the status. The conditions have the current time; `kept_times` corrects that."""
    pools = tuple(_pool(pool, view, plan, now) for pool in view.pools)
    names = {gang.key: gang.name for gang in view.demands}
    gangs = {names[key]: answer for key, answer in plan.answers.items()}
    return ScalingStatus(pools, gangs, config_error)


def kept_times(new: ScalingStatus, old: ScalingStatus | None) -> ScalingStatus:
    """Return `new` with the transition times of `old` for conditions whose status did not change."""
    known = {(p.name, c.type): c for p in (old.pools if old is not None else ()) for c in p.conditions}

    def timed(pool: PoolStatus) -> PoolStatus:
        conditions = []
        for each in pool.conditions:
            before = known.get((pool.name, each.type))
            same = before is not None and before.status == each.status
            time = before.last_transition_time if same and before is not None else each.last_transition_time
            conditions.append(msgspec.structs.replace(each, last_transition_time=time))
        return msgspec.structs.replace(pool, conditions=tuple(conditions))

    return msgspec.structs.replace(new, pools=tuple(map(timed, new.pools)))


async def read_status(client: Client, namespace: str) -> ScalingStatus | None:
    """Return the status that was last written; None if it is missing or invalid."""
    try:
        found = await client.get(ConfigMap, STATUS_MAP, namespace)
        return msgspec.json.decode(found.data.get(STATUS_KEY, ""), type=ScalingStatus)
    except (NotFound, msgspec.DecodeError):
        return None


async def write_status(client: Client, namespace: str, status: ScalingStatus) -> None:
    """Write the status."""
    text = msgspec.json.format(msgspec.json.encode(status), indent=1).decode()
    body: dict[str, Any] = {"data": {STATUS_KEY: text}}
    try:
        await client.patch(ConfigMap, STATUS_MAP, body, namespace=namespace, field_manager="muster-scaling")
    except NotFound:
        metadata = {"name": STATUS_MAP, "namespace": namespace}
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **body}
        try:
            await client.create(made, kind=ConfigMap)
        except AlreadyExists:  # by a replica that has just lost the lease
            await client.patch(ConfigMap, STATUS_MAP, body, namespace=namespace, field_manager="muster-scaling")


def _pool(pool: PoolSpec, view: View, plan: Plan, now: float) -> PoolStatus:
    memory = plan.memory[pool.name]
    prefix = f"{pool.name}/"
    mine = {key.removeprefix(prefix): each.state for key, each in plan.tracked.items() if key.startswith(prefix)}
    counts = Counter(mine.values())
    moving = {name: state.value for name, state in sorted(mine.items()) if state not in _AT_REST}
    return PoolStatus(
        name=pool.name,
        provider=pool.provider,
        size=max(0, memory.asked),
        min=pool.min,
        max=pool.max,
        states={state.value: counts[state] for state in NodeState if counts[state]},
        conditions=(_available(memory, pool.name in view.groups, now),),
        nodes=dict(list(moving.items())[:NAMED_MAX]),
    )


def _available(memory: PoolMemory, seen: bool, now: float) -> PoolCondition:
    at = instant(now)
    if blocked(memory, now) and memory.fault is not None:
        until = datetime.fromtimestamp(memory.blocked_until, UTC).strftime("%H:%M:%SZ")
        message = f"{memory.message}; tried again at {until}"
        return PoolCondition("Available", "False", memory.fault.value, message, at)
    if not seen:
        return PoolCondition("Available", "Unknown", "NotSeen", "the provider has not answered yet", at)
    if memory.fault is not None:
        return PoolCondition("Available", "True", "TriedAgain", f"after {memory.fault.value}: {memory.message}", at)
    return PoolCondition("Available", "True", "AsAsked", "", at)
