"""Invariants on where and when ranks run, checked whenever a supervisor changes its state."""

from __future__ import annotations

from fuzz.checks import PatientChecker
from fuzz.ranks import Ranks
from fuzz.view import PodFacts, View
from muster.embedded.objects import Obj
from muster.sim.supervisor import SimSupervisor


class NoRankInAPartBoundGang(PatientChecker):
    """Ranks of an attempt start only once every slot of their gang has a bound pod that runs, and end when it has not.

    Whole is a gang whose slots all have a bound, running pod that is not about to go. What the controller cannot know
    yet is forgiven for `stale_s`; that the gang was whole in this very attempt is asked in any case.

    Args:
        view: what the API server holds.
        stale_s: as for all.
        ranks: of all jobs.
        bound_s: in undisturbed time, ranks of a gang that is whole no more have been stopped by then.
        disturbed_until: time counts from then on.
    """

    name = "no rank runs in a part-bound gang"

    def __init__(self, view: View, stale_s: float, ranks: Ranks, bound_s: float, disturbed_until: float) -> None:
        super().__init__(view, stale_s, disturbed_until)
        self._ranks, self._bound_s = ranks, bound_s
        self._gang_of: dict[str, str] = {}
        self._whole: dict[str, bool] = {}
        self._began: dict[tuple[str, int], float] = {}
        self._directed: set[tuple[str, int]] = set()
        self._runs: dict[str, int] = {}
        self._saved: dict[str, int] = {}
        self._lost = set[str]()  # jobs that have a quarantined checkpoint: an acknowledged step may be lost
        ranks.listeners.append(self._look)

    def pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """See whether the gang is whole."""
        pod = new or old
        if pod is None or not pod.gang:
            return
        self._gang_of[pod.uid] = pod.gang
        here = {one.slot for one in self.view.gangs[pod.gang].values() if one.live and one.node and one.running}
        whole = len(here) == pod.size
        if whole != self._whole.get(pod.gang, False):
            self._whole[pod.gang], self._since[pod.gang] = whole, self.view.now

    def job(self, name: str, old: Obj, new: Obj) -> None:
        """Note when attempts begin, and which are said to run."""
        attempt = int(new.get("attempt", 0))
        self._began.setdefault((name, attempt), self.view.now)
        if new.get("quarantinedCheckpoints"):
            self._lost.add(name)
        if new.get("phase") == "Running":
            self._directed.add((name, attempt))

    def second(self) -> None:
        """See whether ranks run on in a gang that is whole no more."""
        for one in self._ranks.supervisors.values():
            gang = self._gang_of[one.identity.pod_uid]
            if one.state != "running" or self._whole.get(gang, False):
                continue
            undisturbed_s = self.view.now - max(self._since.get(gang, 0.0), self.disturbed_until)
            if undisturbed_s > self._bound_s:
                self.fail(f"{one.identity.pod} runs attempt {one.attempt}, but its gang is not whole")

    def _look(self) -> None:
        for one in self._ranks.supervisors.values():
            runs = one.attempt if one.state == "running" else 0
            if runs and self._runs.get(one.identity.pod_uid) != runs:
                self._started(one)
            self._runs[one.identity.pod_uid] = runs
            job = one.identity.job
            self._saved[job] = max(self._saved.get(job, 0), one.saved)

    def _started(self, one: SimSupervisor) -> None:
        name, gang = one.identity.job.partition("/")[2], self._gang_of[one.identity.pod_uid]
        what = f"{one.identity.pod} starts ranks of attempt {one.attempt}"
        whole = self._whole.get(gang, False) or self._is_there(gang)
        since = self._since.get(gang, 0.0)
        if (name, one.attempt) not in self._directed:
            self.fail(f"{what}, which was not directed to run")
        elif not whole and since < self._began[name, one.attempt]:
            self.fail(f"{what}, in which its gang was never whole")
        elif not whole and self.view.now - since > self.stale_s:
            self.fail(f"{what}, {self.view.now - since:.1f} s after its gang was whole")
        elif one.node_rank == 0 and self._keeps(name) and one.step < self._saved.get(one.identity.job, 0):
            saved = self._saved[one.identity.job]
            self.fail(f"{what} from step {one.step}, though a checkpoint of step {saved} was acknowledged")
        else:
            self._not_twice(one, gang, what)

    def _keeps(self, name: str) -> bool:
        return name not in self.view.edited and name not in self._lost

    def _is_there(self, gang: str) -> bool:
        """Whether a supervisor runs in each slot, though a kubelet that was cut off is yet to say that its pod runs."""
        live = [one for one in self.view.gangs[gang].values() if one.live and one.node]
        here = {one.slot for one in live if one.running or one.uid in self._ranks.supervisors}
        return bool(live) and len(here) == live[0].size

    def _not_twice(self, one: SimSupervisor, gang: str, what: str) -> None:
        """A pod that is to go, or a node that cannot be reached, may be behind; a member in contact may not."""
        for other in self._ranks.of(one.identity.job):
            pod = self.view.pods.get(other.identity.pod_uid)
            alive = pod is not None and pod.live and pod.gang == gang
            if alive and other.state in ("running", "stopping") and other.attempt < one.attempt:
                self.fail(f"{what}, while attempt {other.attempt} still runs in {other.identity.pod}")
