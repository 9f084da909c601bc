"""The rungs reset and reboot."""

from __future__ import annotations

import pytest

from muster.fleet.health.policy import Action as HealthAction
from muster.fleet.remediation.ladder import record
from muster.fleet.remediation.plan import RunStep
from tests.unit.remediation.remediationworld import ACT, World


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


@pytest.mark.parametrize("action", ["reset-gpu", "reboot"])
def test_a_machine_that_does_nothing_in_time_leads_further(action: HealthAction) -> None:
    world = World()
    world.fault("n0", action)
    world.settle()
    before = world.rung("n0")
    world.settle(2000.0)
    assert (before, world.rung("n0")) in (("ResetGPU", "Reboot"), ("Reboot", "NeedsOperator"))


def test_no_gpu_is_reset_where_there_is_none() -> None:
    world = World(gpus=0)
    world.fault("n0", "reset-gpu")
    world.settle()
    assert world.rung("n0") == "Reboot"
