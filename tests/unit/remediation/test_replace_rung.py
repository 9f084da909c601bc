"""The rung replace."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from muster.fleet.remediation.plan import ReplaceMachine
from tests.unit.remediation.remediationworld import ACT, World, pod


def test_without_a_provider_what_is_to_be_replaced_goes_to_a_person() -> None:
    world = World()
    world.fault("n0", "replace")
    world.settle()
    assert world.rung("n0") == "NeedsOperator"
    assert "replace" in world.session("n0").status.message
    assert not any(isinstance(each, ReplaceMachine) for each in world.done)


@pytest.mark.parametrize("found", [False, True])
def test_a_machine_that_may_only_be_booting_is_not_replaced(found: bool) -> None:
    """Servers with GPUs take minutes to boot: their gangs leave at once, the machine is not given away for that."""
    world = World()
    world.replaceable = frozenset(world.nodes)
    if found:
        world.fault("n0", "reset-gpu")
    else:
        world.dead["n0"] = "its Lease is not renewed, and n1, n2 cannot reach it"
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
    for _ in range(3):
        world.step()
    assert world.rung("n0") == "Replace"
    assert [each for each in world.done if isinstance(each, ReplaceMachine)]


def test_a_node_whose_replacement_was_requested_is_not_released_by_a_test() -> None:
    """Seed 6004: the provider deleted the machine 15 s after the request. A test had let the node back into use."""
    world = World()
    world.replaceable = frozenset(world.nodes)
    world.fault("n0", "replace")
    for _ in range(12):
        world.step()
    session = world.session("n0")
    assert session.status.history[-1].event == "ReplaceRequested"
    assert [each for each in world.done if isinstance(each, ReplaceMachine)]
    world.now += 10.0
    world.test("n0")
    world.step()
    assert (world.rung("n0"), world.tainted()) == ("Replace", {"n0"})
    world.now += ACT.deadlines.replace_s
    world.step()
    assert world.rung("n0") == "NeedsOperator"
    world.now += 10.0
    world.test("n0")
    world.settle()
    assert world.tainted() == set(), "the request has had its time"


def test_no_replacement_is_requested_before_the_session_says_so() -> None:
    """A leader that takes over must know that the machine may go at any moment."""
    world = World()
    world.replaceable = frozenset(world.nodes)
    world.fault("n0", "replace")
    while not any(isinstance(each, ReplaceMachine) for each in world.done):
        world.step()
        asked = [step.event for step in world.session("n0").status.history].count("ReplaceRequested")
        assert asked or not any(isinstance(each, ReplaceMachine) for each in world.done)


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
