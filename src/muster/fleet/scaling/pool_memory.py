"""The memory of a pool between plans: the requested size, missing instances, and why requests are paused."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from muster.fleet.scaling.snapshot import Fault, Group, PoolMemory, PoolSpec
from muster.fleet.scaling.states import NodeState, Tracked

SIZE_SETTLES_S = 60.0
"""A provider shows a new size within this time; until then it may show the old one."""
BACKOFF_S = 30.0
BACKOFF_MAX_S = 1800.0
CALM_S = 600.0
"""If a pool has no new failure for this long after its back-off, its earlier failures are forgotten."""

ELSEWHERE = frozenset(
    {Fault.NO_CAPACITY, Fault.QUOTA, Fault.FEWER, Fault.NEVER_JOINED, Fault.DENIED, Fault.MISCONFIGURED}
)
"""Faults after which the next pool is tried: the provider refused, or effectively refused. Others may be temporary."""
_OF_REQUESTS = frozenset({Fault.THROTTLED, Fault.TIMED_OUT, Fault.DENIED, Fault.MISCONFIGURED, Fault.UNAVAILABLE})
PATIENT_TIMES = 5
"""After this many failures in a row, a provider that does not answer counts as refusing: the next pool is tried."""
_UNPROVEN = frozenset({NodeState.LAUNCHING, NodeState.JOINING, NodeState.OVERDUE})


def backoff_s(fault: Fault, failures: int) -> float:
    """Return the back-off. The first instance that never joins causes none: it is replaced at once."""
    if fault is Fault.NEVER_JOINED:
        failures -= 1
    return min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(failures - 1, 16)) if failures > 0 else 0.0


def blocked(memory: PoolMemory, now: float) -> bool:
    """Return whether requests to the pool are paused."""
    return memory.fault is not None and now < memory.blocked_until


def silent(memory: PoolMemory, now: float) -> bool:
    """Return whether no request may be sent to the provider, because its last answer was an error."""
    return blocked(memory, now) and memory.fault in _OF_REQUESTS


def gone_elsewhere(memory: PoolMemory, now: float) -> bool:
    """Return whether gangs try the next pool in the meantime."""
    return blocked(memory, now) and (memory.fault in ELSEWHERE or memory.failures >= PATIENT_TIMES)


def owed(memory: PoolMemory, had: int) -> int:
    """Return how many instances are missing."""
    return max(0, memory.asked - had)


def had(states: Mapping[str, Tracked]) -> int:
    """Return how many instances count as the pool's."""
    return sum(each.state is not NodeState.DELETING for each in states.values())


def failed(memory: PoolMemory, fault: Fault, message: str, now: float, *, wait_s: float = 0.0) -> PoolMemory:
    """Record a failure. Each consecutive failure lengthens the pause."""
    failures = memory.failures + 1
    until = now + max(wait_s, backoff_s(fault, failures))
    return msgspec.structs.replace(memory, fault=fault, message=message, failures=failures, blocked_until=until)


def remember(
    spec: PoolSpec,
    group: Group,
    before: PoolMemory | None,
    states: Mapping[str, Tracked],
    joined: bool,
    trouble: tuple[Fault, str, float] | None,
    now: float,
) -> PoolMemory:
    """Update what is remembered. `joined`: a new node has joined since; `trouble`: a request failed."""
    count = had(states)
    newest = group.failure.at if group.failure is not None else 0.0
    if before is None or before.asked < 0:  # a new leader does not know earlier failures
        fresh = PoolMemory(asked=group.size, asked_at=now, owed_since=now, had=count, failure_at=newest)
        return failed(fresh, trouble[0], trouble[1], now, wait_s=trouble[2]) if trouble is not None else fresh
    asked, memory = before.asked, before
    if trouble is not None:
        memory = failed(memory, trouble[0], trouble[1], now, wait_s=trouble[2])
        asked = group.size  # this shows whether the request took effect
    elif group.size > asked and not before.lowered:
        asked = group.size  # another writer has raised the size: keep it
    elif group.size != asked and now - before.asked_at > SIZE_SETTLES_S:
        if group.size < asked and before.grown_at >= before.asked_at:
            message = f"asked for {asked} instances, {spec.group} is set to {group.size}"
            memory = failed(memory, Fault.FEWER, message, now)
        asked = group.size
    missing = asked - count
    moved = missing <= 0 or count > before.had or asked > before.asked
    memory = msgspec.structs.replace(
        memory,
        asked=asked,
        lowered=before.lowered and asked == before.asked,
        had=count,
        owed_since=now if moved else before.owed_since,
        failure_at=max(newest, before.failure_at),
    )
    if missing > 0 and group.failure is not None and newest > before.failure_at:
        return failed(memory, group.failure.fault, group.failure.message, now)
    if missing > 0 and now - memory.owed_since > spec.join_timeout_s and not blocked(memory, now):
        message = f"asked for {asked} instances, got {count} in {spec.join_timeout_s:g} s"
        return failed(memory, Fault.FEWER, message, now)
    calm = missing <= 0 and not any(each.state in _UNPROVEN for each in states.values())
    over = now >= memory.blocked_until
    if memory.fault is not None and over and (joined or (calm and now - memory.blocked_until > CALM_S)):
        return msgspec.structs.replace(memory, fault=None, failures=0, message="")
    return memory
