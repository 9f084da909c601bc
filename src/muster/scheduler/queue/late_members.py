"""Places extra pods of running gangs in the remaining room, never in room that a waiting gang could use."""

from __future__ import annotations

from muster.scheduler.gangs.gang import Gang
from muster.scheduler.placement.closed import OPEN, Closed
from muster.scheduler.placement.ledger import Ledger
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.placement.place import Groups, Shortage, choose
from muster.scheduler.pods.pod_class import PodClass


def room_for_joiners(ledger: Ledger, matcher: Matcher, gang: Gang, closed: Closed) -> dict[int, str]:
    """Return slot -> node for as many extra pods as fit, in order of slots, and take that room."""
    groups: dict[PodClass, list[int]] = {}
    for slot, pod in sorted(gang.joiners.items()):
        if pod.cls is not None and pod.problem is None:
            groups.setdefault(pod.cls, []).append(slot)
    return as_many_as_fit(ledger, matcher, gang, groups, closed)


def as_many_as_fit(
    ledger: Ledger, matcher: Matcher, gang: Gang, groups: Groups, closed: Closed = OPEN
) -> dict[int, str]:
    """Return slot -> node for as many of the slots as fit, and take that room."""
    beside = gang.nodes_beside({slot for slots in groups.values() for slot in slots})
    chosen: dict[int, str] = {}
    for cls, slots in groups.items():
        taken = beside | set(chosen.values()) if beside else beside
        found = choose(ledger, matcher, {cls: slots}, closed=closed, failed=gang.failed_nodes, taken=taken)
        if isinstance(found, Shortage) and found.have:
            part = {cls: slots[: found.have]}
            found = choose(ledger, matcher, part, closed=closed, failed=gang.failed_nodes, taken=taken)
        chosen.update({} if isinstance(found, Shortage) else found)
    return chosen
