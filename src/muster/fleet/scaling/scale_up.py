"""Scale-up: adds all nodes that a gang lacks, in the cheapest pool that can provide all of them, or adds none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from muster.api.words import counted
from muster.fleet.scaling.node_count import Bin, bins_for, place, serves
from muster.fleet.scaling.plan import Answer, Outcome, SetSize
from muster.fleet.scaling.pool_memory import blocked, gone_elsewhere
from muster.fleet.scaling.snapshot import GangDemand, Group, Members, PoolMemory, PoolSpec, View
from muster.fleet.scaling.states import COMING, NodeState, Tracked

PATIENCE_S = 5.0
"""How long a gang must have waited before nodes are added: the next plan may give it nodes of a gang that has ended."""


@dataclass(slots=True)
class Growth:
    """The result of scale-up.

    Attributes:
        sizes: the new size of each pool.
        answers: the outcome for each gang.
        actions: the sizes as actions.
        wanted: pools that a gang waits for: their idle nodes are kept.
        wake_at: when a gang has waited long enough; None without such a gang.
    """

    sizes: dict[str, int] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    actions: list[SetSize] = field(default_factory=list)
    wanted: set[str] = field(default_factory=set)
    wake_at: float | None = None


def ceiling(pool: PoolSpec, group: Group) -> int:
    """Return the largest size the pool may have, by its own limit and its provider's."""
    return min(pool.max, group.ceiling)


def floor(pool: PoolSpec, group: Group) -> int:
    """Return the smallest size the pool may have."""
    return max(pool.min, group.floor)


def grow(
    view: View,
    states: Mapping[str, Mapping[str, Tracked]],
    requested: Mapping[str, int],
    memory: Mapping[str, PoolMemory],
    now: float,
) -> Growth:
    """Decide the size of each pool. Gangs are served in their order."""
    growth = Growth()
    pools = [pool for pool in view.pools if pool.name in view.groups]
    bins = [Bin(pool) for pool in pools for _ in range(_coming(states[pool.name], requested[pool.name]))]
    coming = len(bins)
    for pool in pools:
        asked = memory[pool.name].asked
        least = min(floor(pool, view.groups[pool.name]), ceiling(pool, view.groups[pool.name]))
        growth.sizes[pool.name] = asked if blocked(memory[pool.name], now) else max(asked, least)
    reasons: dict[str, list[str]] = {}
    kept: dict[str, str] = {}
    for gang in view.demands:
        growth.wanted.update(p.name for p in view.pools if any(serves(p, members) for members in gang.members))
        rest = place(gang, bins)
        if not rest:
            growth.answers[gang.key] = Answer(Outcome.COMING, "the nodes it lacks are on their way")
            continue
        serving = [pool for pool in view.pools if all(serves(pool, members) for members in rest)]
        answer = _held_up(gang, serving, kept, growth, now)
        if answer is None:
            chosen, answer = _choose(gang, rest, serving, view, memory, growth, now)
            if chosen is not None:
                added = bins_for(gang, rest, chosen)
                if coming + len(added) > view.coming_max and (coming or not view.coming_max):
                    message = f"{counted(coming, 'node')} on the way, and the pace of joins allows {view.coming_max}"
                    answer = Answer(Outcome.PACED, message)
                else:
                    bins += added
                    coming += len(added)
                    growth.sizes[chosen.name] += len(added)
                    reasons.setdefault(chosen.name, []).append(gang.name)
        growth.answers[gang.key] = answer
        if answer.outcome is not Outcome.ADDED:
            for pool in serving:
                kept.setdefault(pool.name, gang.name)
    for pool in pools:
        size, asked = growth.sizes[pool.name], memory[pool.name].asked
        if size > asked:
            gangs = tuple(reasons.get(pool.name, ()))
            why = f"for {', '.join(gangs)}" if gangs else f"its least size is {floor(pool, view.groups[pool.name])}"
            growth.actions.append(SetSize(pool.name, size, asked, why, gangs))
    return growth


def _coming(states: Mapping[str, Tracked], requested: int) -> int:
    return requested + sum(each.state in COMING for each in states.values() if each.state is not NodeState.REQUESTED)


def _held_up(
    gang: GangDemand, serving: Sequence[PoolSpec], kept: Mapping[str, str], growth: Growth, now: float
) -> Answer | None:
    """Return why no pool is tried for the gang; None if pools may be tried."""
    if not serving:
        return Answer(Outcome.NO_POOL, "no pool has nodes for all of its pods that have no room now")
    if not gang.approved:
        return Answer(
            Outcome.NOT_APPROVED, "more nodes for it are not approved (annotate muster.dev/scale-up: approved)"
        )
    earlier = next((kept[pool.name] for pool in serving if pool.name in kept), "")
    if earlier:
        return Answer(Outcome.BEHIND, f"{earlier} is earlier in the queue and would get the nodes")
    if now - gang.since < PATIENCE_S:
        growth.wake_at = min(growth.wake_at or gang.since + PATIENCE_S, gang.since + PATIENCE_S)
        return Answer(Outcome.SETTLING, "has waited for nodes for only a moment")
    return None


def _choose(
    gang: GangDemand,
    rest: Sequence[Members],
    serving: Sequence[PoolSpec],
    view: View,
    memory: Mapping[str, PoolMemory],
    growth: Growth,
    now: float,
) -> tuple[PoolSpec | None, Answer]:
    """Return the first pool that can provide all the nodes, and the answer to the gang."""
    passed = []
    for pool in serving:
        known, group = memory.get(pool.name), view.groups.get(pool.name)
        if known is not None and gone_elsewhere(known, now):
            passed.append(f"{pool.name}: {known.fault} ({known.message})")
        elif group is None or known is None or blocked(known, now):
            why = f"{known.fault} ({known.message})" if known is not None and known.fault else "not seen yet"
            return None, Answer(Outcome.BACKING_OFF, f"waits for pool {pool.name}: {why}")
        else:
            needed, room = len(bins_for(gang, rest, pool)), ceiling(pool, group) - growth.sizes[pool.name]
            if needed <= room:
                return pool, Answer(Outcome.ADDED, "; ".join([f"{counted(needed, 'node')} of {pool.name}", *passed]))
            passed.append(f"{pool.name}: needs {needed} more, has room for {max(0, room)}")
    full = any(": needs " in each for each in passed)
    return None, Answer(Outcome.FULL if full else Outcome.BACKING_OFF, "; ".join(passed))
