"""Computes the nodes that waiting gangs lack, in queue order; each gang gets what those before it leave.

Other autoscalers read `demand`, which shows gangs one by one as each becomes the head of its queue. Muster's own
scaling knows the order, so it can add nodes for several gangs at once instead of one boot after another.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from muster.kube.objects.core import ObjectReference
from muster.scheduler.actions.event_objects import reference
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.gangs.priority import Rank
from muster.scheduler.memo import matcher_for
from muster.scheduler.placement.ledger import Ledger
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.placement.place import candidates, choose
from muster.scheduler.placement.rules import is_related
from muster.scheduler.plan import Plan
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.queue.demand import approved
from muster.scheduler.reasons import Reason, Why
from muster.scheduler.snapshot import Snapshot

_LACKS_NODES = frozenset({Why.NOT_ENOUGH_NODES, Why.MORE_THAN_THE_CLUSTER, Why.BEHIND})


class Lack(msgspec.Struct, frozen=True):
    """A gang that is complete except for nodes: (class, number of pods without room).

    Attributes:
        gang: its key; `name` is `namespace/name`.
        about: object that Events about it refer to.
        approved: nodes may be added for it.
    """

    gang: str
    name: str
    about: ObjectReference | None
    approved: bool
    classes: tuple[tuple[PodClass, int], ...]


def lacking(snapshot: Snapshot, plan: Plan) -> Iterator[Lack]:
    """Yield what each gang lacks that waits for nodes. Balloons and backfilled gangs count as free room: they leave."""
    matcher, waiting = matcher_for(snapshot, plan.memo), plan.waiting
    gangs = [snapshot.gangs[key] for key, reason in waiting.items() if reason.why in _LACKS_NODES]
    ledger = _without_those_that_leave(snapshot)
    for gang in sorted(gangs, key=lambda each: each.order):
        if gang.blocker() is None and gang.pending:
            classes = tuple(_short(matcher, ledger, gang, waiting[gang.key]))
            if classes:
                yield Lack(gang.key, gang.full_name, reference(gang), approved(gang), classes)


def _without_those_that_leave(snapshot: Snapshot) -> Ledger:
    """Return the nodes' room without balloons and backfilled gangs, which leave once a gang then fits."""
    ledger = Ledger(snapshot.buckets)
    for movable in snapshot.movable.values():
        for gang in movable.values():
            if gang.traits.rank is Rank.BALLOON or gang.backfilled:
                for node, cls in gang.takes():
                    bucket = ledger.room(snapshot.nodes[node])
                    if bucket is not None:
                        ledger.give(bucket, [node], cls)
    return ledger


def _short(matcher: Matcher, ledger: Ledger, gang: Gang, reason: Reason) -> Iterator[tuple[PodClass, int]]:
    """Yield (class, pods without room), and take room for the other pods from the ledger."""
    groups: dict[PodClass, list[int]] = {}
    for slot, pod in sorted(gang.pending.items()):
        if pod.cls is not None:
            groups.setdefault(pod.cls, []).append(slot)
    taken = gang.nodes_beside(gang.pending)
    for cls, slots in groups.items():
        if is_related(cls, ledger.layer):  # with rules about other pods, the plan's count is the best estimate
            room = max(0, len(slots) - max(1, reason.need - reason.have)) if reason.why is not Why.BEHIND else 0
        else:
            room = min(len(slots), sum(each.room for each in candidates(ledger, matcher, cls, banned=taken)))
            chosen = choose(ledger, matcher, {cls: slots[:room]}, taken=taken) if room else {}
            if cls.alone and isinstance(chosen, dict):
                taken |= set(chosen.values())
        if room < len(slots):
            yield cls, len(slots) - room
