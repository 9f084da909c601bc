"""Finds out whether a gang fits once pods that are being deleted have stopped, and writes in flight have ended."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from muster.scheduler.draft import Draft, wake
from muster.scheduler.gangs.gang import Gang, PodRecord
from muster.scheduler.gangs.placements import is_leaving
from muster.scheduler.placement.closed import Closed
from muster.scheduler.placement.place import Groups, Shortage, choose
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.queue.overtaking import overtakers


def fits_once_stopped(draft: Draft, gang: Gang, groups: Groups, closed: Closed, spared: Collection[str]) -> bool:
    """Return whether all slots fit when stopping pods, moved slots and the gangs backfilled behind `gang` have left.

    Without this, another gang could start on the free nodes each time that one stops, and the gang would never fit.
    A slot has moved when the write of its Placement has ended.
    A pod that does not stop within its grace does not count. `closed` are nodes reserved for others. `spared` are keys
    of gangs that stay.
    """
    stopping = list(_stopping(draft))
    if not stopping and not draft.moving:
        return False
    ledger = draft.ledger.fork()
    given = [(pod.counted_on, pod.cls) for pod in stopping] + draft.moving
    given += [room for other in overtakers(draft.snapshot, gang) if other.key not in spared for room in _taken(other)]
    for name, cls in given:
        bucket = ledger.room(draft.snapshot.nodes[name])
        if bucket is not None and cls is not None:
            ledger.give(bucket, [name], cls)
    slots = {slot for members in groups.values() for slot in members}
    found = choose(
        ledger,
        draft.recalled.matcher,
        groups,
        closed=closed,
        failed=gang.failed_nodes,
        taken=gang.nodes_beside(slots),
        given_up=[held for slot, held in gang.holds.items() if slot in slots],
    )
    if isinstance(found, Shortage):
        return False
    if stopping:
        wake(draft, min(_stops_by(draft, pod) for pod in stopping))
    return True


def _taken(gang: Gang) -> Iterator[tuple[str, PodClass]]:
    """Yield (node, class) of what the gang takes, without pods that are being deleted."""
    for pod in gang.pods.values():
        if pod.counted_on and pod.cls is not None and not pod.terminating:
            yield pod.counted_on, pod.cls
    for node, cls in gang.holds.values():
        if cls is not None:
            yield node, cls


def _stopping(draft: Draft) -> Iterator[PodRecord]:
    """Yield the pods whose room becomes free when they stop: their gang keeps no slot for the next pod."""
    for pod in draft.snapshot.stopping.values():
        gang = draft.snapshot.gangs.get(pod.gang)
        keeps = gang is not None and gang.placement is not None and not (gang.ended or is_leaving(gang))
        if pod.counted_on and not keeps and draft.now < _stops_by(draft, pod):
            yield pod


def _stops_by(draft: Draft, pod: PodRecord) -> float:
    return pod.stops_by + draft.settings.leave_slack_s
