"""Gangs that leave by the Eviction API: nobody tells them to save their work, and their disruption budgets count.

Before anybody is evicted, every member is tried in a dry run. One that is refused keeps the whole gang where it is,
and out of the choice for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from muster.scheduler.gangs.gang import Gang, PodRecord
from muster.scheduler.gangs.placements import TRAINING_JOB, is_leaving
from muster.scheduler.gangs.priority import Rank
from muster.scheduler.plan import EvictMember, TryEviction
from muster.scheduler.reasons import NodeReason, NodeWhy
from muster.scheduler.snapshot import Snapshot


def by_eviction(gang: Gang) -> bool:
    """Whether the gang can leave, and only so: TrainingJobs are told, balloons go at once, others stay for ever.

    The pods of a TrainingJob that is not known yet say whose they are.
    """
    if gang.job is not None or gang.traits.rank is Rank.BALLOON or gang.traits.pinned:
        return False
    return gang.single or gang.owner is None or gang.owner.kind != TRAINING_JOB


def to_evict(gang: Gang) -> list[PodRecord]:
    """Return the pods that are still to be evicted, by name."""
    return sorted((pod for pod in gang.pods.values() if pod.counted_on and pod.live), key=lambda pod: pod.name)


def why_it_stays(snapshot: Snapshot, gang: Gang, now: float) -> NodeReason | None:
    """Return why the gang may not be evicted now; None where it may, or where it leaves in another way."""
    if not by_eviction(gang):
        return None
    tried = gang.tried
    if tried is not None and tried.refused and now < tried.until:
        return NodeReason(NodeWhy.EVICTION_REFUSED, tried.refused)
    return snapshot.budgets.refusal(gang)


def may_go(snapshot: Snapshot, gang: Gang, now: float) -> bool:
    """Whether nothing is known against evicting the gang, or it leaves in another way: quicker than asking why."""
    if not by_eviction(gang):
        return True
    tried = gang.tried
    return not (tried is not None and tried.refused and now < tried.until) and snapshot.budgets.admit(gang)


def is_tried(gang: Gang, now: float) -> bool:
    """Whether a dry run of evicting the whole gang was answered lately, or none is needed."""
    return not by_eviction(gang) or (gang.tried is not None and now < gang.tried.until)


def try_eviction(gang: Gang, by: Gang) -> TryEviction:
    """Return the dry run of evicting the gang."""
    return TryEviction(gang.key, gang.namespace, tuple((pod.name, pod.uid) for pod in to_evict(gang)), by.key)


def evict(pod: PodRecord, reason: str) -> EvictMember:
    """Return the eviction of one pod."""
    return EvictMember(pod.gang, pod.namespace, pod.name, pod.uid, reason)


class Spending:
    """What evicting gangs takes of budgets that cover several of them, beside those that are leaving already.

    Args:
        snapshot: the cluster.
        gangs: that may be evicted.
        leaving: keys of gangs that the plan in the making has leave.
    """

    def __init__(self, snapshot: Snapshot, gangs: Sequence[Gang], leaving: Collection[str] = ()) -> None:
        self._budgets = snapshot.budgets
        self._needs = [
            self._budgets.needs(gang) if by_eviction(gang) and not is_leaving(gang) else Counter[str]()
            for gang in gangs
        ]
        self._spent: Counter[str] = Counter()
        if any(self._needs):
            others = {key: gang for key, gang in snapshot.attention.items() if is_leaving(gang)}
            others |= {key: snapshot.gangs[key] for key in leaving if key in snapshot.gangs}
            for gang in others.values():
                if by_eviction(gang):
                    self._spent += self._budgets.needs(gang)

    def clash(self, gone: frozenset[int]) -> frozenset[int]:
        """Return those at these places of `gangs` that share a budget which does not admit them all; none: all may."""
        sharing: dict[str, list[int]] = {}
        for at in sorted(gone):
            for key in self._needs[at]:
                sharing.setdefault(key, []).append(at)
        for key, places in sorted(sharing.items()):
            if self._budgets.short({key: self._spent[key] + sum(self._needs[at][key] for at in places)}) is not None:
                return frozenset(places)
        return frozenset()
