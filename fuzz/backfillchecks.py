"""Invariants on backfill: which gangs use nodes that are reserved for others, and how they give them back."""

from __future__ import annotations

from collections import Counter

from fuzz.backfill import Backfill
from fuzz.checks import Checker, PatientChecker, just_bound
from fuzz.jobchecks import restarts
from fuzz.ranks import Ranks
from fuzz.room import bundle_of
from fuzz.view import PlacementFacts, PodFacts, View
from fuzz.workload import JobSpec
from muster.embedded.objects import Obj, section

BACKFILLED = "Backfilled"
FUTILE_MAX = 5
"""A gang may be asked so often for one gang that does not start: its nodes break, or it is changed."""
SECOND_S = 1.0
"""Conditions have times in whole seconds: a checkpoint of the second of the request counts as its answer."""
SAVES_S = 10.0
"""With this grace, a program that answers saves its last step before it is stopped."""


def was_asked(old: PlacementFacts | None, new: PlacementFacts | None) -> bool:
    """Returns whether a change of a Placement asks its gang to leave backfilled nodes."""
    if new is None or (new.phase, new.reason) != ("Preempting", BACKFILLED):
        return False
    return old is None or old.phase != new.phase


def takers_of(view: View, placement: PlacementFacts) -> list[str]:
    """Returns the gangs that have planned to preempt others on the nodes of the placement."""
    nodes = {node for node, _ in placement.slots.values()}
    return sorted(
        bundle_of(other)
        for other in view.placements.values()
        if other.preempting and not nodes.isdisjoint(node for node, _ in other.slots.values())
    )


class BackfilledOnlyBehind(Checker):
    """A gang is backfilled only for a gang before it in the queue, and is asked to leave only for such a gang.

    The gang for which it is asked has written before which nodes it gets.
    """

    name = "no gang is backfilled, or gives way, for a later one or for none"

    def __init__(self, view: View, stale_s: float) -> None:
        super().__init__(view, stale_s)
        self._planned: dict[str, float] = {}

    def placement(self, old: PlacementFacts | None, new: PlacementFacts | None) -> None:
        """Look at a gang that was just backfilled, or asked to leave."""
        if old is not None and old.preempting:
            self._planned.update(dict.fromkeys((node for node, _ in old.slots.values()), self.view.now))
        if new is None:
            return
        if old is None and new.backfilled_for:
            first = self._pod_of(new.backfilled_for)
            if first is not None and self._is_behind(first, new):
                self.fail(f"{new.gang} was backfilled for {new.backfilled_for}, which comes after it")
        if was_asked(old, new):
            self._asked(new)

    def _asked(self, placement: PlacementFacts) -> None:
        if not placement.backfilled_for:
            self.fail(f"{placement.gang} was asked to leave as if it were backfilled")
        takers = takers_of(self.view, placement)
        pods = [pod for pod in map(self._pod_of, takers) if pod is not None]
        if pods and all(self._is_behind(pod, placement) for pod in pods):
            self.fail(f"{placement.gang} was asked to leave, although {', '.join(takers)} comes after it")
        lately = max((self._planned.get(node, -1e9) for node, _ in placement.slots.values()), default=-1e9)
        if not takers and lately < self.view.now - self.stale_s:
            self.fail(f"{placement.gang} was asked to leave, but no gang has planned to use its nodes")

    def _pod_of(self, gang: str) -> PodFacts | None:
        return next(iter(self.view.gangs.get(gang, {}).values()), None)

    def _is_behind(self, pod: PodFacts, placement: PlacementFacts) -> bool:
        """Returns whether the pod's gang certainly has a later place in the queue than the placement's."""
        mine = self._pod_of(bundle_of(placement))
        return mine is not None and self.view.last_place(mine) < self.view.place(pod)


class BackfilledOnlyIfAllowed(Checker):
    """A gang is backfilled only if the policy allows it and the gang loses little when it gives its nodes back.

    It declares that, or has reported a checkpoint. A job that declares nothing may also be expected to end in time.
    That needs jobs that have ended before, and the job must not have been asked to leave yet.
    """

    name = "no gang is backfilled that may not be"

    def __init__(self, view: View, stale_s: float, settings: Backfill) -> None:
        super().__init__(view, stale_s)
        self._settings = settings

    def placement(self, old: PlacementFacts | None, new: PlacementFacts | None) -> None:
        """Look at a gang that was just backfilled."""
        if old is None and new is not None and new.backfilled_for:
            why = self._why_not(new)
            if why:
                self.fail(f"{new.gang} was backfilled for {new.backfilled_for}, but {why}")

    def pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """Look at a single pod that was just backfilled."""
        if new is not None and new.backfilled_for and just_bound(old, new):
            if self._settings.policy != "preemptible":
                self.fail(f"{new.name} was backfilled with the policy {self._settings.policy}")
            elif not new.restartable:
                self.fail(f"{new.name} was backfilled, but it is not restartable")

    def _why_not(self, placement: PlacementFacts) -> str:
        if self._settings.policy != "preemptible":
            return f"the policy is {self._settings.policy}"
        spec = self.view.specs.get(placement.gang)
        if spec is None:
            members = self.view.gangs[bundle_of(placement)].values()
            return "" if all(pod.restartable for pod in members) else "its pods are not restartable"
        declared = spec.get("restartable")
        if declared is None and placement.gang not in self.view.saved:
            return self._why_not_expected(placement.gang)
        return "it says that it is not restartable" if declared is False else ""

    def _why_not_expected(self, gang: str) -> str:
        asked, since = self.view.asked.get(gang, (0, self.view.now))
        if asked and since < self.view.now - self.stale_s:
            return "it has saved nothing and was asked to leave before"
        if not any(phase in ("Succeeded", "Failed") for phase in self.view.jobs.values()):
            return "it has saved nothing, and no job has ended from which its end could be expected"
        return ""


class NoTradingPlaces(Checker):
    """A gang is not asked again and again for one that never starts, and each request is counted once."""

    name = "no two gangs trade places for ever"

    def __init__(self, view: View, stale_s: float) -> None:
        super().__init__(view, stale_s)
        self._futile: Counter[tuple[str, str]] = Counter()
        self._asks: Counter[str] = Counter()

    def placement(self, old: PlacementFacts | None, new: PlacementFacts | None) -> None:
        """Count requests."""
        if new is None or not was_asked(old, new):
            return
        self._asks[new.gang.partition("/")[0]] += 1
        for taker in takers_of(self.view, new):
            self._futile[new.gang, taker] += 1
            if self._futile[new.gang, taker] > FUTILE_MAX:
                self.fail(f"{new.gang} was asked {self._futile[new.gang, taker]} times for {taker}, which never starts")

    def pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """Forget requests for a gang that has all its nodes."""
        if new is None or not just_bound(old, new):
            return
        members = self.view.gangs[new.bundle].values()
        if all(pod.node for pod in members if pod.live):
            for pair in [pair for pair in self._futile if pair[1] == new.bundle]:
                del self._futile[pair]

    def job(self, name: str, old: Obj, new: Obj) -> None:
        """Compare the count in the status."""
        asked = int(section(new, "backfill").get("asked", 0))
        if asked > self._asks[name] and name not in self.view.edited:
            self.fail(f"{name} counts {asked} requests to leave, but was asked {self._asks[name]} times")


class NothingLostWhenAsked(PatientChecker):
    """An attempt that was asked to leave is charged to no budget. If its program answers in time, no step is lost.

    Args:
        view: what the API server holds.
        stale_s: as for all.
        ranks: what programs really did.
        jobs: by name.
        disturbed_until: before that, a program may not hear the request, or the controller not its answer.
    """

    name = "no job loses or pays anything when it is asked to leave"

    def __init__(
        self, view: View, stale_s: float, ranks: Ranks, jobs: dict[str, JobSpec], disturbed_until: float
    ) -> None:
        super().__init__(view, stale_s, disturbed_until)
        self._ranks, self._jobs = ranks, jobs
        self._could_answer: set[tuple[str, int]] = set()

    def job(self, name: str, old: Obj, new: Obj) -> None:
        """Compare two versions of a status."""
        if name in self.view.edited:
            return
        attempt = int(old.get("attempt", 0))
        request = section(section(old, "backfill"), "request")
        asked = section(section(new, "backfill"), "request")
        if asked and asked.get("attempt") == new.get("attempt") and request.get("attempt") != asked["attempt"]:
            self._asked(name, new)
        if int(new.get("attempt", 0)) > attempt and request.get("attempt") == attempt and old["phase"] == "Stopping":
            self._left(name, attempt, old, new)

    def _asked(self, name: str, status: Obj) -> None:
        """Note whether the program runs, can answer, and has done a step that would be lost."""
        spec, attempt = self._jobs[name], int(status["attempt"])
        began = int(section(section(status, "run"), "checkpoint").get("step", 0))
        ranks = self._ranks.of(spec.key)
        runs = ranks and all(one.state == "running" and one.attempt == attempt for one in ranks)
        done = any(one.node_rank == 0 and one.step > began for one in ranks)
        if (
            spec.answers
            and spec.grace_s >= SAVES_S
            and runs
            and done
            and self.view.now - self.stale_s > self.disturbed_until
        ):
            self._could_answer.add((name, attempt))

    def _left(self, name: str, attempt: int, old: Obj, new: Obj) -> None:
        charged = restarts(new) - restarts(old)
        if charged:
            self.fail(f"{name} is charged {charged} times for attempt {attempt}, which was asked to leave")
        lost_s = _lost_s(new) - _lost_s(old)
        undisturbed = self.view.now - self.stale_s > self.disturbed_until
        if lost_s >= SECOND_S and (name, attempt) in self._could_answer and undisturbed:
            self.fail(f"{name} lost {lost_s:.1f} s of attempt {attempt}, whose program answers")


def _lost_s(status: Obj) -> float:
    return float(section(status, "backfill").get("secondsLost", 0.0))
