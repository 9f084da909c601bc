"""What must never be while gangs of others are evicted, whatever budgets, owners and leaders do meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.plan import EvictMember, TellToLeave
from muster.scheduler.preemption.budget_needs import NO_BUDGET_NEEDS, BudgetNeeds
from tests.unit.scheduler.foreign import Foreign

JOBS = ("red", "blue", "grey")


class Evictions(RuleBasedStateMachine):
    """Jobs of others and single pods of low priority fill the nodes; others of high priority come and go."""

    @initialize(sizes=st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(0, 1)))
    def fill(self, sizes: tuple[int, int, int]) -> None:
        self.world = Foreign()
        self.world.add_nodes(*(f"n{number}" for number in range(sum(sizes) + 1)))
        self.made = 0
        self.epoch: object = None
        self.sizes = dict(zip(JOBS, sizes, strict=True))
        for name, size in self.sizes.items():
            self.world.set_object("job", name, {"completionMode": "Indexed", "completions": size, "parallelism": size})
            self.remake(name)
        self.world.add_pod("single", {"priority": 0}, labels={"team": "blue"})
        self.plan()

    @rule(name=st.sampled_from(JOBS))
    def remake(self, name: str) -> None:
        """The Job controller makes what is missing."""
        there = {pod.name.split("-")[1] for pod in self.world.pods.values() if pod.name.startswith(f"{name}-")}
        for index in range(self.sizes[name]):
            if str(index) not in there:
                self.made += 1
                labels = {"batch.kubernetes.io/job-completion-index": str(index), "team": name}
                owners = [self.world.owner("job", name)]
                self.world.add_pod(f"{name}-{index}-{self.made}", {"priority": 0}, labels=labels, owners=owners)

    @rule(size=st.integers(0, 4), allowed=st.dictionaries(st.sampled_from(JOBS), st.integers(0, 4)))
    def come(self, size: int, allowed: dict[str, int]) -> None:
        """A gang of so many, or a single pod, of high priority, in place of what there was."""
        self.end()
        for name in JOBS:
            self.remake(name)
        self.plan(3)
        for team, count in allowed.items():
            self.budget(team, count)
        self.made += 1
        if size:
            self.world.set_job(f"high{self.made}", JobFacts())
            self.world.add_gang(f"high{self.made}", size, priority=10)
        else:
            self.world.add_pod(f"high{self.made}", {"priority": 10})
        self.plan(3)

    @rule()
    def end(self) -> None:
        """What is of high priority ends."""
        for pod in [pod for pod in self.world.pods.values() if pod.name.startswith("high")]:
            self.world.set_job(pod.metadata.labels.get("muster.dev/gang", ""), JobFacts(ended="Succeeded"))
            self.world.remove_pod(pod.name)

    @rule(team=st.sampled_from(JOBS), allowed=st.integers(0, 3), name=st.sampled_from(["", "red"]))
    def budget(self, team: str, allowed: int, name: str = "") -> None:
        """A budget for the team's pods, which may be one that selected another team's before."""
        self.world.set_budget(name or team, {"team": team}, allowed)

    @rule(pod=st.integers(0, 8), team=st.sampled_from(JOBS), ready=st.booleans())
    def change(self, pod: int, team: str, ready: bool) -> None:
        """A pod of low priority belongs to another team's budget, or is not ready any more."""
        names = sorted(pod.name for pod in self.world.pods.values() if not pod.name.startswith("high"))
        if pod < len(names):
            if ready:
                labels = self.world.find(names[pod]).metadata.labels
                self.world.relabel(names[pod], {**labels, "team": team})
            else:
                self.world.set_unready(names[pod])

    @rule(pods=st.sets(st.integers(0, 8), max_size=3), linger=st.booleans())
    def refuse(self, pods: set[int], linger: bool) -> None:
        """Evictions of some pods are refused from now on, of others no more; or they take their time to end."""
        names = sorted(pod.name for pod in self.world.pods.values() if not pod.name.startswith("high"))
        chosen = {name for at, name in enumerate(names) if at in pods}
        if linger:
            self.world.lingering = chosen
        else:
            self.world.refused = dict.fromkeys(chosen, "no")

    @rule()
    def kubelets_end_pods(self) -> None:
        for pod in [pod for pod in self.world.pods.values() if pod.terminating]:
            self.world.remove_pod(pod.name)

    @rule(seconds=st.sampled_from([0.0, 1.0, 15.0, 70.0, 200.0]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def another_leads(self) -> None:
        self.world.forget_all()

    @rule(plans=st.integers(1, 6))
    def plan(self, plans: int = 6) -> None:
        for _ in range(plans):
            for action in self.world.decide().actions:
                if isinstance(action, TellToLeave):
                    self.may_go(action.gang)
                elif isinstance(action, EvictMember):
                    gang = self.world.state.gangs[action.gang]
                    assert gang.single or self.world.placements[f"default/{gang.name}"].status.phase == "Preempting"
                self.world.carry_out(action)

    def may_go(self, key: str) -> None:
        """No gang is asked to leave that a budget keeps in part."""
        gang: Any = self.world.state.gangs[key]
        if gang.job is not None:
            return
        teams = [
            self.world.pods[uid].metadata.labels["team"] for uid, pod in gang.pods.items() if pod.node and pod.live
        ]
        for name, budget in self.world.budgets.items():
            selector = budget.spec.selector
            assert selector is not None
            assert teams.count(selector.match_labels["team"]) <= budget.status.disruptions_allowed, name

    @invariant()
    def no_node_has_two_pods(self) -> None:
        """A node is bound again only after the pods that leave it are gone."""
        nodes = [pod.spec.node_name for pod in self.world.pods.values() if pod.spec.node_name]
        assert len(nodes) == len(set(nodes)), sorted(nodes)

    @invariant()
    def never_another_plan_without_memo(self) -> None:
        self.world.never_another_plan_without_memo()

    @invariant()
    def what_is_known_of_budgets_is_never_out_of_date(self) -> None:
        """Asked of each gang after each step, the memo answers as if all pods were matched again."""
        snapshot = self.world.state.snapshot(self.world.now)
        if self.epoch is not snapshot.epoch:
            self.epoch, self.known = snapshot.epoch, NO_BUDGET_NEEDS
        carried, fresh = (BudgetNeeds(snapshot.budgets, known) for known in (self.known, NO_BUDGET_NEEDS))
        for gang in snapshot.gangs.values():
            answers = (carried.admit(gang), carried.refusal(gang), carried.of(gang))
            assert answers == (fresh.admit(gang), fresh.refusal(gang), fresh.of(gang)), gang.key
        self.known = carried.known

    def teardown(self) -> None:
        """When nothing is refused and no pod lingers, all settles, and no Placement is left halfway."""
        if not hasattr(self, "world"):
            return
        self.world.refused, self.world.lingering = {}, set()
        for _ in range(4):
            self.kubelets_end_pods()
            for name in JOBS:
                self.remake(name)
            self.world.run(60)
            self.world.now += 400
        assert all(
            placement.status.phase == "Bound" and not placement.spec.preempting
            for placement in self.world.placements.values()
        )


Evictions.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
Evictions.TestCase.pytestmark = pytest.mark.slow
TestEvictions = Evictions.TestCase
