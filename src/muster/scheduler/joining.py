"""Pods beyond a gang's minimum: they take what room is left, and never what anybody waits for."""

from __future__ import annotations

from collections.abc import Collection

from muster.scheduler.gangs import Gang
from muster.scheduler.ledger import Ledger
from muster.scheduler.matching import Matcher
from muster.scheduler.placing import Shortage, choose
from muster.scheduler.podclass import PodClass


def room_for_joiners(ledger: Ledger, matcher: Matcher, gang: Gang, reserved: Collection[int]) -> dict[int, str]:
    """Return slot -> node for as many of them as there is room for, in order of slots, and take that room."""
    groups: dict[PodClass, list[int]] = {}
    for slot, pod in sorted(gang.joiners.items()):
        if pod.cls is not None and pod.problem is None:
            groups.setdefault(pod.cls, []).append(slot)
    chosen: dict[int, str] = {}
    for cls, slots in groups.items():
        found = choose(ledger, matcher, {cls: slots}, reserved=reserved, failed=gang.failed_nodes)
        if isinstance(found, Shortage) and found.have:
            found = choose(ledger, matcher, {cls: slots[: found.have]}, reserved=reserved, failed=gang.failed_nodes)
        chosen.update({} if isinstance(found, Shortage) else found)
    return chosen
