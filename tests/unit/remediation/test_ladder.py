"""Each rung of the ladder: what leads to it, what is done on it, what leads on and out."""

from __future__ import annotations

from msgspec.structs import replace

from muster.fleet.remediation.plan import Release, ReplaceMachine, RunStep
from muster.fleet.remediation.snapshot import RemediationNode
from tests.unit.remediation.remediationworld import ACT, World, pod


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
    for _ in range(3):
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


def test_recreated_node_of_the_same_name_is_another_session() -> None:
    world = World()
    world.fault("n0", "reboot")
    world.settle()
    old = world.session("n0").name
    world.remake("n0", "another-uid")
    world.settle(1.0)
    assert world.sessions[old].status.state == "Released"
    assert "was recreated" in world.sessions[old].status.message
    assert not world.tainted(), "the new node is judged by what is found on it"
    world.fault("n0", "quarantine")
    world.settle()
    assert world.session("n0").name != old
    assert world.tainted() == {"n0"}


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


def test_a_new_node_has_no_session() -> None:
    world = World(1)
    world.nodes["late"] = RemediationNode(name="late", uid="u")
    world.settle()
    assert not world.sessions
