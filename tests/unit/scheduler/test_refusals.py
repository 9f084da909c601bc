"""What is kept about gangs that wait: never anything but what looking at every node again would say.

`pytest --hypothesis-seed=N` repeats a run.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from muster.scheduler import memo
from muster.scheduler.decide import decide
from muster.scheduler.placement.candidates import Groups, Shortage
from muster.scheduler.placement.ledger import Ledger
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.placement.memo import Refusals
from muster.scheduler.placement.place import choose, room_when_empty
from muster.scheduler.plan import Plan
from muster.scheduler.snapshot import Snapshot
from tests.support.values import value_of
from tests.unit.scheduler.test_rules import apart, near, racks, spread, term
from tests.unit.scheduler.world import World, but_memo, node

RACK, ZONE, HOST = "rack", "zone", "host"
GANGS = ["alpha", "beta", "gamma"]
NODES = [f"n{number}" for number in range(7)]


class EveryTime(Refusals):
    """Looks at every node each time."""

    def __init__(self, snapshot: Snapshot, matcher: Matcher, known: Any) -> None:
        super().__init__(snapshot, matcher, known)
        self.snapshot, self.matcher = snapshot, matcher

    def choose(self, key: str, ledger: Ledger, groups: Groups, **asked: Any) -> Any:
        return choose(ledger, self.matcher, groups, **asked)

    def impossible(self, key: str, groups: Groups) -> Shortage | None:
        found = room_when_empty(Ledger(self.snapshot.empty_buckets), self.matcher, groups)
        return found if isinstance(found, Shortage) else None


def asked_of(gang: str) -> st.SearchStrategy[dict[str, Any]]:
    """Rules about the gang itself, about app x (which other gangs and pods have too), or both."""
    who = st.sampled_from([{"muster.dev/gang": gang}, {"app": "x"}])
    key = st.sampled_from([RACK, ZONE, HOST])
    terms = st.lists(st.builds(term, key, who), min_size=1, max_size=2)
    wish = st.builds(lambda k, w: [{"weight": 5, "podAffinityTerm": term(k, w)}], key, who)
    wishes = st.builds(lambda w: {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": w}}, wish)
    affinity = st.one_of(
        st.builds(lambda found: apart(*found), terms),
        st.builds(lambda found: near(*found), terms),
        st.builds(lambda left, right: near(left[0]) | apart(right[0]), terms, terms),
        wishes,
    ).map(lambda found: {"affinity": found})
    even = st.builds(
        lambda k, w, skew, more: {"topologySpreadConstraints": spread(k, w, maxSkew=skew, **more)},
        key,
        who,
        st.integers(1, 2),
        st.sampled_from([{}, {}, {"minDomains": 3}, {"nodeTaintsPolicy": "Honor"}, {"nodeAffinityPolicy": "Ignore"}]),
    )
    return st.one_of(affinity, affinity, even, even, st.builds(lambda a, b: a | b, affinity, even), st.just({}))


class Waiting(RuleBasedStateMachine):
    """Gangs with rules come and end, nodes and pods of other schedulers change, plans are carried out in part."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.sizes: dict[str, int] = {}
        self.others = 0
        self.kept, self.steps = Plan(), 0
        for number, name in enumerate(NODES):
            self.world.set_node(self.node(name, number))

    def node(self, name: str, rack: int, **options: Any) -> Any:
        labels = {HOST: name, ZONE: f"z{rack % 2}", "pool": "a" if rack < 5 else "b"}
        return node(name, gpus=3, labels=labels | ({RACK: f"r{rack // 2}"} if rack % 5 != 4 else {}), **options)

    @rule(gang=st.sampled_from(GANGS), size=st.integers(1, 5), data=st.data())
    def submit(self, gang: str, size: int, data: st.DataObject) -> None:
        if gang in self.sizes or f"default/{gang}" in self.world.placements:
            return
        self.sizes[gang] = size
        spec = data.draw(asked_of(gang))
        gpus = data.draw(st.integers(1, 2))
        selector = data.draw(st.sampled_from([{}, {}, {"pool": "a"}]))
        leader = data.draw(st.sampled_from([None, None, {}, spec]))
        for slot in range(size):
            led = slot == 0 and leader is not None
            self.world.add_pod(
                f"{gang}-{slot}",
                {
                    "gpus": 1 if led else gpus,
                    "nodeSelector": selector,
                    **(leader if led and leader is not None else spec),
                },
                labels={"muster.dev/gang": gang, "muster.dev/slot": str(slot), "app": "y" if led else "x"},
                annotations={"muster.dev/gang-size": str(size), "muster.dev/gang-uid": f"uid-{gang}"},
            )
        self.world.now += 1.0

    @rule(gang=st.sampled_from(GANGS))
    def end(self, gang: str) -> None:
        if self.sizes.pop(gang, 0):
            self.world.remove_gang(gang)
            placement = self.world.placements.pop(f"default/{gang}", None)
            if placement is not None:
                self.world.state.remove_placement(placement)

    @rule(name=st.sampled_from(NODES), rack=st.integers(0, 9), kind=st.sampled_from(["", "", "down", "taint", "gone"]))
    def change_node(self, name: str, rack: int, kind: str) -> None:
        """Another rack, out of order, tainted, gone, or back as it was."""
        if kind == "gone":
            if name in self.world.nodes:
                self.world.remove_node(name)
            return
        taints = [{"key": "t", "effect": "NoSchedule"}] if kind == "taint" else []
        self.world.set_node(self.node(name, rack, ready=kind != "down", taints=taints))

    @rule(name=st.sampled_from(NODES), app=st.sampled_from("xy"), gpus=st.integers(0, 3), repels=st.booleans())
    def foreign_pod(self, name: str, app: str, gpus: int, repels: bool) -> None:
        self.others += 1
        spec: dict[str, Any] = {"gpus": gpus, "schedulerName": "default-scheduler", "nodeName": name}
        if repels:
            spec["affinity"] = apart(term(RACK, {"app": "x"}))
        self.world.add_pod(f"other-{self.others}", spec, labels={"app": app})

    @rule(number=st.integers(1, 6), leaves=st.booleans())
    def foreign_goes(self, number: int, leaves: bool) -> None:
        found = [pod for pod in self.world.pods.values() if pod.name == f"other-{number}"]
        if found and leaves:
            self.world.terminate(found[0].name)
        elif found:
            self.world.remove_pod(found[0].name)

    @rule(number=st.integers(1, 6), app=st.sampled_from("xy"))
    def relabel(self, number: int, app: str) -> None:
        if any(pod.name == f"other-{number}" for pod in self.world.pods.values()):
            self.world.relabel(f"other-{number}", {"app": app})

    @rule(count=st.integers(1, 4))
    def act(self, count: int) -> None:
        for action in self.world.decide().actions[:count]:
            self.world.carry_out(action)
        self.world.now += 1.0

    @invariant()
    def never_another_plan_than_without_what_was_kept(self) -> None:
        snapshot = self.world.state.snapshot()
        self.steps += 1
        checked = self.steps % 10 == 0  # comparing takes longer than deciding
        before = value_of(snapshot) if checked else None
        self.kept = decide(snapshot, self.world.now, self.world.settings, self.kept.memo)
        assert not checked or value_of(snapshot) == before, "decide changed the snapshot"
        with patch.object(memo, "Refusals", EveryTime):
            fresh = decide(snapshot, self.world.now, self.world.settings)
        assert but_memo(self.kept) == but_memo(fresh)
        assert but_memo(self.kept) == but_memo(decide(snapshot, self.world.now, self.world.settings))

    @invariant()
    def never_more_kept_than_gangs_that_wait(self) -> None:
        waiting = self.world.state.snapshot().gangs.keys()
        assert all(side.answers.keys() <= waiting for side in self.kept.memo.refusals)


PROFILE = settings(
    max_examples=100, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)


@pytest.mark.slow
def test_never_another_plan_than_without_what_was_kept() -> None:
    run_state_machine_as_test(Waiting, settings=PROFILE)


def test_a_gang_is_placed_when_the_node_it_waited_for_is_in_its_rack() -> None:
    world = racks(2, 1)
    world.add_gang("train", 3, affinity=near(term("example.com/rack", {"muster.dev/gang": "train"})))
    assert not world.run().actions
    assert not world.nodes_of("train")
    world.add_nodes("new", labels={"example.com/rack": "r0", "kubernetes.io/hostname": "new"})
    world.run()
    assert sorted(world.nodes_of("train").values()) == ["n0", "n1", "new"]


def test_a_new_rack_without_room_leaves_less_room_for_a_gang_that_is_to_be_even() -> None:
    world = racks(4, 1)
    world.add_gang("train", 4, topologySpreadConstraints=spread("example.com/rack", {"muster.dev/gang": "train"}))
    assert [reason.have for reason in world.run().waiting.values()] == [3]
    world.add_nodes("cordoned", labels={"example.com/rack": "r2"}, unschedulable=True)
    assert [reason.have for reason in world.decide().waiting.values()] == [2]


def test_a_gang_with_several_rules_is_placed_when_the_pod_that_kept_it_away_is_gone() -> None:
    world = racks(1, 1)
    own = {"muster.dev/gang": "train"}
    keeps_away = apart(term("example.com/rack", own))
    spec = {"gpus": 0, "schedulerName": "default-scheduler", "nodeName": "n0", "affinity": keeps_away}
    world.add_pod("other", spec)
    rules = apart(term("example.com/rack", own), term("kubernetes.io/hostname", own))
    world.add_gang("train", 2, affinity=rules)
    assert not world.run().actions
    assert not world.nodes_of("train")
    world.remove_pod("other")
    world.run()
    assert sorted(world.nodes_of("train").values()) == ["n0", "n1"]
