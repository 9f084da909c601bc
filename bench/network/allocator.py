"""The allocator of the uplink's budget for a whole fleet: the time of one plan, and of its parts around it.

All demands exceed the budget in both directions, and all limits change: the slowest case. A steady fleet, where few
demands change, is beside it. The peer computes the same shares by sorting, as textbooks do.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from typing import Final

from bench.report import Goal, at_most, spread
from muster.network.uplink.cache import Owner, UplinkCache
from muster.network.uplink.decide import decide
from muster.network.uplink.settings import Settings
from muster.network.uplink.snapshot import Snapshot
from muster.network.uplink.wire import Applied, Pair, PodDemand, Report

NODES: Final = 7_500
SUBJECTS: Final = 4
TEAMS: Final = 20
GOAL_MS: Final = 50.0
_G: Final = 10**9
_LINE: Final = Pair(10 * _G, 10 * _G)


def measure(repetitions: int) -> tuple[dict[str, float], list[Goal]]:
    """Return the figures, in milliseconds of CPU time, and the goals."""
    cache = _fleet(random.Random(16))
    times: dict[str, list[float]] = {}

    def timed(name: str, function: Callable[[], object]) -> object:
        gc.collect()
        began = time.thread_time()
        found = function()
        times.setdefault(name, []).append((time.thread_time() - began) * 1e3)
        return found

    for _ in range(max(3, repetitions)):
        for record in cache.nodes.values():
            record.view = None
        timed("views", cache.views)
        views, records = cache.views()
        snapshot = cache.snapshot(views, 0.0)
        plan = timed("plan", lambda snapshot=snapshot: decide(snapshot))  # type: ignore[misc]
        timed("peer_sorting", lambda snapshot=snapshot: _by_sorting(snapshot))  # type: ignore[misc]
        del plan, records
    plan = decide(cache.snapshot(*(cache.views()[:1]), 0.0))
    views, records = cache.views()
    for seq, new in enumerate(plan.nodes):
        rates = cache.rates(records[new.node], new, seq + 1, "e")
        cache.sent(records[new.node], rates, 0.0)
        cache.applied(records[new.node], Applied("e", rates.seq, rates.total), "e", 0.0)
    for _ in range(max(3, repetitions)):
        views, _records = cache.views()
        snapshot = cache.snapshot(views, 0.0)
        timed("steady_plan", lambda snapshot=snapshot: decide(snapshot))  # type: ignore[misc]
    figures: dict[str, float] = {"nodes": NODES, "demands": NODES * SUBJECTS}
    for name, values in times.items():
        spread(f"{name}_cpu_ms", values, figures)
    goals = [at_most("CPU time of a plan for 7,500 nodes and 30,000 demands, ms", GOAL_MS, figures["plan_cpu_ms"])]
    return figures, goals


def _fleet(rng: random.Random) -> UplinkCache:
    weights = {f"team-{index}": index + 1 for index in range(TEAMS)}
    settings = Settings(budget=Pair(400 * _G, 200 * _G), floor=Pair(500_000, 500_000), weights=weights)
    cache = UplinkCache(settings, 0.0)
    for index in range(NODES):
        name = f"node-{index}"
        cache.node_changed(name, True, 0.0)
        record = cache.connected(name)
        cache.applied(record, Applied("", 0, Pair(10**6, 10**6)), "e", 0.0)
        pods = {}
        for number in range(SUBJECTS):
            uid, team = f"{index}-{number}", rng.choice(list(weights))
            cache.pod_changed(uid, Owner(name, "space", uid, "job", team, rng.choice((0, 100, 1000))))
            used = rng.randrange(10**6, _G), rng.randrange(10**6, _G)
            asked = (rng.choice((each, _LINE.in_bps)) for each in used)
            pods[uid] = PodDemand(*used, *asked)
        cache.reported(record, Report(1, _LINE, pods), 0.0)
    return cache


def _by_sorting(snapshot: Snapshot) -> list[int]:
    """The shares of downloads without floors, steadiness and confirmed limits: sort the demands of each group."""
    groups: list[list[tuple[int, int]]] = [[] for _ in snapshot.groups]
    index = 0
    for node in snapshot.nodes:
        for number, want in zip(node.groups, node.want_in, strict=True):
            groups[number].append((want, index))
            index += 1
    rates = [0] * index
    total = sum(snapshot.weights.get(group.team, 1) for group in snapshot.groups)
    for group, members in zip(snapshot.groups, groups, strict=True):
        left = snapshot.budget.in_bps * snapshot.weights.get(group.team, 1) // max(1, total)
        members.sort()
        for position, (want, place) in enumerate(members):
            rates[place] = min(want, left // (len(members) - position))
            left -= rates[place]
    return rates
