"""What goes into a record: when a test ended, whatever its node's clock says, and how many GPUs there were before."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from muster.api.preflight import GpuFigures
from muster.fleet.preflight.plan import Accept, Remove
from muster.fleet.preflight.snapshot import End
from tests.unit.preflight.world import START, World, record


def ended(world: World, *, at_s: float, passed: bool = True, gpus: int = 0) -> None:
    """The test of node a ends, by its node's clock at that moment."""
    test = world.run_test("a") if not world.test_of("a").started_at else world.test_of("a")  # type: ignore[union-attr]
    assert test is not None
    figures = tuple(GpuFigures(uuid=f"GPU-{n}", name="H200", pci_address=f"0000:0{n}:00.0") for n in range(gpus))
    said = replace(record(world.nodes["a"], at_s, passed=passed), figures=figures)
    world.tests[test.name] = replace(test, end=End(said))


def written(world: World) -> float:
    found = world.nodes["a"].record
    assert found is not None
    return found.time.timestamp()


@pytest.mark.parametrize(
    ("by_its_clock", "is_written"),
    [(50.0, 50.0), (3600.0, 60.0), (-3600.0, 0.0)],
    ids=["the same clock", "an hour ahead", "an hour behind"],
)
def test_a_test_never_ended_after_it_is_heard_of_nor_before_it_began(by_its_clock: float, is_written: float) -> None:
    world = World()
    world.add("a")
    world.step()
    world.now = START + 60.0
    ended(world, at_s=START + by_its_clock)
    world.step()
    assert written(world) == START + is_written


def test_a_result_that_was_written_is_not_written_again_as_a_later_one() -> None:
    """Its pod could not be deleted yet: what was found meanwhile is not what it cleared."""
    world = World()
    world.add("a")
    world.step()
    world.now += 60.0
    ended(world, at_s=START + 3600.0)
    test = world.test_of("a")
    assert test is not None
    world.step()
    world.now += 600.0
    world.tests[test.name] = replace(world.tests.get(test.name, test), end=test.end)
    plan = world.step()
    assert written(world) == START + 60.0
    assert any(isinstance(each, Remove) for each in plan.actions)
    assert not any(isinstance(each, Accept) for each in plan.actions)


def test_a_clock_that_is_set_back_hides_no_failure() -> None:
    world = World()
    world.add("a")
    world.step()
    world.now += 60.0
    ended(world, at_s=world.now + 7200.0)  # two hours ahead
    world.step()
    world.settle()
    world.now += 1000.0
    world.change("a", wanted_since=world.now)
    world.step()
    world.now += 60.0
    ended(world, at_s=world.now, passed=False)
    world.step()
    found = world.nodes["a"].record
    assert found is not None
    assert not found.passed


def test_a_node_that_lost_a_gpu_does_not_pass_with_those_that_are_left() -> None:
    """After a reboot one is off the bus: the device plugin announces seven, and all seven are well."""
    world = World()
    world.add("a")
    world.step()
    world.now += 60.0
    ended(world, at_s=world.now, gpus=8)
    world.settle()
    world.reboot("a", "boot-2")
    world.change("a", gpus=7)
    for again in range(2):  # and not the second time either
        world.change("a", wanted_since=world.now)
        world.step()
        world.now += 60.0 + again * 400.0
        ended(world, at_s=world.now, gpus=7)
        world.step()
        found = world.nodes["a"].record
        assert found is not None
        assert not found.passed
        assert "7 GPUs were tested, and the node had 8" in found.failures[-1].message
        world.now += 400.0
    world.change("a", record=None, wanted_since=world.now)  # a person says that it has seven now
    world.step()
    world.now += 60.0
    ended(world, at_s=world.now, gpus=7)
    world.step()
    found = world.nodes["a"].record
    assert found is not None
    assert found.passed


def test_a_node_is_not_tested_over_and_over_because_a_persons_clock_is_ahead() -> None:
    """Their `release` names a moment to come, and what ends before it lets no node out."""
    world = World()
    world.add("a", quarantined=True, wanted_since=START + 3600.0)
    for _ in range(10):
        plan = world.step()
        assert not world.tests
        assert plan.wake_at == START + 3600.0
        world.now += 60.0
    world.now = START + 3600.0
    world.step()
    assert world.test_of("a") is not None
