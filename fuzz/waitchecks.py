"""Invariants on how long gangs wait although their nodes are free, or only backfilled gangs use them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fuzz.backfill import Backfill
from fuzz.checks import PatientChecker
from fuzz.room import Room, bundle_of
from fuzz.shapes import OF_OTHERS
from fuzz.view import PlacementFacts, PodFacts, View
from fuzz.weather import LATEST_S
from muster.embedded.apiserver.request import Request
from muster.embedded.objects import decode
from muster.sim.virtual.network import Trace

REACTS_S = 5.0
"""The scheduler writes a plan this long after its reason at the latest, if nothing disturbs it."""
LEAVE_SLACK_S = 30.0
BIND_S = 30.0


class Waiting(msgspec.Struct, frozen=True):
    """A gang, or a single pod, that has all its pods and no node."""

    key: str
    pods: tuple[PodFacts, ...]

    @property
    def pod(self) -> PodFacts:
        """One of its pods, which are alike."""
        return self.pods[0]


class NodeWaits(PatientChecker):
    """Base of checkers that look each second at gangs that wait for nodes.

    Args:
        view: what the API server holds.
        trace: of all requests.
        stale_s: as for all.
        settings: of the scheduler.
        disturbed_until: time counts from then on.
    """

    def __init__(self, view: View, trace: Trace, stale_s: float, settings: Backfill, disturbed_until: float) -> None:
        super().__init__(view, stale_s, disturbed_until)
        self.settings = settings
        self._denied: set[str] = set()
        trace.listeners.append(self._saw)

    def _saw(self, now: float, client: str, request: Request, code: int, body: bytes) -> None:
        """A node that policy denies to pods serves no more."""
        if code == 403 and request.path.endswith("/binding"):
            self._denied.add(decode(request.body)["target"]["name"])

    def waiting(self) -> list[Waiting]:
        """Returns all that wait for nodes, complete and without a Placement, in queue order."""
        placed = {bundle_of(placement) for placement in self.view.placements.values()}
        found = [Waiting(pod.uid, (pod,)) for pod in self.view.gangs[""].values() if pod.live and not pod.node]
        for gang, members in self.view.gangs.items():
            if not gang or gang in placed or any(pod.node or not pod.live for pod in members.values()):
                continue
            pods = tuple(members.values())
            if pods and len({pod.slot for pod in pods}) == pods[0].size == len(pods):
                found.append(Waiting(gang, pods))
        return sorted(found, key=lambda each: self.view.place(each.pod))

    def serving(self, pod: PodFacts, room: Room) -> Iterator[str]:
        """Yields the nodes that take the pod, and have done so for some time."""
        for name in self.view.nodes:
            node = self.view.node(name)
            if node is None or name in self._denied or not room.holds(name, pod):
                continue
            if self.view.usable(name, pod, node.uid, 0.0):
                continue
            if not self.view.refused_lately(name, pod, node.uid, self.stale_s):
                yield name

    def fits(self, gang: Waiting, room: Room) -> bool:
        """Returns whether each pod of the gang gets a node of its own."""
        nodes = self.serving(gang.pod, room)
        return all(next(nodes, None) is not None for _ in gang.pods)

    def last(self, key: str, limit_s: float) -> float | None:
        """Notes that something lasts; returns for how long it has if that is more than `limit_s` of quiet time."""
        since = max(self._since.setdefault(key, self.view.now), self.disturbed_until)
        return self.view.now - since if self.view.now - since > limit_s else None


class NoReservedGangDelayed(NodeWaits):
    """A gang whose nodes are free but for backfilled gangs has these asked to leave, and then starts.

    - From the moment when all nodes that it needs are free or only held by gangs that were backfilled behind it, these
      are asked within `delay_s`. No gang before it in the queue may wait for the same nodes.
    - From that moment on, no more gangs are backfilled for it.
    - From the moment when it plans to take their nodes, it is bound within the sum of three parts. These are three
      times the largest grace, twice the scheduler's slack for gangs that do not react, and the deadline of binds.
    """

    name = "no reserved gang is delayed beyond the bound"

    def __init__(
        self, view: View, trace: Trace, stale_s: float, settings: Backfill, disturbed_until: float, grace_s: float
    ) -> None:
        super().__init__(view, trace, stale_s, settings, disturbed_until)
        self._leaves_s = 3 * grace_s + 2 * LEAVE_SLACK_S + BIND_S + stale_s + LATEST_S + REACTS_S
        self._asks_s = settings.delay_s + stale_s + LATEST_S + REACTS_S
        self._taking: dict[str, tuple[str, float]] = {}
        self.due: set[str] = set()
        """Gangs that could start now but for backfilled gangs."""

    def placement(self, old: PlacementFacts | None, new: PlacementFacts | None) -> None:
        """Note since when a gang waits for others to leave, and that no gang is backfilled behind one that is due."""
        if old is None and new is not None and new.backfilled_for in self.due:
            since = max(self._since[new.backfilled_for], self.disturbed_until)
            if self.view.now - since > self.stale_s + 1.0:
                self.fail(f"{new.gang} was backfilled for {new.backfilled_for}, which waits only for such gangs")
        if new is not None and new.preempting:
            bundle = bundle_of(new)
            if self._taking.get(bundle, ("", 0.0))[0] != new.uid:
                self._taking[bundle] = new.uid, self.view.now
        elif old is not None and (new is None or not new.preempting):
            self._taking.pop(bundle_of(old), None)

    def second(self) -> None:
        """Look at all that wait."""
        self._look_at_taking()
        freed = [one for one in self.view.placements.values() if self._gives_back(one)]
        singles = [pod for pod in self.view.gangs[""].values() if pod.backfilled_for and pod.node and pod.live]
        self.due = set()
        if freed or singles:
            self._look(freed, singles)
        for key in self._since.keys() - self.due:
            del self._since[key]

    def _look(self, freed: list[PlacementFacts], singles: list[PodFacts]) -> None:
        empty = Room(self.view)
        before: list[PodFacts] = []
        for gang in self.waiting():
            if self._is_behind(gang, before) or gang.key.startswith(OF_OTHERS) or gang.pod.apart:
                before.append(gang.pod)
                continue
            before.append(gang.pod)
            place = self.view.last_place(gang.pod)
            gangs = {bundle_of(one) for one in freed if self._comes_after(bundle_of(one), place)}
            pods = {pod.uid for pod in singles if self.view.place(pod) > place}
            if not self.fits(gang, empty) and self.fits(gang, Room(self.view, gangs, pods)):
                self.due.add(gang.key)
                lasts_s = self.last(gang.key, self._asks_s)
                if lasts_s is not None:
                    names = ", ".join(sorted(gangs | pods))
                    self.fail(f"{gang.key} could start but for backfilled gangs for {lasts_s:.1f} s: {names}")

    def _look_at_taking(self) -> None:
        for gang, (_, since) in self._taking.items():
            lasts_s = self.view.now - max(since, self.disturbed_until)
            if lasts_s > self._leaves_s:
                self.fail(f"{gang} has waited for {lasts_s:.1f} s for others to leave its nodes")

    def _gives_back(self, placement: PlacementFacts) -> bool:
        """Returns whether a backfilled gang is whole, so that it can be asked to leave."""
        if not placement.backfilled_for or placement.phase != "Bound" or placement.preempting:
            return False
        pods = self.view.gangs[bundle_of(placement)].values()
        return len(pods) == placement.size and all(pod.node and pod.live for pod in pods)

    def _comes_after(self, bundle: str, place: tuple[int, int, int, str]) -> bool:
        return all(self.view.place(pod) > place for pod in self.view.gangs[bundle].values())

    def _is_behind(self, gang: Waiting, before: list[PodFacts]) -> bool:
        """Returns whether a gang that waits before it, or repairs its slots, could use a node that it could use."""
        repairing = [
            pod
            for one in self.view.placements.values()
            for pod in self.view.gangs[bundle_of(one)].values()
            if pod.live and not pod.node
        ]
        others = [pod for pod in (*before, *repairing) if pod.bundle != gang.key]
        if not others:
            return False
        for name in self.view.nodes:
            node = self.view.node(name)
            if node is None or not node.fits(gang.pod) or self.view.usable(name, gang.pod, node.uid, 0.0):
                continue
            if any(node.fits(pod) and not self.view.usable(name, pod, node.uid, self.stale_s) for pod in others):
                return True
        return False


class NothingIdleWhileRestartableWaits(NodeWaits):
    """With the policy `preemptible`, no restartable gang waits for long although it fits on nodes that are free.

    While a gang could start but for backfilled gangs, no other starts on its nodes: that time does not count.
    """

    name = "no node is idle while a restartable gang waits"

    def __init__(
        self,
        view: View,
        trace: Trace,
        stale_s: float,
        settings: Backfill,
        disturbed_until: float,
        delays: NoReservedGangDelayed,
    ) -> None:
        super().__init__(view, trace, stale_s, settings, disturbed_until)
        self._delays = delays

    def second(self) -> None:
        """Look at all that wait."""
        lasts: set[str] = set()
        if self.settings.policy == "preemptible" and not self._delays.due and self.view.now > self.disturbed_until:
            room: Room | None = None
            for gang in self.waiting():
                if not self._restartable(gang) or gang.pod.apart or gang.key.startswith(OF_OTHERS):
                    continue
                room = room or Room(self.view)
                if self.fits(gang, room):
                    lasts.add(gang.key)
                    lasts_s = self.last(gang.key, self.stale_s + LATEST_S + REACTS_S)
                    if lasts_s is not None:
                        self.fail(f"{gang.key} is restartable and fits on free nodes, and waits for {lasts_s:.1f} s")
        for key in self._since.keys() - lasts:
            del self._since[key]

    def _restartable(self, gang: Waiting) -> bool:
        spec = self.view.specs.get(gang.key)
        if spec is None:
            return gang.pod.restartable
        declared = spec.get("restartable")
        return gang.key in self.view.saved if declared is None else bool(declared)
