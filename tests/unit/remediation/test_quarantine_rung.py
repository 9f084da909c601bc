"""The rung quarantine: its taint, and the tests that let a node out."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from muster.api.names import remediation_name
from muster.fleet.remediation.config import Breaker, Limits, SharedFaults
from muster.fleet.remediation.plan import Quarantine, Release
from tests.unit.remediation.remediationworld import ACT, World, pod


def test_a_leftover_taint_goes_when_the_breaker_holds_the_reopened_session() -> None:
    world = World(10, replace(ACT, breaker=Breaker(nodes=1), shared=SharedFaults(nodes=0)))
    world.fault("n0", "quarantine")
    world.settle()
    tainted = world.nodes["n0"]
    world.test("n0")
    world.settle()
    world.nodes["n0"] = replace(world.nodes["n0"], quarantined=True, record=tainted.record)  # this write had failed
    world.fault("n0", "quarantine", code="48")  # the breaker has counted its one node
    world.settle()
    assert world.rung("n0") == "Condition"
    assert "not in quarantine" in world.sessions[remediation_name("n0", world.nodes["n0"].uid)].status.message
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


def test_removed_taint_returns_and_foreign_taints_stay() -> None:
    world = World()
    world.fault("n0", "quarantine")
    world.settle()
    world.nodes["n0"] = replace(world.nodes["n0"], quarantined=False)
    world.settle()
    assert world.tainted() == {"n0"}
    world.nodes["n1"] = replace(world.nodes["n1"], quarantined=True)  # by a person, without a record of ours
    world.test("n1")
    world.settle()
    assert world.tainted() == {"n0", "n1"}


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
