"""Each rung of the ladder: what leads to it, what is done on it, what leads on and out."""

from __future__ import annotations

from typing import Literal

import pytest
from msgspec.structs import replace

from muster.api.names import remediation_name
from muster.fleet.health.policy import Action as HealthAction
from muster.fleet.remediation.config import Breaker, Limits, RemediationConfig, SharedFaults, WorkLimits
from muster.fleet.remediation.decide import HARDWARE
from muster.fleet.remediation.draining.drain import SETTLE_S, SILENT_S
from muster.fleet.remediation.ladder import record
from muster.fleet.remediation.plan import Evict, Move, Open, Quarantine, Release, ReplaceMachine, RunStep
from muster.fleet.remediation.snapshot import NodeView, PodView
from tests.unit.remediation.remediationworld import ACT, World


def pod(name: str, **more: object) -> PodView:
    return replace(PodView(namespace="ns", name=name, uid=f"uid-{name}"), **more)


def test_observed_evidence_opens_no_session() -> None:
    world = World()
    world.fault("n0", "observe")
    world.settle()
    assert not world.sessions
    assert not world.tainted()


def test_a_condition_is_set_and_taken_back_and_the_node_stays_in_use() -> None:
    world = World()
    world.fault("n0", "condition")
    world.settle()
    assert world.rung("n0") == "Condition"
    assert "policy.yaml:7" in world.nodes["n0"].conditions[HARDWARE]
    assert not world.tainted()
    del world.evidence["n0"]
    world.settle(1.0)
    assert world.rung("n0") == "Released"
    assert not world.nodes["n0"].conditions


@pytest.mark.parametrize("mode", ["act", "observe"])
def test_missing_evidence_does_not_clear_a_node_that_is_not_ready(mode: Literal["act", "observe"]) -> None:
    world = World(config=RemediationConfig(mode=mode))
    world.fault("n0", "condition")
    world.settle()
    described = dict(world.nodes["n0"].conditions)
    world.nodes["n0"] = replace(world.nodes["n0"], ready=False)
    del world.evidence["n0"]  # those that reported about it are gone
    world.settle(600.0)
    assert world.rung("n0") != "Released"
    assert world.nodes["n0"].conditions == described
    world.nodes["n0"] = replace(world.nodes["n0"], ready=True)
    world.settle(1.0)
    assert world.rung("n0") == "Released"
    assert not world.nodes["n0"].conditions


def test_a_leftover_taint_goes_when_the_breaker_holds_the_reopened_session() -> None:
    world = World(10, replace(ACT, breaker=Breaker(nodes=1), shared=SharedFaults(nodes=0)))
    world.fault("n0", "quarantine")
    world.settle()
    tainted = world.nodes["n0"]
    world.test("n0")
    world.settle()
    world.nodes["n0"] = replace(world.nodes["n0"], tainted=True, record=tainted.record)  # this write had failed
    world.fault("n0", "quarantine", code="48")  # the breaker has counted its one node
    world.settle()
    assert world.rung("n0") == "Condition"
    assert "not in quarantine" in world.sessions[remediation_name("n0", world.nodes["n0"].uid)].status.message
    assert not world.tainted()


@pytest.mark.parametrize("mode", ["dry-run", "observe"])
def test_a_leftover_taint_goes_when_the_reopened_session_is_only_observed(mode: Literal["dry-run", "observe"]) -> None:
    world = World()
    world.fault("n0", "quarantine")
    world.settle()
    world.test("n0")
    world.step(lambda action: not isinstance(action, Release))  # this write fails
    world.config = RemediationConfig(mode=mode)
    world.now += 1
    world.fault("n0", "quarantine", code="48")
    world.settle()
    assert world.rung("n0") == "Observe"
    assert not world.tainted()


def test_quarantine_waits_for_the_test_and_nothing_else() -> None:
    world = World()
    world.pods["n0"] = [pod("runs-on")]
    world.fault("n0", "quarantine")
    world.settle()
    assert world.rung("n0") == "Quarantine"
    assert world.tainted() == {"n0"}
    del world.evidence["n0"]  # it has expired: no reason to trust the node
    world.settle(90_000.0)
    assert world.tainted() == {"n0"}
    assert world.pods["n0"], "its pods run on"
    world.test("n0")
    world.settle()
    assert world.rung("n0") == "Released"
    assert not world.tainted()


def test_a_test_from_before_the_evidence_lets_nothing_out() -> None:
    world = World()
    world.test("n0")
    world.now += 1
    world.fault("n0", "quarantine")
    world.settle()
    assert world.tainted() == {"n0"}
    world.test("n0", later_s=-10)  # ended before the fault was seen, written later
    world.now += 20
    world.settle()
    assert world.tainted() == {"n0"}


def test_a_pass_of_a_lower_level_than_asked_for_is_none() -> None:
    world = World()
    world.fault("n0", "quarantine", test=3, last_s=world.now + 1e6)
    world.settle()
    world.test("n0", level=2)
    world.fault("n0", "quarantine", test=3, first_s=0.0, last_s=0.0, findings=())
    world.settle()
    assert world.tainted() == {"n0"}
    world.test("n0", level=3)
    world.settle()
    assert not world.tainted()


@pytest.mark.parametrize(
    ("action", "then"),
    [("drain", "Drain"), ("reset-gpu", "ResetGPU"), ("reboot", "Reboot"), ("human", "NeedsOperator")],
)
def test_the_node_is_emptied_before_anything_is_done_to_it(action: HealthAction, then: str) -> None:
    world = World()
    world.pods["n0"] = [pod("stubborn", refused="budget", retry_at=world.now + 5)]
    world.fault("n0", action)
    world.settle()
    assert world.rung("n0") == "Drain"
    assert not world.steps
    world.settle(5.0)
    assert not world.pods["n0"]
    assert world.rung("n0") == then


def test_a_reset_is_followed_by_a_test_of_the_same_boot() -> None:
    world = World()
    world.fault("n0", "reset-gpu")
    world.settle()
    [step] = [each for each in world.done if isinstance(each, RunStep)]
    assert step.step == "reset"
    assert step.gpus == ("0000:3b:00",)
    world.test("n0")  # while the reset is under way: says nothing of the GPU after it
    world.settle()
    assert world.rung("n0") == "ResetGPU"
    world.finish_steps()
    world.settle(1.0)
    assert world.rung("n0") == "ResetGPU"
    assert not world.steps
    world.test("n0")
    world.settle()
    assert world.rung("n0") == "Released"


def test_a_reboot_is_confirmed_by_another_boot_id_and_exits_through_its_test() -> None:
    world = World()
    world.fault("n0", "reboot")
    world.settle()
    asked = record.last(world.session("n0").status, "RebootRequested")
    assert asked is not None
    assert asked.reason == "boot b0", "written before it is done"
    world.settle(60.0)
    assert world.rung("n0") == "Reboot"
    world.finish_steps()
    world.settle(1.0)
    assert world.rung("n0") == "Reboot"
    assert world.tainted() == {"n0"}
    world.test("n0")
    world.settle()
    assert world.rung("n0") == "Released"
    assert not world.tainted()
    assert len([each for each in world.done if isinstance(each, RunStep)]) == 1


def test_failed_rung_leads_one_rung_up_to_an_operator() -> None:
    world = World()
    world.replaceable = frozenset({"n0"})
    world.fault("n0", "reset-gpu")
    world.settle()
    world.finish_steps("Failed")
    world.settle()
    assert world.rung("n0") == "Reboot"
    world.finish_steps()
    world.settle(1.0)
    world.test("n0", passed=False)
    world.step()
    world.step()
    assert world.rung("n0") == "Replace"
    assert any(isinstance(each, ReplaceMachine) for each in world.done)
    world.now += ACT.deadlines.replace_s
    world.step()
    assert world.rung("n0") == "NeedsOperator"
    assert world.tainted() == {"n0"}
    world.test("n0")
    world.settle()
    assert world.rung("n0") == "Released", "a person mended it, and it passed"


def test_a_test_from_before_a_reset_that_came_to_nothing_lets_nothing_out() -> None:
    world = World()
    world.fault("n0", "reset-gpu")
    world.settle()
    world.test("n0")  # it began before the reset, which may leave any state behind
    world.settle(ACT.deadlines.reset_s)
    assert world.rung("n0") == "Reboot"
    assert world.tainted() == {"n0"}
    world.finish_steps()
    world.settle(1.0)
    world.test("n0")
    world.settle()
    assert world.rung("n0") == "Released"


def test_without_a_provider_what_is_to_be_replaced_goes_to_a_person() -> None:
    world = World()
    world.fault("n0", "replace")
    world.settle()
    assert world.rung("n0") == "NeedsOperator"
    assert "replace" in world.session("n0").status.message
    assert not any(isinstance(each, ReplaceMachine) for each in world.done)


@pytest.mark.parametrize("action", ["reset-gpu", "reboot"])
def test_a_machine_that_does_nothing_in_time_leads_further(action: HealthAction) -> None:
    world = World()
    world.fault("n0", action)
    world.settle()
    before = world.rung("n0")
    world.settle(2000.0)
    assert (before, world.rung("n0")) in (("ResetGPU", "Reboot"), ("Reboot", "NeedsOperator"))


def test_pods_that_never_leave_go_to_a_person_with_the_node_still_in_quarantine() -> None:
    world = World()
    world.pods["n0"] = [pod("guarded", refused="its budget", retry_at=float("inf"))]
    world.fault("n0", "reboot")
    world.settle()
    world.settle(ACT.deadlines.drain_s)
    assert world.rung("n0") == "NeedsOperator"
    assert world.tainted() == {"n0"}
    assert world.pods["n0"]
    assert not world.steps


def test_two_budgets_on_one_pod_go_to_a_person_at_once() -> None:
    world = World()
    text = "more than one PodDisruptionBudget"
    world.pods["n0"] = [pod("twice", refused=text, retry_at=float("inf"), hopeless=True)]
    world.fault("n0", "drain")
    world.settle()
    assert world.rung("n0") == "NeedsOperator"
    assert text in world.session("n0").status.message


def test_no_gpu_is_reset_where_there_is_none() -> None:
    world = World(gpus=0)
    world.fault("n0", "reset-gpu")
    world.settle()
    assert world.rung("n0") == "Reboot"


def test_foreign_cordon_and_its_machine_are_left_alone() -> None:
    world = World()
    world.nodes["n0"] = replace(world.nodes["n0"], cordoned=True)
    world.pods["n0"] = [pod("moves")]
    world.fault("n0", "reboot")
    world.settle()
    assert world.rung("n0") == "NeedsOperator"
    assert not world.steps
    assert not world.pods["n0"]
    assert world.nodes["n0"].cordoned


def test_a_node_that_opted_out_is_not_touched() -> None:
    world = World()
    world.nodes["n0"] = replace(world.nodes["n0"], ignored=True)
    world.fault("n0", "reboot")
    world.settle()
    assert not world.done
    world.nodes["n0"] = replace(world.nodes["n0"], ignored=False)
    world.settle()
    assert world.rung("n0") == "Reboot"
    world.nodes["n0"] = replace(world.nodes["n0"], ignored=True, tainted=False)
    world.settle(10_000.0)
    assert not world.tainted(), "what a user takes away of an ignored node stays away"


def test_by_default_nothing_but_the_object_says_what_was_found() -> None:
    world = World(config=RemediationConfig())
    world.fault("n0", "reboot")
    world.settle()
    assert world.rung("n0") == "Observe"
    assert "Reboot" in world.session("n0").status.message
    assert not world.tainted()
    assert not world.nodes["n0"].conditions
    del world.evidence["n0"]
    world.settle(1.0)
    assert world.rung("n0") == "Released"


def test_a_dry_run_says_what_budgets_would_allow_and_does_nothing() -> None:
    world = World(config=RemediationConfig(mode="dry-run", shared=SharedFaults(nodes=0)))
    for name in ("n0", "n1", "n2"):
        world.fault(name, "reboot")
    world.settle()
    messages = [world.session(name).status.message for name in ("n0", "n1", "n2")]
    assert ["would go into quarantine now" in each for each in messages] == [True, True, False]
    assert "breaker" in messages[2]
    assert not world.tainted()


def test_paused_nothing_is_begun_and_nothing_is_changed() -> None:
    world = World()
    world.fault("n0", "reboot")
    world.settle()
    world.config = replace(ACT, pause=True)
    world.fault("n1", "reboot")
    before = len(world.done)
    world.finish_steps()
    world.settle(10_000.0)
    assert len(world.done) == before
    assert world.plan.held == {"Paused": 2}


def test_a_shared_fault_stops_at_a_person_once() -> None:
    world = World(40)
    for number in range(20):
        world.fault(f"n{number}", "reboot", "950")
    world.settle()
    assert not world.tainted()
    assert world.rungs() == {"NeedsOperator": 20}
    world.fault("n30", "reboot", "950")
    world.fault("n31", "reboot", "79")
    world.settle(30.0)
    assert world.tainted() == {"n31"}, "a fault of its own is another matter"
    reported = [each.event for each in world.done if isinstance(each, Open | Move) and each.event is not None]
    reported = [each for each in reported if each.reason == "SharedFault"]
    assert len(reported) == 1
    assert "xid/950" in reported[0].message
    world.settle(5000.0)
    assert world.tainted() == {"n31"}, "nor are they drained once the moment has passed"


def test_nodes_that_went_before_a_fault_was_known_to_be_shared_stay_but_are_not_drained() -> None:
    calm = replace(ACT, working=WorkLimits(all=0))
    world = World(40, calm)
    world.fault("n0", "reboot", "950")
    world.settle()
    assert world.rung("n0") == "Quarantine"
    for number in range(1, 6):
        world.fault(f"n{number}", "reboot", "950")
    world.settle(1.0)
    assert world.rung("n0") == "NeedsOperator"
    assert world.tainted() == {"n0"}


def test_joining_nodes_do_not_count_and_do_not_trip_the_breaker() -> None:
    world = World(20, replace(ACT, shared=SharedFaults(nodes=0)))
    for number in range(10, 20):
        world.nodes[f"n{number}"] = replace(world.nodes[f"n{number}"], joining=True)
        world.fault(f"n{number}", "quarantine", f"5{number}")
    world.settle()
    assert len(world.tainted()) == 10
    world.fault("n0", "quarantine")
    world.fault("n1", "quarantine")
    world.fault("n2", "quarantine")
    world.settle()
    assert len(world.tainted() - {f"n{number}" for number in range(10, 20)}) == 2, "10% of ten, and two always"


def test_the_breaker_of_one_pool_leaves_another_alone_and_closes_with_time() -> None:
    config = replace(ACT, breaker=Breaker(share="10%", nodes=1, window_s=600), shared=SharedFaults(nodes=0))
    world = World(20, config)
    for number in range(20):
        name = f"n{number}"
        world.nodes[name] = replace(world.nodes[name], pool="a" if number < 10 else "b")
    for name in ("n0", "n1", "n10"):
        world.fault(name, "quarantine", name)
    world.settle()
    assert world.tainted() == {"n0", "n10"}
    assert "breaker" in world.session("n1").status.message
    assert world.plan.held == {"Breaker": 1}
    world.settle(601.0)
    assert world.tainted() == {"n0", "n1", "n10"}


def test_the_breaker_counts_nodes_that_are_gone() -> None:
    world = World(10, replace(ACT, breaker=Breaker(nodes=1), shared=SharedFaults(nodes=0)))
    world.fault("n0", "quarantine", "1")
    world.settle()
    del world.nodes["n0"]
    del world.evidence["n0"]
    world.fault("n1", "quarantine", "2")
    world.settle()
    assert not world.tainted()


def test_budgets_of_work_hold_nodes_in_quarantine() -> None:
    config = replace(
        ACT, breaker=Breaker(share="100%"), quarantined=Limits(all="100%", pool="100%", team="100%"),
        working=WorkLimits(all=3, pool=3, team=1), shared=SharedFaults(nodes=0),
    )  # fmt: skip
    world = World(10, config)
    for number in range(6):
        name = f"n{number}"
        world.nodes[name] = replace(world.nodes[name], team="red" if number < 4 else "")
        world.fault(name, "reboot")
    world.settle()
    assert len(world.tainted()) == 6
    assert world.rungs() == {"Reboot": 3, "Quarantine": 3}
    assert sum(world.rung(f"n{number}") == "Reboot" for number in range(4)) == 1


def test_recreated_node_of_the_same_name_is_another_session() -> None:
    world = World()
    world.fault("n0", "reboot")
    world.settle()
    old = world.session("n0").name
    world.remake("n0", "another-uid")
    world.settle(1.0)
    assert world.sessions[old].status.state == "Released"
    assert "another one" in world.sessions[old].status.message
    assert not world.tainted(), "the new node is judged by what is found on it"
    world.fault("n0", "quarantine")
    world.settle()
    assert world.session("n0").name != old
    assert world.tainted() == {"n0"}


def test_a_dead_node_is_emptied_without_waiting_for_a_spare_or_for_its_kubelet() -> None:
    world = World()
    world.dead["n0"] = "its Lease stands still, and n1, n2 cannot reach it"
    world.nodes["n0"] = replace(world.nodes["n0"], ready=False)
    world.pods["n0"] = [pod("rank-0", gang="ns/g")]
    world.gangs["n0"] = frozenset({"ns/g"})
    world.settle()
    assert [each.gang for each in world.done if isinstance(each, Evict)] == ["ns/g"]
    assert world.rung("n0") == "NeedsOperator"
    assert world.tainted() == {"n0"}


@pytest.mark.parametrize("found", [False, True])
def test_a_machine_that_may_only_be_booting_is_not_replaced(found: bool) -> None:
    """Servers with GPUs take minutes to boot: their gangs leave at once, the machine is not given away for that."""
    world = World()
    world.replaceable = frozenset(world.nodes)
    if found:
        world.fault("n0", "reset-gpu")
    else:
        world.dead["n0"] = "its Lease stands still, and n1, n2 cannot reach it"
    world.nodes["n0"] = replace(world.nodes["n0"], ready=False)
    world.pods["n0"] = [pod("rank-0", gang="ns/g")]
    world.gangs["n0"] = frozenset({"ns/g"})
    world.settle()
    world.settle(ACT.spare_s)
    assert not world.pods["n0"]
    assert world.rung("n0") == "Drain"
    assert "time to boot" in world.session("n0").status.message
    world.settle(ACT.deadlines.reboot_s - ACT.spare_s - 60.0)
    assert not [each for each in world.done if isinstance(each, ReplaceMachine)]
    world.now += ACT.spare_s + 60.0
    for _ in range(2):
        world.step()
    assert world.rung("n0") == "Replace"
    assert [each for each in world.done if isinstance(each, ReplaceMachine)]


def test_a_machine_that_passed_its_newest_test_is_not_replaced() -> None:
    """The clock of a leader is ahead: by it the test ended before the session was opened, and does not let it back."""
    world = World()
    world.replaceable = frozenset(world.nodes)
    world.now -= 40.0
    world.fault("n0", "replace")
    world.now += 40.0
    world.step()
    while world.rung("n0") != "Replace":
        world.step()
    world.now -= 20.0
    world.test("n0")
    world.settle(20.0)
    assert world.rung("n0") == "Replace"
    assert not [each for each in world.done if isinstance(each, ReplaceMachine)]
    world.test("n0")
    world.settle()
    assert world.rung("n0") == "Released"


def test_that_a_gang_waits_for_a_spare_is_said_once_it_has_waited_for_a_while() -> None:
    world = World()
    world.pods["n0"] = [pod("rank-on-n0", gang="ns/g")]
    world.gangs["n0"] = frozenset({"ns/g"})
    world.fault("n0", "reboot", "n0")
    world.settle()
    assert "spare" not in world.session("n0").status.message
    world.settle(SILENT_S)
    assert "ns/g waits for a spare" in world.session("n0").status.message


def test_a_gang_leaves_its_nodes_at_once_and_after_its_spares_are_kept() -> None:
    world = World()
    for name in ("n0", "n1"):
        world.pods[name] = [pod(f"rank-on-{name}", gang="ns/g")]
        world.gangs[name] = frozenset({"ns/g"})
        world.fault(name, "reboot", name)
    world.settle()
    assert not [each for each in world.done if isinstance(each, Evict)]
    assert world.plan.spares_for == {"ns/g": ("n0", "n1")}
    world.free = frozenset({"n8", "n9"})
    world.step()
    assert dict(world.plan.kept) == {"n8": "ns/g", "n9": "ns/g"}
    assert not [each for each in world.done if isinstance(each, Evict)], "others of its nodes may break as well"
    world.now += SETTLE_S
    world.step()
    [left] = [each for each in world.done if isinstance(each, Evict)]
    assert {each.name for each in left.pods} == {"rank-on-n0", "rank-on-n1"}
    assert world.plan.going == {"ns/g"}
    world.settle()
    assert world.plan.going == set()
    assert record.last(world.session("n0").status, "SpareReserved") is not None


def test_a_gang_goes_without_a_spare_in_the_end() -> None:
    world = World()
    world.pods["n0"] = [pod("rank", gang="ns/g")]
    world.fault("n0", "reboot")
    world.settle()
    assert world.pods["n0"]
    world.settle(ACT.spare_s)
    assert not world.pods["n0"]


def test_spares_are_like_the_node_they_are_for() -> None:
    world = World(5)
    world.nodes["n1"] = replace(world.nodes["n1"], pool="other")
    world.nodes["n2"] = replace(world.nodes["n2"], cordoned=True)
    world.nodes["n3"] = replace(world.nodes["n3"], taints=frozenset({"example.com/owner"}))
    world.free = frozenset({"n1", "n2", "n3", "n4"})
    world.pods["n0"] = [pod("rank", gang="ns/g")]
    world.gangs["n0"] = frozenset({"ns/g"})
    world.fault("n0", "reboot")
    kept = [dict(world.step().kept) for _ in range(4)]
    assert {"n4": "ns/g"} in kept
    assert all(set(each) <= {"n4"} for each in kept)


def test_removed_taint_returns_and_foreign_taints_stay() -> None:
    world = World()
    world.fault("n0", "quarantine")
    world.settle()
    world.nodes["n0"] = replace(world.nodes["n0"], tainted=False)
    world.settle()
    assert world.tainted() == {"n0"}
    world.nodes["n1"] = replace(world.nodes["n1"], tainted=True)  # by a person, without a record of ours
    world.test("n1")
    world.settle()
    assert world.tainted() == {"n0", "n1"}


# What others had wrong


def test_a_session_that_ended_is_not_taken_up_again_by_a_new_controller_1347() -> None:
    """NVSentinel#1347, #1280: after a restart events of ended quarantines were worked on again."""
    world = World()
    world.fault("n0", "reboot")
    world.settle()
    world.finish_steps()
    world.settle(1.0)
    world.test("n0")
    world.settle()
    before = len(world.done)
    world.settle(3600.0)  # all a new controller has is what is written
    assert len(world.done) == before
    assert not world.tainted()


def test_evidence_from_before_the_release_drains_nothing_1415() -> None:
    """NVSentinel#1415: an event that came while the node was in quarantine was drained for after its release."""
    world = World()
    world.fault("n0", "drain")
    world.settle()
    world.fault("n0", "drain", "48")  # a second one meanwhile
    world.settle(1.0)
    world.test("n0")  # clears both: they were seen before it
    world.settle()
    world.pods["n0"] = [pod("new-work")]
    world.settle(60.0)
    assert world.rung("n0") == "Released"
    assert world.pods["n0"]


def test_a_fresh_fault_after_a_release_is_not_cancelled_by_it_1451() -> None:
    """NVSentinel#1451: the release of one quarantine cancelled the next one, which came before it was cleaned up."""
    world = World()
    world.fault("n0", "reboot")
    world.settle()
    world.finish_steps()
    world.settle(1.0)
    world.test("n0")
    world.step(lambda action: not isinstance(action, Release))  # released, and the taint is still there
    world.now += 1
    world.fault("n0", "reboot", "48")
    world.settle()
    assert world.rung("n0") == "Reboot"
    assert world.tainted() == {"n0"}
    mark = world.nodes["n0"].record
    assert mark is not None
    stale = Release(node=world.nodes["n0"], session=mark.session, generation=mark.generation - 1)
    assert stale.generation < mark.generation, "which the shell does not carry out"


def test_a_taint_on_its_way_back_does_not_hold_its_own_node_back() -> None:
    """It fills the budget until it is gone, and is not taken away while the node is to stay out."""
    world = World(1, replace(ACT, quarantined=Limits(all=1, pool=1, team=1)))
    world.fault("n0", "quarantine")
    world.settle()
    world.test("n0")
    world.step(lambda action: not isinstance(action, Release))
    world.now += 1
    world.fault("n0", "quarantine", "31")
    world.settle()
    assert world.rung("n0") == "Quarantine"


def test_a_fault_seen_twice_is_remedied_once_1417_1532() -> None:
    """NVSentinel#1417, #1532: logs read again tell of the same incident again; it is one session, and one reboot."""
    world = World()
    world.fault("n0", "reboot")
    first = world.evidence["n0"]
    world.settle()
    world.finish_steps()
    world.settle(1.0)
    world.evidence["n0"] = first  # reported again by an agent that restarted
    world.settle(1.0)
    assert len([each for each in world.done if isinstance(each, RunStep)]) == 1
    world.test("n0")
    world.settle()
    assert len(world.sessions) == 1
    assert world.rung("n0") == "Released"


def test_quarantine_is_written_before_any_other_report_on_the_node() -> None:
    world = World(4)
    world.fault("n0", "quarantine")
    assert type(world.step().actions[0]) is Quarantine


@pytest.mark.parametrize("gone", [False, True])
def test_a_taint_that_was_put_and_not_written_down_is_taken_up_and_counted(gone: bool) -> None:
    """The controller is killed right after the taint; what asked for it may be gone by then."""
    config = replace(ACT, breaker=Breaker(nodes=1), shared=SharedFaults(nodes=0))
    world = World(10, config)
    world.fault("n0", "quarantine")
    world.step(lambda action: isinstance(action, Quarantine))
    assert world.tainted() == {"n0"}
    assert not world.sessions
    if gone:
        del world.evidence["n0"]
    world.fault("n1", "quarantine", "48")
    world.settle(1.0)
    assert world.rung("n0") == "Quarantine"
    assert world.tainted() == {"n0"}, "the breaker counts it"
    world.test("n0")
    world.settle()
    assert world.rung("n0") == "Released"
    assert not world.tainted()


def test_a_new_node_has_no_session() -> None:
    world = World(1)
    world.nodes["late"] = NodeView(name="late", uid="u")
    world.settle()
    assert not world.sessions


def test_observing_restores_nothing_that_was_removed() -> None:
    world = World()
    world.fault("n0", "quarantine")
    world.settle()
    world.config = RemediationConfig()
    world.nodes["n0"] = replace(world.nodes["n0"], tainted=False, record=None)
    world.settle(60.0)
    assert not world.tainted()
    assert world.plan.held == {"Observing": 1}
