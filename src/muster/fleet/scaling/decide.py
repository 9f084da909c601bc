"""Decides what scaling does: a pure function of the observed state and what is remembered."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from muster.fleet.scaling.classify import SETTLE_S, classify, tracked_key
from muster.fleet.scaling.plan import Action, Delete, Plan, SetSize
from muster.fleet.scaling.pool_memory import blocked, failed, had, owed, remember
from muster.fleet.scaling.scale_down import forget, next_idle, overdue, shrink
from muster.fleet.scaling.scale_up import ceiling, floor, grow
from muster.fleet.scaling.snapshot import Fault, Group, PoolMemory, PoolSpec, ScalingNode, View
from muster.fleet.scaling.states import NodeState, Tracked

_GIVES_UP = frozenset({Fault.NO_CAPACITY, Fault.QUOTA, Fault.FEWER})
_NEW = frozenset({NodeState.LAUNCHING, NodeState.JOINING, NodeState.OVERDUE})


def decide(view: View, now: float) -> Plan:
    """Return the actions, and what to remember for the next call.

    If a pool's provider did not answer, the pool is not changed. Growing is decided before shrinking: a node that a
    gang waits for is not deleted.
    """
    nodes: dict[str, list[ScalingNode]] = {}
    for node in view.nodes:
        nodes.setdefault(node.pool, []).append(node)
    states: dict[str, dict[str, Tracked]] = {}
    memory: dict[str, PoolMemory] = {}
    for pool in view.pools:
        group, before = view.groups.get(pool.name), view.memory.get(pool.name)
        if group is None:
            memory[pool.name] = _unseen(before, view.faults.get(pool.name), now)
            continue
        found = states[pool.name] = classify(pool, group, nodes.get(pool.name, ()), view.tracked, now)
        joined = _newly_joined(pool, found, view)
        memory[pool.name] = remember(pool, group, before, found, joined, view.faults.get(pool.name), now)
    actions: list[Action] = []
    for pool in view.pools:
        if pool.name not in states:
            continue
        group, found = view.groups[pool.name], states[pool.name]
        late = overdue(pool, group, nodes.get(pool.name, ()), found, memory[pool.name], now)
        memory[pool.name] = _never_joined(pool, _deleted(memory[pool.name], late, found, now), late, now)
        actions += [*late, *_cancel(pool, group, found, memory, now)]
    requested = {name: owed(memory[name], had(found)) for name, found in states.items()}
    growth = grow(view, states, requested, memory, now)
    actions += growth.actions
    for action in growth.actions:
        memory[action.pool] = _asked(memory[action.pool], action.size, now, grown=True)
        requested[action.pool] += action.size - action.before
    wake = [growth.wake_at]
    for pool in view.pools:
        if pool.name not in states:
            continue
        found, kept = states[pool.name], memory[pool.name]
        wanted = pool.name in growth.wanted
        going = shrink(pool, view.groups[pool.name], nodes.get(pool.name, ()), found, kept, wanted, now)
        actions += going
        memory[pool.name] = _deleted(kept, going, found, now)
        wake.append(next_idle(pool, found, kept, now))
        wake.append(kept.blocked_until if blocked(kept, now) else None)
        wake += [each.since + SETTLE_S for each in found.values() if each.state is NodeState.SETTLING]
    actions += forget(view.pools, view.groups, view.nodes)
    return Plan(
        actions=tuple(actions),
        tracked=_tracked(view, states, requested, now),
        memory=memory,
        answers=growth.answers,
        requested=requested,
        wake_at=min((at for at in wake if at is not None and at > now), default=None),
    )


def _unseen(before: PoolMemory | None, trouble: tuple[Fault, str, float] | None, now: float) -> PoolMemory:
    memory = before or PoolMemory()
    return failed(memory, trouble[0], trouble[1], now, wait_s=trouble[2]) if trouble is not None else memory


def _newly_joined(pool: PoolSpec, found: dict[str, Tracked], view: View) -> bool:
    """Return whether a node that was new in the last plan has joined."""
    for instance, tracked in found.items():
        known = view.tracked.get(tracked_key(pool.name, instance))
        if known is not None and known.state in _NEW and tracked.joined and not known.joined:
            return True
    return False


def _cancel(
    pool: PoolSpec, group: Group, states: dict[str, Tracked], memory: dict[str, PoolMemory], now: float
) -> list[SetSize]:
    """Cancel requests that the provider does not meet: the nodes would come after the gang was served elsewhere."""
    known = memory[pool.name]
    if not (blocked(known, now) and known.fault in _GIVES_UP):
        return []
    least = min(floor(pool, group), ceiling(pool, group))
    size = max(had(states), min(least, known.asked))
    if size >= known.asked:
        return []
    memory[pool.name] = _asked(known, size, now)
    return [SetSize(pool.name, size, known.asked, f"{known.fault}: {known.message}")]


def _asked(memory: PoolMemory, size: int, now: float, *, grown: bool = False) -> PoolMemory:
    return msgspec.structs.replace(
        memory,
        asked=size,
        asked_at=now,
        lowered=not grown,
        grown_at=now if grown else memory.grown_at,
        owed_since=now if grown else memory.owed_since,
    )


def _deleted(memory: PoolMemory, going: Iterable[Action], states: dict[str, Tracked], now: float) -> PoolMemory:
    """Mark instances as being deleted, and lower the pool's size accordingly."""
    deletes = [action for action in going if isinstance(action, Delete)]
    for action in deletes:
        states[action.instance] = msgspec.structs.replace(states[action.instance], state=NodeState.DELETING, since=now)
    fewer = sum(not action.replace for action in deletes)
    return _asked(memory, memory.asked - fewer, now) if fewer else memory


def _never_joined(pool: PoolSpec, memory: PoolMemory, late: list[Delete], now: float) -> PoolMemory:
    """Record a failure if instances did not join in time; several at once count as one failure."""
    if not late:
        return memory
    more = f", and {len(late) - 1} more" if len(late) > 1 else ""
    message = f"{late[0].instance} had not joined after {pool.join_timeout_s:g} s{more}"
    return failed(memory, Fault.NEVER_JOINED, message, now)


def _tracked(
    view: View, states: dict[str, dict[str, Tracked]], requested: dict[str, int], now: float
) -> dict[str, Tracked]:
    """Return the state of every node, including requested ones. States of pools that were not read do not change."""
    unseen = {pool.name for pool in view.pools} - states.keys()
    tracked = {key: each for key, each in view.tracked.items() if key.partition("/")[0] in unseen}
    for name, found in states.items():
        tracked |= {tracked_key(name, instance): each for instance, each in found.items()}
        for number in range(requested[name]):
            key = tracked_key(name, f"requested-{number}")
            tracked[key] = view.tracked.get(key) or Tracked(NodeState.REQUESTED, now, now)
    return tracked
