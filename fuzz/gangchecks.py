"""Invariants on gangs and their slots, checked on every state of the API server."""

from __future__ import annotations

from collections import defaultdict

from fuzz.checks import GIVEN_UP, Checker, PatientChecker, just_bound
from fuzz.shapes import OF_OTHERS
from fuzz.view import PlacementFacts, PodFacts, View
from muster.embedded.apiserver.request import Request
from muster.embedded.objects import decode
from muster.sim.virtual.network import Trace

ENDED = ("Succeeded", "Failed", "Suspended", "gone")


class NoGangPartBoundForLong(PatientChecker):
    """A gang is bound as a whole within `bound_s` of undisturbed time after its first bind, or released.

    A gang that was whole once and repairs some slots is another matter: its healthy members run on.

    Args:
        view: what the API server holds.
        stale_s: as for all.
        bound_s: the bound.
        disturbed_until: time counts from then on.
    """

    name = "no gang part-bound past the bound"

    def __init__(self, view: View, stale_s: float, bound_s: float, disturbed_until: float) -> None:
        super().__init__(view, stale_s, disturbed_until)
        self._bound_s = bound_s
        self._whole: set[str] = set()

    def pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """See whether the gang is whole, part-bound or waiting."""
        pod = new or old
        if pod is None or not pod.bundle:
            return
        live = [one for one in self.view.gangs[pod.bundle].values() if one.live]
        bound = {one.slot: one for one in live if one.node}
        if live and len(bound) == live[0].size:
            self._whole.update(one.uid for one in bound.values())
        elif bound and not any(one.uid in self._whole for one in bound.values()):
            self._since.setdefault(pod.bundle, self.view.now)
            return
        self._since.pop(pod.bundle, None)

    def second(self) -> None:
        """See whether one has been part-bound for too long."""
        for gang, since in self._since.items():
            undisturbed_s = self.view.now - max(since, self.disturbed_until)
            if undisturbed_s > self._bound_s:
                self.fail(f"{gang} has been part-bound for {undisturbed_s:.1f} s")


class BoundWhereItsSlotIs(Checker):
    """A member is bound only to the node that its gang's Placement holds for its slot at that moment."""

    name = "no member bound beside its slot"

    def pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """Look at a pod that was just bound."""
        if new is None or not new.gang or not just_bound(old, new):
            return
        mine = [one for one in self.view.placements.values() if one.gang == new.gang and one.phase != "Released"]
        if not mine:
            self.fail(f"{new.name} was bound to {new.node} without a Placement")
        elif mine[0].slots.get(new.slot, ("", ""))[0] != new.node:
            held = mine[0].slots.get(new.slot, ("no node", ""))[0]
            self.fail(f"{new.name} was bound to {new.node}, its slot is on {held}")


class NoSlotLost(Checker):
    """A slot changes its node only if the old one cannot be used; a Placement goes only with its job or gang.

    Planned nodes that other gangs still have to leave are not slots yet: the plan may be made again. A slot without
    a pod may leave a node that a gang with more right to it has planned to take.
    """

    name = "no slot lost"

    def __init__(self, view: View, trace: Trace, stale_s: float, hold_s: float) -> None:
        super().__init__(view, stale_s)
        self._hold_s = hold_s
        self._denied: set[str] = set()
        trace.listeners.append(self._saw)
        self._podless: dict[str, float] = {}
        self._driven_out: set[str] = set()
        self._ended: dict[str, float] = {}
        self._kept_away: dict[tuple[str, int], tuple[float, PodFacts]] = {}
        self._only_planned: dict[str, set[int]] = {}
        self._takers: defaultdict[str, dict[str, float]] = defaultdict(dict)
        """Of each node, the gangs that planned to preempt others there, and until when."""

    def pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """Note since when a gang has no live pod, and which gangs have to make room for others."""
        pod = new or old
        if pod is None or not pod.gang:
            return
        if pod.disrupted:
            self._driven_out.add(pod.gang)
        if new is None and pod.without:
            self._kept_away[pod.gang, pod.slot] = self.view.now, pod
        if any(one.live for one in self.view.gangs[pod.gang].values()):
            self._podless.pop(pod.gang, None)
        else:
            self._podless.setdefault(pod.gang, self.view.now)

    def placement(self, old: PlacementFacts | None, new: PlacementFacts | None) -> None:
        """Compare two versions of a Placement."""
        if new is not None:
            if not self._has_its_slots(new):
                self.fail(f"{new.name} has slots {sorted(new.slots)} of {new.size}")
            alone = not new.name.startswith(OF_OTHERS)  # pods of others may share a node
            if alone and len({node for node, _ in new.slots.values()}) != new.size:
                self.fail(f"{new.name} has two slots on one node")
            if old is not None and new.attempt < old.attempt:
                self.fail(f"{new.name} went from revision {old.attempt} back to {new.attempt}")
        if old is not None and new is None and old.phase == "Preempting" and not self.view.hands_on:
            self._left(old)
        for version, until in ((old, self.view.now), (new, float("inf"))):
            if version is not None and version.preempting:
                self._takes(version, until)
        planned = self._only_planned.pop(old.uid, set()) if old is not None else set()
        if new is not None and new.preempting:
            self._only_planned[new.uid] = planned | _renamed_slots(old, new)
        if old is None or old.phase in GIVEN_UP:
            self._driven_out.discard(new.gang if new is not None and old is None else "")
            return
        if new is None:
            if old.slots.keys() - planned and not self.view.hands_on:
                self._gone(old)
            return
        for slot, (node, uid) in old.slots.items():
            if slot in new.slots and new.slots[slot][0] != node and slot not in planned:
                self._moved(old, slot, node, uid, new.slots[slot][0])

    def _has_its_slots(self, new: PlacementFacts) -> bool:
        """Returns whether it has one slot for each member. Pods of a larger attempt before may still hold others."""
        old_pods = {pod.slot for pod in self.view.gangs[new.gang].values() if pod.node and pod.slot >= new.size}
        return sorted(new.slots.keys() - old_pods) == list(range(new.size))

    def _left(self, old: PlacementFacts) -> None:
        """A preempted gang keeps its slots until all its bound pods have ended."""
        runs = [pod.name for pod in self.view.gangs[old.gang].values() if pod.node and not pod.ended]
        if runs and self.view.jobs.get(old.gang.partition("/")[2], "gone") not in ENDED:
            self.fail(
                f"the placement of {old.name}, which is being preempted, was deleted while {', '.join(runs)} runs"
            )

    def _gone(self, old: PlacementFacts) -> None:
        uid = old.gang.partition("/")[2]
        since = self._podless.get(old.gang, self.view.now)
        if old.gang in self._driven_out or not any(pod.node and pod.live for pod in self.view.gangs[old.gang].values()):
            return  # it makes room for others; or it waited for room without success, and no pod of it runs on
        if self.view.jobs.get(uid, "gone") in ENDED or self._ended.get(uid, -1e9) > self.view.now - self.stale_s:
            return
        if self.view.now - since < self._hold_s:
            self.fail(f"the placement of {old.name} went while its job is {self.view.jobs.get(uid)}")

    def second(self) -> None:
        """Remember when jobs were last ended: a leader may hear late that one was resumed."""
        for uid, phase in self.view.jobs.items():
            if phase in ENDED:
                self._ended[uid] = self.view.now

    def _saw(self, now: float, client: str, request: Request, code: int, body: bytes) -> None:
        """Record a node to which a policy denies bindings: it counts as not usable."""
        if code == 403 and request.path.endswith("/binding"):
            self._denied.add(decode(request.body)["target"]["name"])

    def _moved(self, old: PlacementFacts, slot: int, node: str, uid: str, to: str) -> None:
        if "." in old.name:
            return  # pods of others do not say which slot is theirs
        members = [pod for pod in self.view.gangs[old.gang].values() if pod.slot == slot]
        if node in self._denied or any(pod.node == to for pod in members):
            return
        if members and all(self._is_taken(node, pod) for pod in members):
            return  # it makes room for another gang
        at, gone = self._kept_away.get((old.gang, slot), (-1e9, None))
        if gone is not None and node in gone.without and self.view.now - at <= self.stale_s:
            return  # the pod that kept away from the node has only just gone
        serves = all(not self.view.refused_lately(node, pod, uid, self.stale_s) for pod in members)
        if serves:
            self.fail(f"slot {slot} of {old.name} was moved from {node} to {to}, though {node} serves")

    def _takes(self, plan: PlacementFacts, until: float) -> None:
        for node, _ in plan.slots.values():
            self._takers[node][plan.gang] = until

    def _is_taken(self, node: str, pod: PodFacts) -> bool:
        """Returns whether a gang with more right to the node planned lately to take the room of the pod's slot.

        A pod that runs keeps its slot, and so does one that has room beside that gang.
        """
        takers = (
            member
            for gang, until in self._takers[node].items()
            if gang != pod.gang and until >= self.view.now - self.stale_s
            for member in self.view.gangs[gang].values()
        )
        if pod.node and pod.live:
            return False
        mine = self.view.last_place(pod)
        return any(self.view.place(taker) < mine and not self._have_room(node, pod, taker) for taker in takers)

    def _have_room(self, name: str, pod: PodFacts, taker: PodFacts) -> bool:
        """Returns whether both fit on the node, beside pods there that do not make room for the taker."""
        node, place = self.view.node(name), self.view.place(taker)
        stay = [
            other
            for other in self.view.on_node[name].values()
            if not other.ended and other.gang not in (pod.gang, taker.gang) and self.view.last_place(other) <= place
        ]
        return node is not None and all(
            sum(one.requests.get(resource, 0) for one in (pod, taker, *stay)) <= capacity
            for resource, capacity in node.allocatable.items()
        )


def _renamed_slots(old: PlacementFacts | None, new: PlacementFacts) -> set[int]:
    """The slots for which the new version names other nodes."""
    return {slot for slot, placed in new.slots.items() if old is None or old.slots.get(slot) != placed}
