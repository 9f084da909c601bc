"""Invariant: a team's gang waits for borrowers of the team's nodes at most for the borrowers' grace."""

from __future__ import annotations

from fuzz.checks import GIVEN_UP, PatientChecker
from fuzz.replica import BIND_DEADLINE_S
from fuzz.view import Place, PodFacts

REACTION_S = 60.0
"""From the moment at which borrowers are all that is in the way: a plan (5 s at most), a write, kubelets (3 s to stop a
container, 3 s to start one), and slack of the scheduler for controllers that do nothing (30 s)."""


class NoOwnerWaitsForABorrower(PatientChecker):
    """The first gang in a team's line is bound within the borrowers' grace, once only they are on nodes it needs.

    Grace counts twice, for the last checkpoint and for the end of pods; a borrower that is being bound is stopped after
    that.
    """

    name = "no owner waits for a borrower"

    def second(self) -> None:
        """Look at each team's first gang that waits."""
        first: dict[tuple[str, str], tuple[Place, str, list[PodFacts]]] = {}
        for gang, members in self.view.gangs.items():
            pods = [pod for pod in members.values() if pod.live]
            if not gang or not pods or len(pods) != pods[0].size or any(pod.node for pod in pods):
                continue
            if pods[0].team and not pods[0].rank:
                line = (pods[0].team, pods[0].pool)
                first[line] = min(first.get(line, ((9, 0, 0, ""), "", [])), (self.view.place(pods[0]), gang, pods))
        waiting = {}
        for _, gang, pods in first.values():
            grace_s = self._fits_but_for_borrowers(gang, pods)
            if grace_s is not None:
                waiting[gang] = self._since.get(gang, self.view.now)
                self._late(gang, waiting[gang], grace_s)
        self._since = waiting

    def _late(self, gang: str, since: float, grace_s: float) -> None:
        waited_s = self.view.now - max(since, self.disturbed_until)
        if waited_s > 2 * grace_s + REACTION_S + BIND_DEADLINE_S + self.stale_s:
            self.fail(f"{gang} has waited for {waited_s:.0f} s for borrowers with a grace of {grace_s:.0f} s")

    def _fits_but_for_borrowers(self, gang: str, pods: list[PodFacts]) -> float | None:
        """The longest grace of the borrowers, if the gang would fit on the nodes without them; else None."""
        room, grace_s = 0, 0.0
        for name in self.view.nodes:
            node = self.view.node(name)
            if node is None or node.labels.get("muster.dev/team") != pods[0].team:
                continue
            if self.view.refused_lately(name, pods[0], node.uid, self.stale_s):
                continue
            here = [pod for pod in self.view.on_node[name].values() if not pod.ended]
            stay = [pod for pod in here if not pod.rank and pod.gang != gang]
            free = dict(node.allocatable)
            for pod in stay:
                for what, amount in pod.requests.items():
                    free[what] = free.get(what, 0) - amount
            held = self._held_by_others(name, gang)
            if held or any(free.get(what, 0) < amount for what, amount in pods[0].requests.items()):
                continue
            room += 1
            grace_s = max([grace_s, *(pod.grace_s for pod in here if pod.rank == 1)])
        return grace_s if room >= pods[0].size else None

    def _held_by_others(self, name: str, gang: str) -> bool:
        """Returns whether a slot is kept there for a gang that borrows nothing."""
        return any(
            placement.gang != gang
            and placement.phase not in GIVEN_UP
            and any(node == name for node, _ in placement.slots.values())
            and not any(pod.rank for pod in self.view.gangs[placement.gang].values())
            for placement in self.view.placements.values()
        )
