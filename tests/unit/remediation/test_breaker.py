"""The breaker, shared faults and budgets: how much automation may touch at once."""

from __future__ import annotations

from msgspec.structs import replace

from muster.fleet.remediation.config import Breaker, Limits, SharedFaults, WorkLimits
from muster.fleet.remediation.plan import Move, Open
from tests.unit.remediation.remediationworld import ACT, World


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
