"""What must never be while teams lend nodes, whatever comes and goes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from muster.api.lending import NodeUser, TeamNodes, by_team, states_of
from muster.api.names import LABEL_BORROWED, LABEL_TEAM
from muster.scheduler.decide import decide
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.plan import WritePlacement
from muster.scheduler.state import ClusterState
from tests.unit.scheduler.teamwork import add, owned
from tests.unit.scheduler.world import World

TEAMS = ("red", "blue", "green")
GRACE_S = 10.0
PRIORITIES = st.sampled_from((-1, 0, 0, 5))


class Lending(RuleBasedStateMachine):
    """Nodes of three teams and without owner; gangs of the teams at home, and gangs that borrow, of any priority.

    The controllers of jobs that are asked to leave have their pods gone after the whole grace, and recreate them.
    """

    @initialize(counts=st.lists(st.integers(0, 4), min_size=4, max_size=4))
    def nodes(self, counts: list[int]) -> None:
        self.world = World()
        self.made = 0
        self.gangs: dict[str, tuple[int, str, bool, int]] = {}
        self.reported: dict[str, float] = {}
        self.could: dict[str, float] = {}
        self.owners: dict[str, str] = {}
        for team, count in zip(("", *TEAMS), counts, strict=True):
            for number in range(count):
                name = f"{team or 'rest'}{number}"
                self.owners[name] = team
                owned(self.world, team, name)
        self.plan()

    @rule(size=st.integers(1, 4), team=st.sampled_from(TEAMS), borrows=st.booleans(), priority=PRIORITIES)
    def come(self, size: int, team: str, borrows: bool, priority: int) -> None:
        self.made += 1
        name = f"{'guest' if borrows else 'home'}{self.made}"
        self.gangs[name] = (size, team, borrows, priority)
        add(self.world, name, size, team, borrows=borrows, priority=priority, facts=JobFacts(grace_s=GRACE_S / 2))
        self.plan()

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.gangs:
            name = data.draw(st.sampled_from(sorted(self.gangs)))
            del self.gangs[name]
            self.world.set_job(name, JobFacts(ended="Succeeded"))
            self.world.remove_gang(name)
            self.plan()

    @rule(data=st.data(), team=st.sampled_from(("", *TEAMS)))
    def change_hands(self, data: st.DataObject, team: str) -> None:
        if self.owners:
            name = data.draw(st.sampled_from(sorted(self.owners)))
            self.owners[name] = team
            owned(self.world, team, name)
            self.could.clear()  # a gang that runs on the node of another team now is not a borrower, and stays
            self.plan()

    @rule(seconds=st.integers(1, 15))
    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.now += 1.0
            self.plan()

    def plan(self) -> None:
        self.world.run()
        self.obey()
        self.world.run()
        now = self.world.now
        possible = self.possible()
        self.could = {name: self.could.get(name, now) for name in possible}

    def obey(self) -> None:
        """A job that was asked to leave is gone when its grace is over, and waits again."""
        for name, (size, team, borrows, priority) in list(self.gangs.items()):
            placement = self.world.placements.get(f"default/{name}")
            if placement is None or placement.status.phase != "Preempting":
                self.reported.pop(name, None)
            elif self.world.now >= self.reported.setdefault(name, self.world.now) + GRACE_S:
                del self.reported[name]
                self.world.remove_gang(name)
                self.world.run()
                self.world.now += 1.0  # another moment, so that pods of both attempts have names of their own
                add(self.world, name, size, team, borrows=borrows, priority=priority)

    def possible(self) -> set[str]:
        """The gangs at home that would get nodes now if no other team borrowed any."""
        found: set[str] = set()
        for team in TEAMS:
            state = without_borrowers(self.world, team)
            actions = decide(state.snapshot(), self.world.now, self.world.settings).actions
            keys = {
                each.gang for each in actions if isinstance(each, WritePlacement) and not each.placement.spec.preempting
            }
            found |= {
                name
                for name, (_, whose, borrows, _) in self.gangs.items()
                if whose == team and not borrows and self.world.gang(name).key in keys
            }
        return found

    @invariant()
    def a_borrower_never_delays_an_owners_gang_by_more_than_its_grace(self) -> None:
        for name, since in getattr(self, "could", {}).items():
            waited = self.world.now - since
            assert waited <= GRACE_S + 3.0, f"{name} could run without borrowers since {waited} s"

    @invariant()
    def a_borrower_never_leaves_in_part(self) -> None:
        for name, (size, _, _, _) in getattr(self, "gangs", {}).items():
            assert len(self.world.nodes_of(name)) in (0, size), name

    @invariant()
    def no_node_is_counted_twice_or_forgotten(self) -> None:
        if hasattr(self, "world"):
            self.world.state.snapshot()
            assert self.world.state.teams.counts() == recounted(self.world)


def recounted(world: World) -> dict[str, TeamNodes]:
    """By a look at every node."""
    users: dict[str, set[NodeUser]] = {name: set() for name in world.nodes}
    for pod in world.pods.values():
        gang, labels = pod.metadata.labels["muster.dev/gang"], pod.metadata.labels
        user = NodeUser(labels[LABEL_TEAM], LABEL_BORROWED in labels)
        for name in {pod.spec.node_name, *world.slots_of(gang).values()} - {""}:
            users[name].add(user)
    owners = {name: node.metadata.labels.get(LABEL_TEAM, "") for name, node in world.nodes.items()}
    return by_team(Counter(state for name, owner in owners.items() for state in states_of(owner, users[name])))


def without_borrowers(world: World, team: str) -> ClusterState:
    """The same cluster, in which only that team borrows."""
    state = world.listed()
    for pod in world.pods.values():
        if LABEL_BORROWED in pod.metadata.labels and pod.metadata.labels[LABEL_TEAM] != team:
            state.remove_pod(pod.uid, world.now)
            placement = world.placements.get(f"default/{pod.metadata.labels['muster.dev/gang']}")
            if placement is not None:
                state.remove_placement(placement)
    return state


Lending.TestCase.settings = settings(
    max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
Lending.TestCase.pytestmark = pytest.mark.slow
test_a_borrower_never_delays_an_owners_gang_by_more_than_its_grace = Lending.TestCase
