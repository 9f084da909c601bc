"""Invariants: a later gang does not pass an earlier one of its kind, and nothing is written when idle."""

from __future__ import annotations

from fuzz.checks import Checker, Violated
from fuzz.room import Room
from fuzz.view import Place, PlacementFacts, PodFacts, View
from muster.embedded.apiserver.request import Request
from muster.embedded.objects import decode, section
from muster.sim.virtual.network import Trace

READS = ("GET",)


class NoGangPassedOver(Checker):
    """No gang gets nodes while one that comes first, could use them and could run, waits.

    Both may be placed by one plan whose writes arrive in any order: the earlier one gets `grace_s` to follow.

    Args:
        view: what the API server holds.
        stale_s: as for all.
        grace_s: how long writes of one plan may take.
        disturbed_until: what began before is forgotten: the writer may have been killed between two writes.
    """

    name = "no gang passed over"

    def __init__(self, view: View, stale_s: float, grace_s: float) -> None:
        super().__init__(view, stale_s)
        self.disturbed_until = 0.0
        self._grace_s = grace_s
        self._suspected: list[tuple[float, str, str]] = []
        self._ready_since: dict[str, float] = {}
        self._gangs_placed: set[str] = set()

    def pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """Note which gangs wait, complete and unplaced."""
        pod = new or old
        if pod is None or not pod.gang:
            return
        self._note(pod.gang)

    def placement(self, old: PlacementFacts | None, new: PlacementFacts | None) -> None:
        """Look at a gang that was just placed."""
        placement = new or old
        assert placement is not None
        if new is None:
            self._gangs_placed.discard(placement.gang)
        else:
            self._gangs_placed.add(new.gang)
        self._note(placement.gang)
        if old is None and new is not None:
            self._placed(new)

    def _note(self, gang: str) -> None:
        pods = list(self.view.gangs[gang].values())
        waiting = [pod for pod in pods if pod.live and not pod.node]
        if waiting and len(waiting) == len(pods) == waiting[0].size and gang not in self._gangs_placed:
            self._ready_since.setdefault(gang, self.view.now)
        else:
            self._ready_since.pop(gang, None)

    def _placed(self, placement: PlacementFacts) -> None:
        gang = placement.gang
        mine = [pod for pod in self.view.gangs[gang].values() if pod.live]
        if not mine or gang in self.view.limited or placement.backfilled_for:
            return  # one that ends in time, or gives its nodes back, may run in front of one that waits
        order = self.view.place(mine[0])
        for other, since in self._ready_since.items():
            theirs = list(self.view.gangs[other].values())
            if since > self.view.now - self.stale_s or not self._could_use(theirs[0], placement):
                continue
            place = self._place_of(theirs)
            if place < order and self._could_run(theirs):
                self._suspected.append((self.view.now, gang, other))

    def _place_of(self, pods: list[PodFacts]) -> Place:
        """Returns the latest place that the waiting gang may have: that of its job, else that of its newest pod."""
        if pods[0].gang.partition("/")[2] in self.view.jobs:
            return self.view.last_place(pods[0])
        return (*self.view.place(pods[0])[:3], max(pod.created for pod in pods))

    def second(self) -> None:
        """See whether gangs that were passed have followed."""
        left = []
        for at, gang, other in self._suspected:
            since = self._ready_since.get(other)
            if since is None or since > at or at < self.disturbed_until:
                continue
            if self.view.now - at > self._grace_s:
                self.fail(f"{gang} was placed at {at:.3f}; {other}, before it, still waits")
            left.append((at, gang, other))
        self._suspected = left

    def _could_use(self, pod: PodFacts, placement: PlacementFacts) -> bool:
        """Returns whether the pod fits one of the placement's nodes now, and was always allowed there.

        If it fits none of them now, the gang may be expected to get other nodes first.
        """
        room = Room(self.view, without={placement.gang})
        for name, uid in placement.slots.values():
            if room.holds(name, pod) and not self.view.refused_lately(name, pod, uid, self.stale_s):
                return True
        return False

    def _could_run(self, pods: list[PodFacts]) -> bool:
        nodes = [
            name
            for name in self.view.nodes
            if (node := self.view.node(name)) is not None
            and node.fits(pods[0])
            and not any(self.view.refused_lately(name, pod, node.uid, self.stale_s) for pod in pods)
        ]
        return len(nodes) >= pods[0].size


def _uid(request: Request) -> str:
    """The UID a binding, an eviction or a deletion is for."""
    body = decode(request.body) if request.body else {}
    if request.path.endswith("/eviction"):
        body = section(body, "deleteOptions")
    where = "metadata" if request.path.endswith("/binding") else "preconditions"
    return str(section(body, where).get("uid", ""))


class NoWriteWithoutPrecondition:
    """Controllers bind and delete pods by UID only: one of the same name may be another pod."""

    name = "no pod bound or deleted but by UID"

    def __init__(self, view: View, trace: Trace) -> None:
        self._view = view
        trace.listeners.append(self._saw)

    def _saw(self, now: float, client: str, request: Request, code: int, body: bytes) -> None:
        if not client.startswith("controller-") or "/pods/" not in request.path:
            return
        if request.method in ("POST", "DELETE") and not _uid(request):
            said = f"{client} sent {request.method} {request.path} without a UID (at {now:.3f})"
            self._view.fail(Violated(f"{self.name}: {said}"))


class NoWritesAtRest:
    """While nothing happens, controllers write nothing but Lease renewals. Watches the trace while `resting`."""

    name = "no writes at steady state"

    def __init__(self, view: View, trace: Trace) -> None:
        self.resting = False
        self._view = view
        trace.listeners.append(self._saw)

    def _saw(self, now: float, client: str, request: Request, code: int, body: bytes) -> None:
        if not self.resting or not client.startswith("controller-") or request.method in READS:
            return
        if not request.path.startswith("/apis/coordination.k8s.io/"):
            self._view.fail(Violated(f"{self.name}: {client} sent {request.method} {request.path} (at {now:.3f})"))
