"""What gangs lack, for whoever adds nodes: in the order of the queue, each given what those before it leave.

Autoscalers of others see `demand`: gangs one by one, as each comes to be the first in its queue. Who knows the order
can add nodes for several at once, and does not wait for a boot between one gang and the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from muster.kube.core import ObjectReference
from muster.scheduler.actions.event_objects import reference
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.gangs.priority import Rank
from muster.scheduler.placement.ledger import Ledger
from muster.scheduler.placement.place import candidates, choose
from muster.scheduler.placement.rules import is_related
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.queue.demand import approved
from muster.scheduler.reasons import Reason, Why
from muster.scheduler.snapshot import Snapshot

_LACKS_NODES = frozenset({Why.NOT_ENOUGH_NODES, Why.MORE_THAN_THE_CLUSTER, Why.BEHIND})


class Lack(msgspec.Struct, frozen=True):
    """A gang that is whole but for nodes: of each class, for how many pods there is no room.

    Attributes:
        gang: its key; `name` is `namespace/name`.
        about: what Events about it are about.
        approved: somebody has said that nodes may be added for it.
    """

    gang: str
    name: str
    about: ObjectReference | None
    approved: bool
    classes: tuple[tuple[PodClass, int], ...]


def lacking(snapshot: Snapshot, waiting: Mapping[str, Reason]) -> Iterator[Lack]:
    """Yield what each gang lacks that is said to wait for nodes. Balloons take no room: they leave at once."""
    gangs = [snapshot.gangs[key] for key, reason in waiting.items() if reason.why in _LACKS_NODES]
    ledger = _without_balloons(snapshot)
    for gang in sorted(gangs, key=lambda each: each.order):
        if gang.blocker() is None and gang.pending:
            classes = tuple(_short(snapshot, ledger, gang, waiting[gang.key]))
            if classes:
                yield Lack(gang.key, gang.full_name, reference(gang), approved(gang), classes)


def _without_balloons(snapshot: Snapshot) -> Ledger:
    """The nodes' room as it is once all balloons have left, which they do when a gang then fits and not before."""
    ledger = Ledger(snapshot.buckets)
    for movable in snapshot.movable.values():
        for gang in movable.values():
            if gang.traits.rank is Rank.BALLOON:
                for node, cls in gang.takes():
                    bucket = ledger.room(snapshot.nodes[node])
                    if bucket is not None:
                        ledger.give(bucket, [node], cls)
    return ledger


def _short(snapshot: Snapshot, ledger: Ledger, gang: Gang, reason: Reason) -> Iterator[tuple[PodClass, int]]:
    """Yield (class, pods without room), and take from the ledger the room that the others have."""
    groups: dict[PodClass, list[int]] = {}
    for slot, pod in sorted(gang.pending.items()):
        if pod.cls is not None:
            groups.setdefault(pod.cls, []).append(slot)
    taken = gang.nodes_beside(gang.pending)
    for cls, slots in groups.items():
        if is_related(cls, ledger.layer):  # rules about other pods: what the plan found is the best that is known
            room = max(0, len(slots) - max(1, reason.need - reason.have)) if reason.why is not Why.BEHIND else 0
        else:
            room = min(len(slots), sum(each.room for each in candidates(ledger, snapshot.matcher, cls, (), taken)))
            chosen = choose(ledger, snapshot.matcher, {cls: slots[:room]}, taken=taken) if room else {}
            if cls.alone and isinstance(chosen, dict):
                taken |= set(chosen.values())
        if room < len(slots):
            yield cls, len(slots) - room
