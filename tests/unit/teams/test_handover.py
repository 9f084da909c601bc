"""Allocation and scheduler together: a node that is to change hands is not filled again by the team it leaves."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.api.names import LABEL_TEAM
from muster.scheduler.gangs.priority import JobFacts
from tests.unit.scheduler.teamwork import add, owned
from tests.unit.scheduler.world import World as SchedulerWorld
from tests.unit.teams.world import World, shares

TEAMS = ("red", "blue")


class Cluster:
    """Nodes whose owners allocation writes; a scheduler that is always quicker than it, and has work for everybody."""

    def __init__(self, nodes: int, *, heeds: bool = True, **amounts: Any) -> None:
        self.teams = World(shares(LABEL_TEAM, "Wait", **amounts), nodes)
        self.scheduler = SchedulerWorld()
        self.heeds = heeds
        self.names = sorted(self.teams.holdings.nodes)
        self.leaving: frozenset[str] = frozenset()
        self._gangs = 0
        self._seen: tuple[set[str], set[str]] = (set(), set())
        for name in self.names:
            owned(self.scheduler, "", name)

    def come(self, team: str, size: int) -> str:
        self._gangs += 1
        name = f"{team}{self._gangs}"
        add(self.scheduler, name, size, team)
        return name

    def end(self, gang: str) -> None:
        self.scheduler.set_job(gang, JobFacts(ended="Succeeded"))
        self.scheduler.remove_gang(gang)

    def configure(self, **amounts: Any) -> None:
        self.teams.configure(shares(LABEL_TEAM, "Wait", **amounts))

    def step(self) -> None:
        """The scheduler plans, then allocation does, and both see what the other has written."""
        before = self.slots()
        self.scheduler.run()
        for gang, nodes in self.slots().items():
            new = nodes - before.get(gang, set())
            assert not (self.heeds and new & self.leaving), f"{gang} was placed on {new & self.leaving}"
        self._show_pods()
        for change in self.teams.run().changes:
            owned(self.scheduler, change.record.team, change.node)
        self.leaving = self.teams.plan().leaving
        if self.heeds:
            self.scheduler.state.set_leaving(self.leaving)

    def slots(self) -> dict[str, set[str]]:
        found = self.scheduler.placements.values()
        return {each.name: {slot.node for slot in each.spec.slots} for each in found if each.status.phase != "Released"}

    def running(self) -> list[str]:
        return sorted(self.slots())

    def _show_pods(self) -> None:
        holdings, pods = self.teams.holdings, self.scheduler.pods
        placements = {each.key: each for each in self.scheduler.placements.values()}
        for uid in self._seen[0] - pods.keys():
            holdings.remove_pod(uid)
        for key in self._seen[1] - placements.keys():
            holdings.remove_placement(key)
        for pod in pods.values():
            holdings.set_pod(pod)
        for placement in placements.values():
            holdings.set_placement(placement)
        self._seen = set(pods), set(placements)


def whose(cluster: Cluster) -> dict[str, int]:
    return dict(Counter(owner for owner in cluster.teams.owners().values() if owner))


def busy_red(*, heeds: bool) -> Cluster:
    """Red runs on both its nodes and has more to do; one of them is blue's by now."""
    cluster = Cluster(2, heeds=heeds, red=2)
    cluster.step()
    first = [cluster.come("red", 1) for _ in range(2)]
    cluster.step()
    assert cluster.running() == first
    for _ in range(4):
        cluster.come("red", 1)
    cluster.configure(red=1, blue=1)
    cluster.step()
    assert whose(cluster) == {"red": 2}
    return cluster


def test_a_node_that_is_to_change_hands_is_not_filled_again_by_the_team_it_leaves() -> None:
    cluster = busy_red(heeds=True)
    (leaving,) = cluster.leaving
    for gang in cluster.running():
        cluster.end(gang)
        cluster.step()
    cluster.step()
    assert whose(cluster) == {"red": 1, "blue": 1}
    assert cluster.teams.owners()[leaving] == "blue"
    assert cluster.leaving == frozenset()
    assert len(cluster.running()) == 1, "red continues with the node it has"


def test_without_a_notice_the_scheduler_fills_the_node_repeatedly() -> None:
    cluster = busy_red(heeds=False)
    for _ in range(3):
        cluster.end(cluster.running()[0])
        cluster.step()
        assert whose(cluster) == {"red": 2}


def test_gang_that_keeps_slots_on_such_a_node_continues_there() -> None:
    cluster = Cluster(1, red=1)
    cluster.step()
    gang = cluster.come("red", 1)
    cluster.step()
    cluster.configure(blue=1)
    cluster.step()
    assert cluster.leaving == {"n00"}
    cluster.scheduler.remove_gang(gang)  # its pod died, and is recreated
    cluster.step()
    cluster.scheduler.now += 1.0
    add(cluster.scheduler, gang, 1, "red")
    cluster.step()
    assert cluster.scheduler.nodes_of(gang) == {0: "n00"}
    assert whose(cluster) == {"red": 1}
    cluster.end(gang)
    cluster.step()
    cluster.step()
    assert whose(cluster) == {"blue": 1}


stories = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.sampled_from(TEAMS), st.integers(1, 3)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("config"), st.integers(0, 4), st.integers(0, 4)),
    ),
    max_size=20,
)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), stories)
def test_a_team_never_waits_for_longer_than_the_gangs_that_ran_when_it_came_to_own_nodes(
    nodes: int, story: list[tuple[Any, ...]]
) -> None:
    cluster = Cluster(nodes, red=nodes)
    cluster.step()
    for kind, *rest in story:
        running = cluster.running()
        if kind == "come":
            cluster.come(*rest)
        elif kind == "end" and running:
            cluster.end(running[rest[0] % len(running)])
        elif kind == "config" and any(rest):
            cluster.configure(red=rest[0], blue=rest[1])
        cluster.step()
    there = cluster.running()
    for gang in there:
        for team in TEAMS:
            cluster.come(team, 1)
        cluster.end(gang)
        cluster.step()
    cluster.step()
    for standing in cluster.teams.plan().standings:
        assert (standing.owned, standing.pending) == (standing.entitled, 0), standing
