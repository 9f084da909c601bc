"""The page of the leader that `muster network uplink` shows: demand, rates, and who waits and why."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from typing import Final

import msgspec

from muster.network.uplink.cache import NodeRecord, Subject, UplinkCache
from muster.network.uplink.plan import Plan, Shared, Why
from muster.network.uplink.snapshot import Snapshot
from muster.network.uplink.wire import NOTHING, Pair

SUBJECTS_MAX: Final = 5_000
"""Subjects on a page, those with the largest demand: a page of 30,000 would have 10 MB."""
NODES_MAX: Final = 1_000


class SubjectRow(msgspec.Struct, frozen=True, rename="camel"):
    """A subject with traffic. Numbers are bits per second.

    Attributes:
        node, subject: the node, and the pod's UID or the name of another subject.
        namespace, pod, job, team, priority: whose it is; "" and 0 if it is not a pod.
        used: what it used.
        wants: its demand.
        rate: its limit.
        waits: for each direction, why it gets less than it wants; "" if it does not wait.
        unresponsive: what it uses beyond a limit to which it does not respond.
    """

    node: str
    subject: str
    namespace: str
    pod: str
    job: str
    team: str
    priority: int
    used: Pair
    wants: Pair
    rate: Pair
    waits: tuple[str, str]
    unresponsive: Pair = NOTHING


class TeamRow(msgspec.Struct, frozen=True, rename="camel"):
    """A team: its weight, its demand, and what its subjects may use together."""

    team: str
    weight: int
    wants: Pair
    rate: Pair


class UplinkPage(msgspec.Struct, frozen=True, rename="camel"):
    """What the leader knows.

    Attributes:
        epoch: of its term.
        dry_run: nothing is limited.
        warming: the leader is new, and has not heard enough nodes.
        budget: of the fleet.
        used: what all reported subjects used.
        allotted: the limits of connected nodes.
        away: the limits of nodes without a connection.
        nodes: known nodes.
        connected: connected nodes.
        silent: nodes without a connection, at most NODES_MAX.
        teams: all teams with demand.
        subjects: subjects with traffic, at most SUBJECTS_MAX.
        subjects_left_out: how many more there are.
    """

    epoch: str
    dry_run: bool
    warming: bool
    budget: Pair
    used: Pair
    allotted: Pair
    away: Pair
    nodes: int
    connected: int
    silent: tuple[str, ...]
    teams: tuple[TeamRow, ...]
    subjects: tuple[SubjectRow, ...]
    subjects_left_out: int = 0


def page_of(cache: UplinkCache, snapshot: Snapshot, plan: Plan, epoch: str, now_s: float) -> UplinkPage:
    """Return the page after a plan."""
    records = list(cache.nodes.values())
    alive = [each for each in records if each.connected]
    found = [(record, name, subject) for record in alive for name, subject in record.subjects.items()]
    excess = {(each.node, each.subject): each.excess for each in cache.unresponsive(now_s)}
    shown = nlargest(SUBJECTS_MAX, found, key=lambda each: sum(each[2].want) + sum(excess.get(_key(each), NOTHING)))
    silent = sorted(each.name for each in records if not each.connected)
    return UplinkPage(
        epoch=epoch,
        dry_run=cache.settings.dry_run,
        warming=snapshot.warming,
        budget=snapshot.budget,
        used=_sum(Pair(*subject.demand[:2]) for _, _, subject in found),
        allotted=Pair(plan.download.allotted_bps, plan.upload.allotted_bps),
        away=snapshot.away,
        nodes=len(records),
        connected=len(alive),
        silent=tuple(silent[:NODES_MAX]),
        teams=tuple(_teams(cache, snapshot, found)),
        subjects=tuple(_row(cache, plan, *each, excess.get(_key(each), NOTHING), snapshot.warming) for each in shown),
        subjects_left_out=len(found) - len(shown),
    )


def _key(found: tuple[NodeRecord, str, Subject]) -> tuple[str, str]:
    return found[0].name, found[1]


def _teams(cache: UplinkCache, snapshot: Snapshot, found: list[tuple[NodeRecord, str, Subject]]) -> Iterable[TeamRow]:
    by_team: dict[str, list[Subject]] = {}
    for _, _, subject in found:
        by_team.setdefault(cache.groups[subject.group].team, []).append(subject)
    for team, subjects in sorted(by_team.items()):
        yield TeamRow(
            team,
            snapshot.weights.get(team, snapshot.default_weight),
            _sum(each.want for each in subjects),
            _sum(each.rate or NOTHING for each in subjects),
        )


def _row(
    cache: UplinkCache, plan: Plan, record: NodeRecord, name: str, subject: Subject, excess: Pair, warming: bool
) -> SubjectRow:
    owner = cache.owners.get(name)
    if owner is not None and owner.node != record.name:
        owner = None
    rate = subject.rate or NOTHING
    return SubjectRow(
        node=record.name,
        subject=name,
        namespace=owner.namespace if owner is not None else "",
        pod=owner.name if owner is not None else "",
        job=owner.job if owner is not None else "",
        team=owner.team if owner is not None else "",
        priority=owner.priority if owner is not None else 0,
        used=Pair(*subject.demand[:2]),
        wants=subject.want,
        rate=rate,
        waits=(_why(plan.download, subject, rate, 0, warming), _why(plan.upload, subject, rate, 1, warming)),
        unresponsive=excess,
    )


def _why(shared: Shared, subject: Subject, rate: Pair, way: int, warming: bool) -> str:
    """Return why a subject gets less than it wants; a difference of 1/32 is below what limits distinguish."""
    want = subject.want[way]
    if want <= shared.floor_bps or want - (want >> 5) <= rate[way]:
        return ""
    return shared.waits.get(subject.group, Why.WARMING if warming else Why.ROOM).value


def _sum(pairs: Iterable[Pair]) -> Pair:
    total_in = total_out = 0
    for each in pairs:
        total_in += each.in_bps
        total_out += each.out_bps
    return Pair(total_in, total_out)
