"""Shares the budget: max-min fair among teams by weight, in a team by strict priority, then equally among subjects.

All numbers are integers. In each direction, the limits that nodes may enforce never exceed the budget at any moment,
whatever delays the messages have. A limit rises only by room that is free now. Room that another node is to give up
counts as free only when this node has confirmed its lower limit (`NodeView.held`).

Sources: Kumar et al., BwE: Flexible, Hierarchical Bandwidth Allocation for WAN Distributed Computing (SIGCOMM 2015);
Raghavan et al., Cloud Control with Distributed Rate Limiting (SIGCOMM 2007). BwE also lets limits apply for a time
without the controller; unlike it, we count them until they have decayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, islice
from typing import Final, NamedTuple

from muster.network.uplink.demand import level
from muster.network.uplink.plan import NodeRates, Plan, Shared, Why
from muster.network.uplink.snapshot import Group, Snapshot
from muster.network.uplink.wire import Pair

_IN: Final = 0
_OUT: Final = 1
_STEADY_SHIFT: Final = 6
"""Changes of at most 1/64 keep the old limit, so that rates do not flap."""
_WORTH: Final = 16
"""Raises wait if less than 1/16 of them is free: the rest is free a moment later, and messages cost."""


def decide(snapshot: Snapshot) -> Plan:
    """Return the limits that change. They are sent in one message for each node."""
    nodes = snapshot.nodes
    groups = _flat([node.groups for node in nodes])
    ends = list(accumulate([len(node.groups) for node in nodes], initial=0))
    ways = [
        _Way(
            snapshot.budget[way] - snapshot.away[way],
            snapshot.floor[way],
            groups,
            _flat([node.want_in for node in nodes] if way == _IN else [node.want_out for node in nodes]),
            _flat([node.rate_in for node in nodes] if way == _IN else [node.rate_out for node in nodes]),
            [node.rest[way] for node in nodes],
            [node.held[way] for node in nodes],
            [node.static[way] for node in nodes],
            ends,
            {team: both[way] for team, both in snapshot.excess.items()},
        )
        for way in (_IN, _OUT)
    ]
    down, up = (_direction(snapshot, way) for way in ways)
    changed = []
    for index, node in enumerate(nodes):
        start, end = ends[index], ends[index + 1]
        rate_in, rate_out = down.rates[start:end], up.rates[start:end]
        rest_in, rest_out = down.rests[index], up.rests[index]
        if node.renew or rate_in != node.rate_in or rate_out != node.rate_out or (rest_in, rest_out) != node.rest:
            changed.append(NodeRates(index, rate_in, rate_out, Pair(rest_in, rest_out)))
    return Plan(changed, down.shared, up.shared)


def _flat(lists: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


class _Way(NamedTuple):
    """One direction. `capacity` is the budget without the limits of silent nodes.

    `groups`, `wants` and `olds` are by subject, the other lists by node. The subjects of node k are those from
    `ends[k]` to before `ends[k + 1]`.
    """

    capacity: int
    floor: int
    groups: list[int]
    wants: list[int]
    olds: list[int]
    rests: list[int]
    held: list[int]
    static: list[int]
    ends: list[int]
    excess: Mapping[str, int]


class _Result(NamedTuple):
    rates: list[int]
    rests: list[int]
    shared: Shared


def _direction(snapshot: Snapshot, way: _Way) -> _Result:
    capacity = max(0, way.capacity)
    parts = len(way.wants) + len(way.rests)
    unheard = sum(way.excess.values())
    floor = min(way.floor, max(0, capacity - unheard) // parts) if parts else way.floor
    above = [want - floor if want > floor else 0 for want in way.wants]
    members: list[list[int]] = [[] for _ in snapshot.groups]
    for group, want in zip(way.groups, above, strict=True):
        members[group].append(want)
    levels, waits, teams = _levels(snapshot, members, max(0, capacity - floor * parts), way.excess)
    if levels:
        top = max(above, default=0)
        tops = [levels.get(group, top) for group in range(len(members))]
        aims = [
            floor + (want if want < tops[group] else tops[group]) for group, want in zip(way.groups, above, strict=True)
        ]
    else:
        aims = [floor + want for want in above]
    rests = [floor] * len(way.rests)
    rates = _steady(aims, way.olds, capacity - unheard - floor * len(rests))
    granted = _grant(snapshot, way, rates, rests)
    shared = Shared(
        wanted_bps=sum(above) + floor * parts,
        allotted_bps=sum(rates) + sum(rests),
        levels_bps={group: floor + limit for group, limit in levels.items()},
        waits=dict.fromkeys(waits, Why.WARMING) if snapshot.warming else waits,
        teams_bps=teams,
        floor_bps=floor,
        blocked=granted,
    )
    return _Result(rates, rests, shared)


def _levels(
    snapshot: Snapshot, members: Sequence[list[int]], capacity: int, excess: Mapping[str, int]
) -> tuple[dict[int, int], dict[int, Why], dict[str, int]]:
    """Return the limit of each group that cannot have all it wants, why, and what each team gets."""
    wants = [sum(each) for each in members]
    by_team: dict[str, list[int]] = {}
    for index, group in enumerate(snapshot.groups):
        if wants[index] or group.team in excess:
            by_team.setdefault(group.team, []).append(index)
    demands = {team: sum(wants[index] for index in indexes) for team, indexes in by_team.items()}
    shares = _team_shares(snapshot, demands, capacity, excess)
    levels: dict[int, int] = {}
    waits: dict[int, Why] = {}
    for team, indexes in by_team.items():
        left = shares[team]
        if demands[team] <= left:
            continue
        higher = False
        for index in sorted(indexes, key=lambda index: _first(snapshot.groups[index])):
            if wants[index] <= left:
                left -= wants[index]
                higher = higher or wants[index] > 0
                continue
            levels[index] = level(members[index], left)
            waits[index] = Why.PRIORITY if higher else Why.TEAM_SHARE
            left, higher = 0, True
    return levels, waits, {team: min(demands[team], share) for team, share in shares.items()}


def _first(group: Group) -> int:
    return -group.priority


def _team_shares(
    snapshot: Snapshot, demands: Mapping[str, int], capacity: int, excess: Mapping[str, int]
) -> dict[str, int]:
    """Return what each team's responsive subjects may have. A team pays for its unresponsive subjects first."""
    weights = {team: snapshot.weights.get(team, snapshot.default_weight) for team in demands}
    paid: dict[str, int] = {}
    while True:
        rest = {team: demand + excess.get(team, 0) for team, demand in demands.items() if team not in paid}
        shares = fill(rest, weights, max(0, capacity - sum(paid.values())))
        beyond = [team for team in rest if excess.get(team, 0) > shares[team]]
        if not beyond:
            return {team: shares.get(team, 0) - excess.get(team, 0) if team not in paid else 0 for team in demands}
        paid.update((team, excess[team]) for team in beyond)


def fill(demands: Mapping[str, int], weights: Mapping[str, int], capacity: int) -> dict[str, int]:
    """Return the weighted max-min fair shares. Their sum is at most the capacity, and no share exceeds its demand."""
    shares: dict[str, int] = {}
    left = dict(demands)
    while left:
        total = sum(weights[name] for name in left)
        content = [name for name, demand in left.items() if demand * total <= capacity * weights[name]]
        if not content:
            shares.update((name, capacity * weights[name] // total) for name in left)
            break
        for name in content:
            shares[name] = left.pop(name)
            capacity -= shares[name]
    return shares


def _steady(aims: list[int], olds: list[int], capacity: int) -> list[int]:
    """Return the aims, with old limits in place of small changes. Small decreases stay out only if all of them fit."""
    rates = [old if old < aim <= old + (old >> _STEADY_SHIFT) else aim for aim, old in zip(aims, olds, strict=True)]
    kept = [
        old if rate < old <= rate + (rate >> _STEADY_SHIFT) else rate for rate, old in zip(rates, olds, strict=True)
    ]
    return kept if sum(kept) <= capacity else rates


def _grant(snapshot: Snapshot, way: _Way, rates: list[int], rests: list[int]) -> bool:
    """Lower raises that have no room now, in place. Returns whether there are any."""
    sums = list(accumulate(rates, initial=0))
    totals = [
        sums[end] - sums[start] + rest
        for start, end, rest in zip(way.ends, islice(way.ends, 1, None), rests, strict=False)
    ]
    free = max(0, way.capacity - sum(way.held) - sum(way.excess.values()))
    if snapshot.warming:
        return _grant_warming(way, rates, rests, totals, free)
    need = sum([total - held for total, held in zip(totals, way.held, strict=True) if total > held])
    if free >= need:
        return False
    if free * _WORTH < need:
        free = 0
    # A node's limits were at most `held`. So if each raise gets this part of its size, the node takes at most this part
    # of what it needs above `held`.
    rates[:] = [
        rate if rate <= old else old + (rate - old) * free // need for rate, old in zip(rates, way.olds, strict=True)
    ]
    rests[:] = [
        rest if rest <= old else old + (rest - old) * free // need for rest, old in zip(rests, way.rests, strict=True)
    ]
    return True


def _grant_warming(way: _Way, rates: list[int], rests: list[int], totals: list[int], free: int) -> bool:
    """Do the same for a new leader: a node gets no more than it may have now, or than its static share."""
    needs = [
        min(total, max(held, static)) - held if total > held else 0
        for total, held, static in zip(totals, way.held, way.static, strict=True)
    ]
    need, cut = sum(needs), False
    for index, (total, held) in enumerate(zip(totals, way.held, strict=True)):
        allowed = held + (needs[index] if free >= need else needs[index] * free // need)
        if total > allowed:
            cut = True
            _lower(way, rates, rests, index, allowed)
    return cut


def _lower(way: _Way, rates: list[int], rests: list[int], index: int, allowed: int) -> None:
    """Lower the raises of one node by the same part, so that its sum is at most `allowed`."""
    start, end = way.ends[index], way.ends[index + 1]
    lows = [min(new, old) for new, old in zip(rates[start:end], way.olds[start:end], strict=True)]
    low_rest = min(rests[index], way.rests[index])
    low = sum(lows) + low_rest
    raises = sum(rates[start:end]) + rests[index] - low
    spare = max(0, allowed - low)
    for offset, each in enumerate(lows):
        rates[start + offset] = each + (rates[start + offset] - each) * spare // raises
    rests[index] = low_rest + (rests[index] - low_rest) * spare // raises
