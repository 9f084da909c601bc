"""Nodes with GPUs are used once they passed their tests, and only as long as the record is about them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from muster.api.trust import Identity
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import from_dict
from muster.scheduler.decide import decide
from muster.scheduler.explain.hypothetical import suppose_nodes
from muster.scheduler.explain.loading import suppose
from muster.scheduler.explain.why_waiting import explain
from muster.scheduler.nodes.node_record import NodeRecord
from muster.scheduler.nodes.trust import Trust
from muster.scheduler.plan import Bind
from muster.scheduler.state import ClusterState
from tests.unit.scheduler.world import World, node, reason_of

HOUR_S = 3600.0
DRIVER = "nvidia.com/cuda.driver-version.full"
WITHIN = "muster.dev/tested-within-hours"


def trusting(*names: str, **options: object) -> World:
    world = World(tests_needed=True)
    world.add_nodes(*names, **options)
    return world


def reported(world: World, gang: str) -> str:
    """What `muster explain` says of it."""
    found = world.gang(gang)
    return explain(world.state.snapshot(world.now), found, now=world.now).summary


def ask(world: World, gang: str, hours: str) -> None:
    """A gang of one that asks for a node tested within so many hours."""
    world.add_pod(
        f"{gang}-0-0",
        labels={"muster.dev/gang": gang, "muster.dev/slot": "0"},
        annotations={
            "muster.dev/gang-size": "1",
            "muster.dev/gang-uid": f"uid-{gang}",
            "muster.dev/attempt": "0",
            WITHIN: hours,
        },
    )


def asking(world: World, gang: str, hours: str) -> None:
    ask(world, gang, hours)
    world.run()


def test_nodes_without_a_record_are_used_if_tests_are_not_required() -> None:
    world = World()
    world.add_nodes("a")
    world.add_gang("train", 1)
    world.run()
    assert world.nodes_of("train") == {0: "a"}


def test_a_node_is_used_as_soon_as_it_has_passed_its_test() -> None:
    world = trusting("a", "b", "c")
    world.add_gang("train", 2)
    world.set_tested("a")
    assert reason_of(world.run(), world, "train") == "MoreThanTheCluster"
    assert "2 untested (no test yet)" in reported(world, "train")
    assert "would run with: 1 node tested" in reported(world, "train")
    world.set_tested("c")
    world.run()
    assert world.nodes_of("train") == {0: "a", 1: "c"}


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"uid": "uid-of-its-predecessor"}, "another node of its name was tested"),
        ({"boot": "boot-before"}, "rebooted since its test"),
        ({"driver": "550.54"}, "another driver since its test"),
        ({"passed": False}, "failed its test"),
    ],
)
def test_record_of_another_node_boot_or_driver_or_without_pass_is_not_trusted(
    record: dict[str, object], why: str
) -> None:
    world = trusting("a", boot="boot-now", labels={DRIVER: "570.10"})
    world.set_tested("a", **{"driver": "570.10", **record})  # type: ignore[arg-type]
    world.add_gang("train", 1)
    world.run()
    assert not world.nodes_of("train")
    assert f"1 untested ({why})" in reported(world, "train")


def test_a_reboot_takes_trust_away_though_no_taint_comes_back() -> None:
    world = trusting("a", boot="first")
    world.set_tested("a")
    world.set_node(node("a", boot="second"))
    world.add_gang("train", 1)
    world.run()
    assert not world.nodes_of("train")
    world.set_tested("a")
    world.run()
    assert world.nodes_of("train") == {0: "a"}


def test_running_pod_stays_and_its_slot_moves_when_it_is_recreated() -> None:
    world = trusting("a", "b")
    world.set_tested("a")
    world.add_gang("train", 1)
    world.run()
    world.remove_tested("a")
    world.set_tested("b")
    world.run()
    assert world.nodes_of("train") == {0: "a"}
    world.remove_pod("train-0-0")
    world.add_member("train", 0, 1, attempt=1)
    world.run()
    assert world.nodes_of("train") == {0: "b"}


def test_nodes_without_gpus_and_nodes_that_were_taken_out_of_our_care_need_no_test() -> None:
    world = World(tests_needed=True)
    world.add_nodes("cpu", gpus=0)
    world.add_nodes("mine", labels={"muster.dev/health": "ignore"})
    world.add_gang("plain", 2, gpus=0)
    world.run()
    assert set(world.nodes_of("plain").values()) == {"cpu", "mine"}


def test_a_node_whose_gpus_are_not_announced_yet_is_untested_where_discovery_has_seen_them() -> None:
    world = trusting("a", gpus=0, labels={"nvidia.com/gpu.present": "true"})
    world.add_gang("plain", 1, gpus=0)
    world.run()
    assert not world.nodes_of("plain")


def test_the_test_itself_runs_on_an_untested_node_and_only_in_our_own_namespace() -> None:
    world = trusting("a")
    world.add_pod("muster-preflight-a", labels={"muster.dev/preflight": "1"})
    world.run()
    assert world.find("muster-preflight-a").spec.node_name == "a"
    state = ClusterState(trusting="muster-system")
    state.set_node(world.nodes["a"])
    state.set_pod(world.add_pod("tester", labels={"muster.dev/preflight": "1"}), world.now)
    assert not decide(state.snapshot(), world.now).actions


def test_no_test_is_created_on_a_node_with_a_pod_in_flight() -> None:
    """The node's test was revoked, as it has another driver, while the API server was slow to bind the pod."""
    world = trusting("a")
    world.set_tested("a")
    world.add_gang("train", 1)
    on_its_way = []
    while not on_its_way:
        for action in world.decide().actions:
            if isinstance(action, Bind):
                world.state.begin_bind(action.uid, action.node)
                on_its_way.append(action)
            else:
                world.carry_out(action)
    world.remove_tested("a")
    world.add_pod("muster-preflight-a", labels={"muster.dev/preflight": "1"})
    world.run()
    assert not world.find("muster-preflight-a").spec.node_name
    world.state.end_bind(on_its_way[0].uid, world.now, error="no answer", retry_at=world.now + 5)
    world.run()
    assert world.find("muster-preflight-a").spec.node_name == "a"


def test_a_gang_that_asks_for_fresh_tests_gets_nodes_tested_since_and_keeps_them_when_that_was_long_ago() -> None:
    world = trusting("old", "fresh")
    world.set_tested("old", ago_s=30 * HOUR_S)
    world.set_tested("fresh", ago_s=2 * HOUR_S)
    asking(world, "careful", "24")
    assert world.nodes_of("careful") == {0: "fresh"}
    asking(world, "second", "24")
    assert not world.nodes_of("second")
    assert "1 not tested within 24 h" in reported(world, "second")
    world.remove_gang("second")
    world.now += 40 * HOUR_S
    world.remove_pod("careful-0-0")
    world.run()
    asking(world, "careful", "24")
    assert world.nodes_of("careful") == {0: "fresh"}


def test_time_alone_makes_a_test_too_old() -> None:
    world = trusting("a")
    world.set_tested("a", ago_s=23.5 * HOUR_S)
    world.add_gang("first", 1)
    world.run()
    asking(world, "careful", "24")
    world.remove_gang("first")
    world.now += HOUR_S
    world.run()
    assert not world.nodes_of("careful")
    world.set_tested("a")
    world.now += 700.0  # the first gang's slots are given up
    world.run()
    assert world.nodes_of("careful") == {0: "a"}


def test_timed_waits_do_not_grow_with_unrelated_events() -> None:
    """A node is looked at with every pod that comes or goes: once a test is a day old it is due once."""
    trust = Trust()
    trust.ages = frozenset({24})
    world = trusting("a")
    world.set_tested("a", uid="uid-a", boot="boot-1")
    trust.set(world.tested["a"])
    record = NodeRecord("a")
    record.gpus = True
    record.identity = Identity("uid-a", "boot-1")
    for _ in range(1000):
        trust.judge(record)
        trust.age(record, 0.0)
    assert record.tested_within_h == 24
    assert list(trust.due(float("inf"))) == ["a"]
    trust.age(record, 0.0)
    assert list(trust.due(float("inf"))) == ["a"]


@pytest.mark.parametrize("hours", ["0", "-3", "many", "1.5", "9000"])
def test_invalid_number_of_hours_is_refused_by_name(hours: str) -> None:
    world = trusting("a")
    world.set_tested("a")
    ask(world, "careful", hours)
    plan = world.decide()
    assert reason_of(plan, world, "careful") == "NotSupported"
    assert WITHIN in plan.waiting[world.gang("careful").key].text()


def test_a_wish_for_fresh_tests_is_refused_where_there_are_none() -> None:
    world = World()
    world.add_nodes("a")
    ask(world, "careful", "24")
    plan = world.decide()
    assert reason_of(plan, world, "careful") == "NotSupported"
    assert "preflight is not required here" in plan.waiting[world.gang("careful").key].text()


def test_a_gang_that_is_only_supposed_asks_for_fresh_tests_as_well_and_supposed_nodes_have_them() -> None:
    world = trusting("a")
    world.set_tested("a", ago_s=30 * HOUR_S)
    pod = from_dict(
        {
            "metadata": {"name": "train", "namespace": "default", "annotations": {WITHIN: "24"}},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
        },
        Pod,
    )
    gang = suppose(world.state, pod, 2, now=world.now)
    said = explain(world.state.snapshot(world.now), gang, now=world.now)
    assert "1 not tested within 24 h" in said.summary
    world.set_tested("a")
    world.state.snapshot(world.now)
    assert suppose_nodes(world.state, gang, 1) == 1
    assert not explain(world.state.snapshot(world.now), gang, now=world.now).waits


NODES = ["n0", "n1"]
GANGS = ["alpha", "beta", "gamma"]


class Trusting(RuleBasedStateMachine):
    """Nodes come, reboot, are tested, fail, are forgotten; gangs come and go, some want fresh tests; leaders change."""

    @initialize()
    def begin(self) -> None:
        self.world = World(tests_needed=True, hold_s=1.0)
        self.boots = 0
        self.bound: dict[str, str] = {}

    @rule(
        name=st.sampled_from(NODES),
        what=st.sampled_from(["reboot", "reboot", "replace", "550", "570", "no GPUs", "same"]),
    )
    def change_node(self, name: str, what: str) -> None:
        """It is there; another boot, another node, another driver."""
        known = self.world.nodes.get(name)
        info = known.status.node_info if known is not None else None
        self.boots += 1
        labels = {DRIVER: what} if what.isdigit() else {}
        uid = f"uid-{name}-{self.boots}" if what == "replace" else known.uid if known is not None else ""
        boot = str(self.boots) if what == "reboot" or info is None else info.boot_id
        self.world.set_node(node(name, uid=uid, gpus=0 if what == "no GPUs" else 8, labels=labels, boot=boot))

    @rule(
        name=st.sampled_from(NODES),
        driver=st.sampled_from(["", "550"]),
        passed=st.sampled_from([True, True, False]),
        hours=st.sampled_from([0, 0, 5, 30]),
    )
    def test(self, name: str, driver: str, passed: bool, hours: int) -> None:
        if name in self.world.nodes:
            self.world.set_tested(name, driver=driver, passed=passed, ago_s=hours * HOUR_S)

    @rule(name=st.sampled_from(NODES))
    def forget_test(self, name: str) -> None:
        self.world.remove_tested(name)

    @rule(gang=st.sampled_from(GANGS), hours=st.sampled_from(["", "4", "24"]))
    def submit(self, gang: str, hours: str) -> None:
        for pod in [pod for pod in self.world.pods.values() if pod.name == gang]:
            self.world.remove_pod(pod.name)
        self.world.now += 5.0
        annotations = {WITHIN: hours} if hours else {}
        self.world.add_pod(gang, annotations=annotations)
        self.world.run()
        self.never_work_on_a_node_that_was_not_tested_as_it_is()

    @rule(hours=st.sampled_from([1, 20]))
    def wait(self, hours: int) -> None:
        self.world.now += hours * HOUR_S

    @rule(
        name=st.sampled_from(NODES),
        what=st.sampled_from(["reboot", "replace", "570"]),
        gang=st.sampled_from(GANGS),
        hours=st.sampled_from(["", "24"]),
    )
    def work_comes_after_something_happened_to_a_node(self, name: str, what: str, gang: str, hours: str) -> None:
        self.test(name, "550", True, 0)
        self.change_node(name, what)
        self.submit(gang, hours)

    @rule(name=st.sampled_from(NODES), gang=st.sampled_from(GANGS), hours=st.sampled_from(["4", "24"]))
    def work_comes_long_after_a_test(self, name: str, gang: str, hours: str) -> None:
        self.test(name, "550", True, 5)
        self.submit(gang, hours)
        self.wait(20)
        self.submit(gang, hours)

    @rule()
    def new_scheduler(self) -> None:
        self.world.forget_all()

    @invariant()
    def never_work_on_a_node_that_was_not_tested_as_it_is(self) -> None:
        """Checked for each pod when it is bound: what comes later does not move it."""
        for pod in self.world.pods.values():
            name = pod.spec.node_name
            if not name or self.bound.get(pod.uid) == name:
                continue
            self.bound[pod.uid] = name
            where = self.world.nodes[name]
            if where.status.allocatable["nvidia.com/gpu"] == "0":
                continue
            record = self.world.tested.get(name)
            assert record is not None, name
            spec, info = record.spec, where.status.node_info
            assert info is not None
            assert (spec.node_uid, spec.boot_id, spec.passed) == (where.uid, info.boot_id, True)
            said = where.metadata.labels.get(DRIVER, "")
            assert not said or not spec.driver or said == spec.driver
            hours = pod.metadata.annotations.get(WITHIN)
            if hours is not None:
                assert self.world.now - spec.time.timestamp() < int(hours) * HOUR_S + 1

    @invariant()
    def never_another_view_than_a_new_leader_has(self) -> None:
        fresh = self.world.listed().snapshot(self.world.now)
        assert self.seen(self.world.state.snapshot(self.world.now)) == self.seen(fresh)

    def seen(self, snapshot: object) -> dict[str, tuple[str, bool]]:
        """What pods that ask for nothing, and those that ask for a test of today, learn about each node."""
        buckets = snapshot.buckets.values()  # type: ignore[attr-defined]
        return {
            name: (bucket.node_class.doubt.value, 0 < bucket.node_class.tested_within_h <= 24 and self.someone_asks())
            for bucket in buckets
            for name in bucket.names
        }

    def someone_asks(self) -> bool:
        return any(pod.metadata.annotations.get(WITHIN) == "24" for pod in self.world.pods.values())


@pytest.mark.slow
def test_never_an_untested_node_whatever_the_order_of_events() -> None:
    run_state_machine_as_test(
        Trusting,
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        ),
    )
