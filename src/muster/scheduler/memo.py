"""Memo of the scheduler: results of earlier calls of `decide` that a later call uses again.

If a memo is lost, the next plan takes longer, but it is the same plan. A memo is immutable. `recall` creates working
objects from it. One call of `decide` fills these, and `remember` creates the next memo from them. A memo contains
positions in the journals of the snapshot, which show which of its parts are out of date.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from muster.scheduler.placement.matching import NO_VERDICTS, Matcher, Verdicts
from muster.scheduler.placement.memo import NO_REFUSALS, KnownRefusals, Refusals
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.preemption.budget_needs import NO_BUDGET_NEEDS, BudgetNeeds, KnownBudgetNeeds
from muster.scheduler.queue.backfill import NO_GAINS, Gains, KnownGains
from muster.scheduler.queue.expected import NOTHING_EXPECTED, Expected, KnownExpected
from muster.scheduler.snapshot import Snapshot


class Memo(msgspec.Struct, frozen=True):
    """Results that were computed from earlier snapshots.

    Attributes:
        epoch: the epoch of these snapshots. In another epoch, the memo is not valid.
        classes: pod classes in use when verdicts on others were dropped.
        verdicts: which pod classes fit which node classes.
        gains: the room that the end of each gang frees.
        refusals: why gangs with rules about other pods do not fit: with the present pods, and without gangs.
        expected: when nodes are expected to be free.
        budget_needs: evictions that gangs need of each disruption budget.
    """

    epoch: object = None
    classes: Collection[PodClass] = ()
    verdicts: Verdicts = NO_VERDICTS
    gains: KnownGains = NO_GAINS
    refusals: tuple[KnownRefusals, KnownRefusals] = (NO_REFUSALS, NO_REFUSALS)
    expected: KnownExpected = NOTHING_EXPECTED
    budget_needs: KnownBudgetNeeds = NO_BUDGET_NEEDS


EMPTY = Memo()


@dataclass(slots=True)
class Recalled:
    """Working objects of one call."""

    matcher: Matcher
    gains: Gains
    refusals: Refusals
    expected: Expected
    budget_needs: BudgetNeeds


def recall(snapshot: Snapshot, now: float, memo: Memo = EMPTY) -> Recalled:
    """Return working objects with what the memo knows about this snapshot. `now` is in seconds since the epoch."""
    if memo.epoch is not snapshot.epoch:
        memo = EMPTY
    matcher = matcher_for(snapshot, memo)
    return Recalled(
        matcher,
        Gains(snapshot, matcher, memo.gains),
        Refusals(snapshot, matcher, memo.refusals),
        Expected(snapshot, matcher, now, memo.expected),
        BudgetNeeds(snapshot.budgets, memo.budget_needs),
    )


def matcher_for(snapshot: Snapshot, memo: Memo = EMPTY) -> Matcher:
    """Return a matcher with the verdicts that the memo knows."""
    verdicts = memo.verdicts if memo.epoch is snapshot.epoch else NO_VERDICTS
    if memo.classes is not snapshot.classes:
        verdicts = verdicts.of(snapshot.classes)
    return Matcher(pools=snapshot.pools, team_key=snapshot.team_key, verdicts=verdicts)


def remember(snapshot: Snapshot, recalled: Recalled) -> Memo:
    """Return the next memo. The working objects must not be used afterwards."""
    return Memo(
        snapshot.epoch,
        snapshot.classes,
        recalled.matcher.verdicts,
        recalled.gains.known,
        recalled.refusals.known,
        recalled.expected.known,
        recalled.budget_needs.known,
    )
