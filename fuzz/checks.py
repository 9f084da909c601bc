"""Invariants on pods and nodes, checked on every state of the API server."""

from __future__ import annotations

from fuzz.shapes import LABEL_ZONE
from fuzz.view import NodeFacts, PlacementFacts, PodFacts, View, tolerates
from muster.api.names import LABEL_TEAM
from muster.embedded.objects import Obj

GIVEN_UP = ("Released", "Preempting")
"""Phases of placements that hold nothing any more: their pods that run still do, until they are gone."""


class Violated(AssertionError):
    """An invariant does not hold. The message says which, when, and what was seen."""


class Checker:
    """Base of checkers. Its methods are called for each change, after the change was applied to the view.

    Args:
        view: what the API server holds.
        stale_s: how old the scheduler's knowledge may be in this run because of injected faults.
    """

    name = ""

    def __init__(self, view: View, stale_s: float) -> None:
        self.view = view
        self.stale_s = stale_s
        view.checkers.append(self)

    def pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """A pod changed."""

    def node(self, name: str) -> None:
        """A node changed."""

    def placement(self, old: PlacementFacts | None, new: PlacementFacts | None) -> None:
        """A Placement changed."""

    def job(self, name: str, old: Obj, new: Obj) -> None:
        """The status of a training job changed; `old` is empty if the job is new."""

    def second(self) -> None:
        """A second has passed."""

    def fail(self, what: str) -> None:
        """Report that the invariant does not hold, and end the run."""
        self.view.fail(Violated(f"{self.name}: {what} (at {self.view.now:.3f})"))


class PatientChecker(Checker):
    """A checker that bounds a duration; time in which the controllers are disturbed does not count.

    Args:
        view: what the API server holds.
        stale_s: as for all.
        disturbed_until: time counts from then on; moved on by `disturb`.
    """

    def __init__(self, view: View, stale_s: float, disturbed_until: float) -> None:
        super().__init__(view, stale_s)
        self.disturbed_until = disturbed_until
        self._since: dict[str, float] = {}

    def disturb(self, until: float) -> None:
        """Notes a disturbance of the controllers; they may be slow until then."""
        self.disturbed_until = max(self.disturbed_until, until)


def just_bound(old: PodFacts | None, new: PodFacts | None) -> bool:
    """Returns whether a change is the binding of a pod."""
    return new is not None and bool(new.node) and (old is None or not old.node)


class NoNodeOverCapacity(Checker):
    """The pods bound to a node never request more than the node has."""

    name = "no node over capacity"

    def pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """Look where a pod was just bound."""
        if new is None or not just_bound(old, new):
            return
        node = self.view.node(new.node)
        if node is not None:
            self._check(node)

    def _check(self, node: NodeFacts) -> None:
        here = [pod for pod in self.view.on_node[node.name].values() if not pod.ended]
        for resource, capacity in node.allocatable.items():
            used = sum(pod.requests.get(resource, 0) for pod in here)
            if used > capacity:
                names = ", ".join(sorted(pod.name for pod in here))
                self.fail(f"{node.name} has {capacity} m{resource}, {used} are asked for by {names}")


class NothingWhereItDoesNotFit(Checker):
    """A pod is bound only to a node that is ready, not cordoned, and whose taints and labels suit it.

    The scheduler is forgiven for recent changes, but not for lasting facts (a pool's taint).
    """

    name = "nothing where it does not fit or tolerate"

    def pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """Look where a pod was just bound."""
        if new is None or not just_bound(old, new):
            return
        why = self.view.usable(new.node, new, "", self.stale_s)
        if why:
            self.fail(f"{new.name} was bound to {new.node}, but {why}")


class NothingBesideWhatItKeepsApartFrom(Checker):
    """Pods whose anti-affinity excludes each other are never in the same zone."""

    name = "no rule about pods broken"

    def pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """Look where a pod was just bound."""
        if new is None or not new.apart or not just_bound(old, new):
            return
        zone = self._zone(new.node)
        beside = [
            pod.name
            for pod in self.view.pods.values()
            if pod.apart and pod.node and not pod.ended and pod.uid != new.uid and zone and self._zone(pod.node) == zone
        ]
        if beside:
            self.fail(f"{new.name} was bound to {new.node} in {zone}, where {', '.join(sorted(beside))} is")

    def _zone(self, name: str) -> str:
        node = self.view.node(name)
        return node.labels.get(LABEL_ZONE, "") if node is not None else ""


class NoRoomGivenTwice(Checker):
    """The slots of placed gangs and the other pods on a node never need more than the node has.

    A gang's plan may name nodes that gangs of lower rank still have to leave (preemption): those are not counted.
    """

    name = "no held slot given away"

    def pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """Look where a pod was just bound."""
        if new is not None and just_bound(old, new):
            self._check(new.node, new, new.name)

    def placement(self, old: PlacementFacts | None, new: PlacementFacts | None) -> None:
        """Look at the nodes that a placement newly names."""
        if new is None or new.phase in GIVEN_UP:
            return
        member = next(iter(self.view.gangs[new.gang].values()), None)
        # A Placement that was deleted by hand is written again for pods that run: it gives no room away.
        bound = {(pod.slot, pod.node) for pod in self.view.gangs[new.gang].values() if not pod.ended}
        for slot, placed in new.slots.items():
            if member is not None and (old is None or old.slots.get(slot) != placed) and (slot, placed[0]) not in bound:
                self._check(placed[0], member, f"the placement of {new.name}")

    def _check(self, name: str, by: PodFacts, what: str) -> None:
        node = self.view.node(name)
        if node is None:
            return
        here = [pod for pod in self.view.on_node[name].values() if not pod.ended and not self._yields(pod, by)]
        taken = {(pod.gang, pod.slot) for pod in here}
        held = [
            self._kept(placement, slot, [pod for pod in here if not by.bundle or pod.bundle != by.bundle])
            for placement in self.view.placements.values()
            if placement.phase not in GIVEN_UP
            for slot, placed in placement.slots.items()
            if placed == (name, node.uid)
            and (placement.gang, slot) not in taken
            and not any(self._yields(pod, by) for pod in self.view.gangs[placement.gang].values())
            and not self._kept_out(placement, slot, node)
        ]
        for resource, capacity in node.allocatable.items():
            used = sum(pod.requests.get(resource, 0) for pod in here)
            kept = sum(requests.get(resource, 0) for requests in held)
            if used + kept > capacity:
                self.fail(f"{name} has {capacity} m{resource}: pods take {used}, slots keep {kept}; last came {what}")

    def _kept_out(self, placement: PlacementFacts, slot: int, node: NodeFacts) -> bool:
        """Returns whether the node went to another team. A slot without a pod then reserves no room on the node."""
        pods = [pod for pod in self.view.gangs[placement.gang].values() if pod.slot == slot]
        versions = [each for each in self.view.nodes[node.name] if each.until >= self.view.now - self.stale_s]
        owners = [taint for each in versions for taint in each.taints if taint["key"] == LABEL_TEAM]
        return any(not tolerates(pod, owner) for pod in pods for owner in owners)

    def _kept(self, placement: PlacementFacts, slot: int, here: list[PodFacts]) -> dict[str, int]:
        """Returns what a slot without a pod keeps, beside the pods here that its gang still waits for."""
        pods = [pod for pod in self.view.gangs[placement.gang].values() if pod.slot == slot]
        if not pods:
            return {}
        leave = [pod for pod in here if self._yields(pod, pods[0])] if placement.preempting else []
        return {
            what: max(0, amount - sum(pod.requests.get(what, 0) for pod in leave))
            for what, amount in pods[0].requests.items()
        }

    def _yields(self, pod: PodFacts, to: PodFacts) -> bool:
        """Returns whether the pod's gang has less right to a node: a lower priority, or the same and it came later.

        A gang came with its first pod, even if that pod is gone. Of two gangs of the same second, the first by name
        counts as earlier; a single pod that was backfilled has no name to compare, and counts as later. A resumed job
        may have lost its place to gangs that came before its resumption.
        """
        if pod.bundle and pod.bundle == to.bundle:
            return False
        its, other = self.view.last_place(pod), self.view.place(to)
        later = pod.bundle > to.bundle or bool(pod.backfilled_for)
        return its > other or (its == other and bool(to.bundle) and later)
