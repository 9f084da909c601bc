"""Explains why a gang waits, with node counts, and the smallest change that would let it run.

The reason comes from the plan of `decide`. The node counts come from the same code that `decide` uses to check
nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from muster.api.training_job_status import StartForecast
from muster.api.words import counted
from muster.scheduler.decide import decide, is_behind
from muster.scheduler.explain.loading import load_snapshot, suppose
from muster.scheduler.explain.node_counts import NodeCount, census
from muster.scheduler.explain.what_if import Change, ChangeKind, changes, room
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.gangs.slots import review
from muster.scheduler.memo import EMPTY, Memo, recall
from muster.scheduler.placement.ledger import Ledger, fits
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.placement.place import Groups, Shortage, choose
from muster.scheduler.placement.rules import is_related
from muster.scheduler.plan import Settings
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.queue.backfill import Start
from muster.scheduler.queue.overtaking import has_overtaken
from muster.scheduler.queue.projection import starts_by
from muster.scheduler.reasons import NodeWhy, Reason, Why
from muster.scheduler.snapshot import Snapshot

__all__ = ["Explanation", "explain", "load_snapshot", "suppose"]

_ABOUT_NODES = frozenset({Why.NOT_ENOUGH_NODES, Why.MORE_THAN_THE_CLUSTER, Why.BEHIND})


class Explanation(msgspec.Struct, frozen=True):
    """Explanation of one gang.

    Attributes:
        gang: `namespace/name`.
        waits: whether it waits.
        why: the dominant reason, as in Events and metrics; "" if it does not wait.
        summary: the text of Events and the job's status: headline, node counts, least intrusive change.
        headline: first part of the summary, with the numbers needed and free, such as "needs 4 nodes, 3 are free"; ""
            if the summary is a single text.
        need: number of pods that need room now, of the class that lacks the most room.
        have: number of pods of this class for which there is room now.
        nodes: node counts by verdict for these pods; they add up to the number of nodes.
        changes: changes that would each let it run, the least intrusive first.
        others: the changes that the headline does not name.
        position: place in the queue, from 1; 0 if it is in none.
        queued: gangs in the queue.
        head: the gang it waits behind, if that is the reason.
        when: when it starts, from the time limits of the gangs it waits for; None if unknown.
        forecast: when it is expected to start, from run times of ended jobs; None without an estimate.
        expected: the forecast as text; "" without one.
    """

    gang: str
    waits: bool
    why: str
    summary: str
    headline: str = ""
    need: int = 0
    have: int = 0
    nodes: tuple[NodeCount, ...] = ()
    changes: tuple[Change, ...] = ()
    others: tuple[Change, ...] = ()
    position: int = 0
    queued: int = 0
    head: str = ""
    when: Start | None = None
    forecast: StartForecast | None = None
    expected: str = ""

    def lines(self) -> list[str]:
        """Return the explanation as text for a terminal."""
        lines = [f"{self.gang}: {self.headline or self.summary}"]
        lines += [f"  {count.text()}" for count in self.nodes]
        if self.others:
            lines.append("would run with: " + ", or ".join(change.text() for change in self.others))
        if self.position:
            lines.append(f"queue: {self.position} of {self.queued}")
        if self.waits:
            limited = self.when is not None or not self.expected
            lines.append(f"starts: {_when(self.when) if limited else self.expected}")
            if self.when is not None and self.expected:
                lines.append(f"expected: {self.expected}")
        return lines

    def data(self) -> dict[str, Any]:
        """Return the explanation as JSON-ready data."""
        result: dict[str, Any] = msgspec.to_builtins(self)
        result["nodes"] = [{**msgspec.to_builtins(count), "text": count.text()} for count in self.nodes]
        result["changes"] = [{**msgspec.to_builtins(change), "text": change.text()} for change in self.changes]
        del result["others"]
        result["when"] = {**result["when"], "text": _when(self.when)} if self.when is not None else None
        return result


def explain(
    snapshot: Snapshot,
    gang: Gang,
    *,
    now: float = 0.0,
    supposed: bool = False,
    reason: Reason | None = None,
    settings: Settings | None = None,
    memo: Memo = EMPTY,
) -> Explanation:
    """Explain one gang of the snapshot, or a hypothetical one (see `suppose`).

    Args:
        snapshot: the cluster.
        gang: the gang.
        now: seconds since the epoch.
        supposed: the snapshot is hypothetical (see `hypothetical`).
        reason: why it waits, if a plan has that already.
        settings: the scheduler's deadlines.
        memo: the memo of the last plan, which saves work.
    """
    start: Start | None = None
    if reason is None:
        reason, start = _reason(snapshot, gang, now, settings or Settings(), memo)
    if reason is None:
        return Explanation(gang.full_name, False, "", _not_waiting(gang, supposed=supposed))
    position, queued = _position(snapshot, gang)
    recalled = recall(snapshot, now, memo)
    matcher = recalled.matcher
    groups = _groups(snapshot, matcher, gang)
    if reason.why not in _ABOUT_NODES or not groups:
        return Explanation(
            gang.full_name,
            True,
            reason.why.value,
            reason.text(),
            need=reason.need,
            have=reason.have,
            changes=_pods_missing(reason),
            position=position,
            queued=queued,
        )
    ledger = Ledger(snapshot.buckets)
    beside = gang.nodes_beside({slot for slots in groups.values() for slot in slots})
    cls, need, have = _shortest(matcher, ledger, groups, beside)
    behind = reason.why is Why.BEHIND
    if have >= need and not behind:
        text = f"would run: there is room for {counted(have, 'pod')} and it needs {need}"
        return Explanation(gang.full_name, False, "", text, need=need, have=have, position=position, queued=queued)
    head = snapshot.gangs.get(reason.head)
    kept = _kept_for(snapshot, matcher, head) if head is not None else {}
    counts = census(snapshot, recalled, cls, reserved=kept, beside=beside, gang=gang, now=now)
    given_back = [other for other in snapshot.backfilled.values() if has_overtaken(gang, other)]
    have_then = _room_without(snapshot, matcher, cls, beside, given_back) if given_back else have
    stay = {other.key for other in given_back}
    options = changes(snapshot, matcher, gang, cls, need, have_then, beside, stay) if have_then < need else ()
    whole = all(fits(cls, bucket) <= 1 for bucket in snapshot.empty_buckets.values())
    headline, others = _headline(reason, need, have, whole, gang, options)
    return Explanation(
        gang=gang.full_name,
        waits=True,
        why=reason.why.value,
        summary=_summary(headline, counts, others),
        headline=headline,
        others=others,
        need=need,
        have=have,
        nodes=counts,
        changes=options,
        position=position,
        queued=queued,
        head=head.full_name if behind and head is not None else "",
        when=start,
    )


def _room_without(
    snapshot: Snapshot, matcher: Matcher, cls: PodClass, beside: Collection[str], gangs: Iterable[Gang]
) -> int:
    """Return how many pods of the class fit once these gangs have left."""
    ledger = Ledger(snapshot.buckets)
    for gang in gangs:
        for node, taken in gang.takes():
            bucket = ledger.room(snapshot.nodes[node])
            if bucket is not None:
                ledger.give(bucket, [node], taken)
    return room(ledger, matcher, cls, beside)


def _reason(
    snapshot: Snapshot, gang: Gang, now: float, settings: Settings, memo: Memo
) -> tuple[Reason | None, Start | None]:
    """Return why the gang waits, and when it starts. Each is None if unknown."""
    plan = decide(snapshot, now, settings, memo)
    found = plan.waiting.get(gang.key)
    if found is not None or gang.queued_as is None:
        return found, starts_by(snapshot, plan, gang, now)
    if any(getattr(action, "gang", "") == gang.key for action in plan.actions):
        return None, None
    queue = snapshot.queues[gang.queued_as[0]]
    behind = is_behind(gang, queue[0], gang.size)  # too far back for the plan to name
    return behind, starts_by(snapshot, plan, gang, now)


def _when(start: Start | None) -> str:
    """Return text such as "by 2026-03-01 12:00:00 UTC"; "unknown" if a gang has no time limit."""
    if start is None:
        return "unknown"
    if start.latest <= start.earliest:
        return "any moment: the time limits of the gangs that it waits for have passed"
    latest = datetime.fromtimestamp(start.latest, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        f"by {latest}, when the time limits of the gangs that it waits for end; later if a node breaks or a new gang "
        "goes before it"
    )


def _not_waiting(gang: Gang, *, supposed: bool) -> str:
    if gang.complete and not gang.pending:
        if gang.wanted == gang.size:
            return "all its pods have a node"
        rest = "the others join again if there is unclaimed room"
        return f"runs with {gang.wanted} of {gang.size} nodes, as there was no spare; {rest}"
    if not gang.current:
        return "no pods; its slots are kept for it" if gang.placement is not None else "no pods"
    return f"{'would be' if supposed else 'about to be'} placed: there is room for all of it"


def _groups(snapshot: Snapshot, matcher: Matcher, gang: Gang) -> Groups:
    """Return the slots that need a node, by class: all pending ones, or those whose node is not usable any more."""
    slots = list(gang.pending)
    if gang.placed:
        slots = list(review(snapshot, matcher, Ledger(snapshot.buckets), gang).replace)
    groups: dict[PodClass, list[int]] = {}
    for slot in sorted(slots):
        groups.setdefault(gang.pending_class[slot], []).append(slot)
    return groups


def _shortest(matcher: Matcher, ledger: Ledger, groups: Groups, beside: Collection[str]) -> tuple[PodClass, int, int]:
    """Return (class, need, have) of the pod class that lacks the most room.

    Checks each class by itself. If each class fits, checks whether all pods fit together.
    """
    found = [(cls, len(slots), room(ledger, matcher, cls, banned=beside)) for cls, slots in groups.items()]
    cls, need, have = max(found, key=lambda item: (item[1] - item[2], -item[0].number))
    if have >= need and (len(groups) > 1 or is_related(cls, ledger.layer)):
        together = choose(ledger.fork(), matcher, groups, taken=beside)
        if isinstance(together, Shortage):
            return together.cls, together.need, together.have
    return cls, need, have


def _kept_for(snapshot: Snapshot, matcher: Matcher, head: Gang) -> dict[int, Gang]:
    """Return the node classes that the head of the queue could use."""
    classes = {bucket.node_class.number: bucket.node_class for bucket in snapshot.buckets.values()}
    return {
        number: head
        for number, node_class in classes.items()
        if any(matcher.match(cls, node_class).reason is None for cls in head.counts)
    }


def _position(snapshot: Snapshot, gang: Gang) -> tuple[int, int]:
    queued = sum(len(queue) for queue in snapshot.queues.values())
    if gang.queued_as is None:
        return 0, queued
    return 1 + sum(queue.position(gang.order) for queue in snapshot.queues.values()), queued


def _pods_missing(reason: Reason) -> tuple[Change, ...]:
    if reason.why is not Why.WAITING_FOR_PODS:
        return ()
    return (Change(ChangeKind.CREATE_PODS, reason.need - reason.have),)


def _headline(
    reason: Reason, need: int, have: int, whole: bool, gang: Gang, options: tuple[Change, ...]
) -> tuple[str, tuple[Change, ...]]:
    """Return the numbers in one sentence, and the changes that it does not name.

    Examples: "needs 9 nodes; the cluster has 4. Add 5, or use --nodes 4" and "needs 4 nodes, 3 are free".
    """
    if not whole:
        text = f"needs room for {counted(need, 'pod')}, there is room for {have}"
        if reason.why is Why.MORE_THAN_THE_CLUSTER:
            text += f"; if all usable nodes were empty, they would have room for {reason.have}"
        return text, options
    if reason.why is not Why.MORE_THAN_THE_CLUSTER:
        text = f"needs {counted(need, 'node')}, {have} {'is' if have == 1 else 'are'} free"
        return f"{reason.text()}; {text}" if reason.why is Why.BEHIND else text, options
    text, advice = f"needs {counted(need, 'node')}; the cluster has {reason.have}", []
    others = tuple(each for each in options if each.kind is not ChangeKind.ADD_NODES)
    if len(others) < len(options):
        advice.append(f"add {need - reason.have}")
    if reason.have and need == gang.size and gang.roster is None and not gang.single:
        advice.append(f"use --nodes {reason.have}")
    said = ", or ".join(advice)
    return text + (f". {said[0].upper()}{said[1:]}" if said else ""), others


def _summary(headline: str, counts: tuple[NodeCount, ...], others: tuple[Change, ...]) -> str:
    """Return text such as "needs 4 nodes, 3 are free: 1 not ready, 6 in use (by default/other)"."""
    reasons = [count.text() for count in counts if count.why is not NodeWhy.FREE]
    text = headline
    if reasons:
        text += (". The cluster's nodes: " if ". " in headline else ": ") + ", ".join(reasons[:5])
    return text + (f"; would run with: {others[0].text()}" if others else "")
