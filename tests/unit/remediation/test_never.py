"""What must never happen to a node, whatever was written before, and whatever was requested."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from muster.api.node_health import NodeHealth, NodeHealthStatus
from muster.api.node_remediation import HISTORY_MAX
from muster.api.preflight import Preflight, PreflightSpec
from muster.fleet.health.finding import Finding
from muster.fleet.health.policy import Action as HealthAction
from muster.fleet.health.policytext import default_policy
from muster.fleet.health.record import observed
from muster.fleet.remediation.cache import Known
from muster.fleet.remediation.config import Limits, RemediationConfig, SharedFaults, WorkLimits
from muster.fleet.remediation.evidence.sources import evidence_of, judged
from muster.fleet.remediation.ladder import record
from muster.fleet.remediation.ladder.session import is_wanted
from muster.fleet.remediation.plan import Evict, Quarantine, ReplaceMachine, RunStep
from muster.fleet.remediation.snapshot import Evidence
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node, NodeSpec, Taint
from tests.unit.remediation.remediationworld import ACT, START, World, pod
from tests.unit.remediation.test_requests import ask


def found(world: World, name: str, at: float) -> Evidence | None:
    """What the policy says of a node on which an Xid 79 was seen at that moment, by what is written about it."""
    node = world.nodes[name]
    xid = Finding(check="xid", component="0000:3b:00", code="79", first_s=at, last_s=at)
    status = NodeHealthStatus(node_uid=node.uid, boot_id=node.boot_id, findings=(observed(xid),))
    health = NodeHealth(metadata=ObjectMeta(name=name), status=status)
    session = world.sessions.get(world.session(name).name)
    return evidence_of(judged(node.uid, node.boot_id, {}, health, None, session, default_policy(), world.now).decision)[
        0
    ]


@pytest.mark.parametrize("why", ["to be tested", "of another boot", "failed"])
def test_no_gang_leaves_for_a_spare_that_it_may_not_use(why: str) -> None:
    world = World(3)
    world.pods["n0"] = [pod("p", gang="ns/g")]
    world.gangs["n0"] = frozenset({"ns/g"})
    world.free = frozenset({"n1", "n2"})
    world.test("n1", passed=why != "failed")
    world.nodes["n1"] = replace(
        world.nodes["n1"],
        pending=why == "to be tested",
        boot_id="b7" if why == "of another boot" else "b0",
    )
    world.fault("n0", "drain")
    world.settle()
    assert set(world.plan.kept) == {"n2"}


def test_a_machine_that_nothing_tested_is_not_replaced_for_that() -> None:
    """Preflight that is broken or switched off says nothing against a node that was reset and rebooted."""
    for action in ("reset-gpu", "reboot"):
        world = World()
        world.replaceable = frozenset(world.nodes)
        world.fault("n0", action)
        world.settle()
        world.finish_steps()
        world.settle(1.0)
        for _ in range(5):
            world.settle(ACT.deadlines.test_s + 1.0)
            world.finish_steps()
        assert world.rung("n0") == "NeedsOperator"
        assert "not tested" in world.session("n0").status.message
        assert not any(isinstance(each, ReplaceMachine) for each in world.done)
        assert sum(isinstance(each, RunStep) for each in world.done) == 1
        world.test("n0")
        world.settle()
        assert world.rung("n0") == "Released"


def test_nothing_is_done_to_a_machine_that_work_may_come_to() -> None:
    """A user removed the taint during a repair: it is restored before the repair continues."""
    world = World()
    world.fault("n0", "reboot")
    while world.sessions == {} or world.rung("n0") != "Reboot":
        world.step()
    world.nodes["n0"] = replace(world.nodes["n0"], quarantined=False, record=None)
    for _ in range(5):
        tainted = world.nodes["n0"].quarantined
        plan = world.step()
        assert tainted or not any(isinstance(each, RunStep | ReplaceMachine) for each in plan.actions)
    assert world.steps, "and then it continues"


def test_node_kept_out_by_an_operator_is_not_drained_further_and_uses_no_budget() -> None:
    world = World(config=replace(ACT, working=WorkLimits(all=1, pool=1, team=1)))
    world.pods["n0"] = [pod("guarded", refused="its budget", retry_at=world.now + 60.0)]
    world.fault("n0", "reboot")
    world.settle()
    assert world.rung("n0") == "Drain"
    world.now += 1.0
    ask(world, "n0", "Quarantine")
    world.settle()
    before = len(world.done)
    world.settle(120.0)
    assert not any(isinstance(each, Evict) for each in world.done[before:])
    world.fault("n1", "reboot", "48")
    world.settle()
    assert world.rung("n1") == "Reboot", "the budget of work is not the kept node's"
    assert world.tainted() == {"n0", "n1"}


def test_a_reset_that_a_person_stopped_is_followed_by_a_test_before_the_node_is_back() -> None:
    world = World()
    world.fault("n0", "reboot")
    world.settle()
    world.now += 1.0
    ask(world, "n0", "Quarantine")
    world.settle()
    world.test("n0")
    world.settle()
    assert world.tainted() == {"n0"}
    world.now += 1.0
    ask(world, "n0", "Release")
    world.settle()
    assert world.tainted() == {"n0"}
    world.test("n0")
    world.settle()
    assert world.tainted() == set()


def test_an_old_wish_of_a_person_never_lets_a_node_back() -> None:
    """It was about the quarantine before."""
    world = World(gpus=0)
    world.fault("n0", "quarantine")
    world.settle()
    world.now += 1.0
    ask(world, "n0", "Release")
    world.step()
    del world.evidence["n0"]
    world.settle()
    assert world.rung("n0") == "Released"
    world.now += 1000.0
    world.fault("n0", "quarantine")
    world.settle()
    del world.evidence["n0"]  # what is found stops counting some day: that is not a pass
    world.settle(86400.0)
    assert world.tainted() == {"n0"}


def test_a_node_whose_gpus_have_gone_is_not_one_without_gpus() -> None:
    """After a reboot, or without its device plugin, a kubelet says 0 GPUs; a test of it was written before."""
    world = World()
    world.test("n0")
    world.fault("n0", "quarantine")
    world.settle()
    world.now += 1.0
    ask(world, "n0", "Release")
    world.nodes["n0"] = replace(world.nodes["n0"], gpus=0)
    world.settle(1.0)
    del world.evidence["n0"]
    world.settle(1.0)
    assert world.tainted() == {"n0"}


def test_a_fault_between_the_test_and_the_release_is_never_lost() -> None:
    """An agent reports within its period, and clocks differ: what the test did not see is not what it cleared."""
    world = World()
    world.fault("n0", "quarantine")
    world.settle()
    world.test("n0")
    passed_at = world.now
    world.now += 20.0
    world.settle()
    assert world.rung("n0") == "Released"
    world.now += 5.0
    assert found(world, "n0", passed_at + 10.0) is not None
    assert found(world, "n0", passed_at - 0.5) is None


def test_fault_reported_late_survives_a_session_without_result() -> None:
    """Its end says only that nothing counted at that moment."""
    world = World()
    world.fault("n0", "condition")
    world.settle()
    world.now += 100.0
    del world.evidence["n0"]
    world.settle()
    assert world.rung("n0") == "Released"
    world.now += 5.0
    assert found(world, "n0", world.now - 10.0) is not None


@pytest.mark.parametrize("action", ["reboot", "reset-gpu"])
def test_a_repeat_offender_is_never_forgotten_because_much_was_done_about_it(action: HealthAction) -> None:
    """A remediation is some ten entries of history: five of them have to be counted all the same."""
    world = World(20)
    for _ in range(8):
        world.now += 3600
        world.fault("n0", action)
        world.settle()
        world.finish_steps()
        world.settle(1.0)
        world.test("n0", passed=action == "reboot")
        world.settle()
        if action == "reset-gpu":
            world.finish_steps()
            world.settle(1.0)
            world.test("n0")
            world.settle()
        world.nodes["n0"] = replace(world.nodes["n0"], boot_id="b0")
        assert world.rung("n0") == "Released"
    session = world.session("n0")
    assert len(session.status.history) <= HISTORY_MAX
    assert len(record.quarantines(session)) >= 5
    again = found(world, "n0", world.now + 1.0)
    assert again is not None
    assert again.action == "human"


def test_a_fault_of_its_own_is_never_taken_for_a_shared_one_of_a_like_name() -> None:
    """xid/7 is not a part of xid/79."""
    world = World(40, replace(ACT, shared=SharedFaults(nodes=5, window_s=600)))
    for number in range(6):
        world.fault(f"n{number}", "reboot", "79")
    world.settle()
    assert world.rungs() == {"NeedsOperator": 6}
    world.fault("n0", "reboot", "7")
    world.settle(1.0)
    assert world.tainted() == {"n0"}


@pytest.mark.parametrize("mode", ["observe", "dry-run", "act"])
def test_nothing_is_written_for_ever_however_long_the_words_are(mode: str) -> None:
    full = Limits(all=0, pool=0, team=0)
    config = RemediationConfig(mode=mode, quarantined=full)  # type: ignore[arg-type]
    world = World(config=config)
    world.fault("n0", "reboot", why="x" * 3000)
    world.settle()
    before = world.session("n0").status.generation
    world.settle(60.0)
    assert world.session("n0").status.generation == before


def test_a_node_that_is_out_of_use_never_leaves_the_budget_by_seeming_to_join() -> None:
    """Its Preflight is taken back with a new driver, or deleted: it was in use when it went."""
    world = World(10, replace(ACT, quarantined=Limits(all=1, pool=1, team=1)))
    world.fault("n0", "quarantine")
    world.settle()
    world.nodes["n0"] = replace(world.nodes["n0"], joining=True)
    world.fault("n1", "quarantine", "48")
    world.settle()
    assert world.tainted() == {"n0"}


def test_a_node_with_a_taint_and_no_session_yet_never_leaves_the_budget_by_seeming_to_join() -> None:
    """The taint goes first, and what is written after it was lost; then its Preflight is withdrawn."""
    world = World(10, replace(ACT, quarantined=Limits(all=1, pool=1, team=1)))
    world.fault("n0", "quarantine")
    world.step(lambda action: isinstance(action, Quarantine))
    assert world.tainted() == {"n0"}
    world.nodes["n0"] = replace(world.nodes["n0"], joining=True)
    world.fault("n1", "quarantine", "48")
    world.step(lambda action: isinstance(action, Quarantine))
    assert world.tainted() == {"n0"}


def test_a_node_never_joins_again_because_its_test_counts_no_more() -> None:
    """With another driver all of a fleet's tests are taken back: budgets and breakers hold for its nodes still."""
    known = Known(lambda: None)
    pending = Taint(key="muster.dev/preflight", value="pending", effect="NoSchedule")
    new = Node(metadata=ObjectMeta(name="n0", uid="u0"), spec=NodeSpec(taints=(pending,)))
    known.node_changed(None, new)
    assert known.nodes["n0"].joining
    spec = PreflightSpec(node_uid="u0", boot_id="", level=1, passed=True, time=record.at(START))
    tested = Preflight(metadata=ObjectMeta(name="n0"), spec=spec)
    known.preflight_changed(None, tested)
    known.preflight_changed(tested, None)
    assert not known.nodes["n0"].joining
    known.node_changed(new, None)
    known.node_changed(None, replace(new, metadata=ObjectMeta(name="n0", uid="u1")))
    assert known.nodes["n0"].joining


@pytest.mark.parametrize("since", ["too late", "kept out", "released", "forgotten"])
def test_abandoned_pod_never_reboots_a_machine(since: str) -> None:
    """Its kubelet was away, and starts what it finds when it is back: hours later, under whatever runs there then."""
    world = World()
    world.fault("n0", "reboot")
    world.settle()
    assert [step.phase for step in world.steps.values()] == ["Pending"]
    if since == "too late":
        world.settle(ACT.deadlines.reboot_s + 1.0)
        assert world.rung("n0") == "NeedsOperator"
    elif since == "kept out":
        world.now += 1.0
        ask(world, "n0", "Quarantine")
    elif since == "released":
        session = world.session("n0")
        over = replace(session.status, state="Released")
        world.sessions[session.name] = replace(session, status=over)
    else:
        world.sessions.clear()
    world.settle(1.0)
    assert all(is_wanted(world.session("n0"), name) for name in world.steps)
    assert bool(world.steps) == (since == "forgotten"), "the taint says that it was ours: it starts again"


def test_no_node_is_taken_for_reset_because_another_one_was() -> None:
    """Of ten thousand nodes two have UIDs whose first eight characters are the same, once in a hundred fleets."""
    world = World(20)
    for name in ("n0", "n1"):
        world.nodes[name] = replace(world.nodes[name], uid=f"abcdef00-{name}")
        world.fault(name, "reset-gpu", f"code-{name}")
    for _ in range(12):
        world.step()
    assert len({each.node.name for each in world.done if isinstance(each, RunStep)}) == 2
    [first] = world.steps.values()
    world.finish_steps()
    for _ in range(5):
        world.step()
    [second] = world.steps.values()
    assert {first.node, second.node} == {"n0", "n1"}


def test_findings_of_a_failed_reset_stay_until_the_node_is_back() -> None:
    world = World()
    world.fault("n0", "reset-gpu")
    world.settle()
    world.finish_steps("Failed")
    world.settle(1.0)
    assert world.rung("n0") == "Reboot"
    assert "Failed" in {step.phase for step in world.steps.values()}
    world.steps = {name: step for name, step in world.steps.items() if step.phase == "Failed" or "reboot" in name}
    world.nodes["n0"] = replace(world.nodes["n0"], boot_id="b1")
    world.settle(1.0)
    world.test("n0")
    world.settle()
    assert world.rung("n0") == "Released"
    assert not world.steps
