"""Invariants on backfill: gangs that use nodes reserved for a gang before them, and give them back."""

from __future__ import annotations

from fuzz.checks import Checker
from fuzz.view import PlacementFacts, PodFacts

BACKFILLED = "Backfilled"


class BackfilledOnlyBehind(Checker):
    """A gang is backfilled only for a gang before it in the queue, and is asked to leave only for such a gang."""

    name = "no gang is backfilled, or gives way, for a later one"

    def placement(self, old: PlacementFacts | None, new: PlacementFacts | None) -> None:
        """Look at a gang that was just backfilled, or asked to leave."""
        if new is None:
            return
        if old is None and new.backfilled_for:
            first = self._pod_of(new.backfilled_for)
            if first is not None and self._is_behind(first, new.gang):
                self.fail(f"{new.gang} was backfilled for {new.backfilled_for}, which comes after it")
        if new.phase == "Preempting" and new.reason == BACKFILLED and (old is None or old.phase != new.phase):
            self._asked(new)

    def _asked(self, placement: PlacementFacts) -> None:
        if not placement.backfilled_for:
            self.fail(f"{placement.gang} was asked to leave as if it were backfilled")
        nodes = {node for node, _ in placement.slots.values()}
        takers = [
            other.gang
            for other in self.view.placements.values()
            if other.preempting and not nodes.isdisjoint(node for node, _ in other.slots.values())
        ]
        pods = [pod for pod in map(self._pod_of, takers) if pod is not None]
        if pods and all(self._is_behind(pod, placement.gang) for pod in pods):
            self.fail(f"{placement.gang} was asked to leave, although {', '.join(sorted(takers))} comes after it")

    def _pod_of(self, gang: str) -> PodFacts | None:
        return next(iter(self.view.gangs.get(gang, {}).values()), None)

    def _is_behind(self, pod: PodFacts, gang: str) -> bool:
        """Returns whether the pod's gang certainly has a later place in the queue than `gang`."""
        mine = self._pod_of(gang)
        return mine is not None and self.view.last_place(mine) < self.view.place(pod)
