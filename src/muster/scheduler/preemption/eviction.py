"""Gangs that are preempted through the Eviction API: they get no notice, and their disruption budgets count.

Before any eviction, every member is tried in a dry run. If one is refused, the whole gang stays and is not a
candidate for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from muster.scheduler.gangs.gang import Gang, PodRecord
from muster.scheduler.gangs.placements import TRAINING_JOB, is_leaving
from muster.scheduler.gangs.priority import Rank
from muster.scheduler.plan import EvictMember, TryEviction
from muster.scheduler.preemption.budget_needs import BudgetNeeds
from muster.scheduler.reasons import NodeReason, NodeWhy
from muster.scheduler.snapshot import Snapshot


def by_eviction(gang: Gang) -> bool:
    """Return whether the gang leaves by eviction only.

    TrainingJobs are asked to leave, balloons are deleted at once, and pinned gangs never leave. If a TrainingJob is
    not known yet, its pods' owner identifies it.
    """
    if gang.job is not None or gang.traits.rank is Rank.BALLOON or gang.traits.pinned:
        return False
    return gang.single or gang.owner is None or gang.owner.kind != TRAINING_JOB


def to_evict(gang: Gang) -> list[PodRecord]:
    """Return the pods that still have to be evicted, sorted by name."""
    return sorted((pod for pod in gang.pods.values() if pod.counted_on and pod.live), key=lambda pod: pod.name)


def why_it_stays(needs: BudgetNeeds, gang: Gang, now: float) -> NodeReason | None:
    """Return why the gang may not be evicted now; None if it may, or if it leaves in another way."""
    if not by_eviction(gang):
        return None
    tried = gang.tried
    if tried is not None and tried.refused and now < tried.until:
        return NodeReason(NodeWhy.EVICTION_REFUSED, tried.refused)
    return needs.refusal(gang)


def may_go(needs: BudgetNeeds, gang: Gang, now: float) -> bool:
    """Return whether the gang may be evicted, if eviction applies; cheaper than `why_it_stays`."""
    if not by_eviction(gang):
        return True
    tried = gang.tried
    return not (tried is not None and tried.refused and now < tried.until) and needs.admit(gang)


def is_tried(gang: Gang, now: float) -> bool:
    """Return whether a recent dry run of evicting the whole gang was answered, or is not needed."""
    return not by_eviction(gang) or (gang.tried is not None and now < gang.tried.until)


def try_eviction(gang: Gang, by: Gang) -> TryEviction:
    """Return the dry run of evicting the gang."""
    return TryEviction(gang.key, gang.namespace, tuple((pod.name, pod.uid) for pod in to_evict(gang)), by.key)


def evict(pod: PodRecord, reason: str) -> EvictMember:
    """Return the eviction of one pod."""
    return EvictMember(pod.gang, pod.namespace, pod.name, pod.uid, reason)


class Spending:
    """Tracks evictions against budgets that cover several gangs, including gangs that already leave.

    Args:
        snapshot: the cluster.
        needs: evictions that gangs need of each budget.
        gangs: candidates for eviction.
        leaving: keys of gangs that this plan asks to leave.
    """

    def __init__(
        self, snapshot: Snapshot, needs: BudgetNeeds, gangs: Sequence[Gang], leaving: Collection[str] = ()
    ) -> None:
        self._allowed = needs.allowed
        self._needs = [
            needs.of(gang) if by_eviction(gang) and not is_leaving(gang) else Counter[str]() for gang in gangs
        ]
        self._spent: Counter[str] = Counter()
        if any(self._needs):
            others = {key: gang for key, gang in snapshot.attention.items() if is_leaving(gang)}
            others |= {key: snapshot.gangs[key] for key in leaving if key in snapshot.gangs}
            for gang in others.values():
                if by_eviction(gang):
                    self._spent += needs.of(gang)

    def clash(self, gone: frozenset[int]) -> frozenset[int]:
        """Return the indexes of gangs that share a budget which does not allow them all; empty if all may go."""
        sharing: dict[str, list[int]] = {}
        for at in sorted(gone):
            for key in self._needs[at]:
                sharing.setdefault(key, []).append(at)
        for key, places in sorted(sharing.items()):
            if self._spent[key] + sum(self._needs[at][key] for at in places) > self._allowed(key):
                return frozenset(places)
        return frozenset()
