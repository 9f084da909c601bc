"""Nodes that are only observed: modes, opting out, pausing."""

from __future__ import annotations

from typing import Literal

import pytest
from msgspec.structs import replace

from muster.fleet.remediation.config import RemediationConfig, SharedFaults
from muster.fleet.remediation.decide import HARDWARE
from muster.fleet.remediation.plan import Release
from tests.unit.remediation.remediationworld import ACT, World


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


def test_a_node_that_opted_out_is_not_touched() -> None:
    world = World()
    world.nodes["n0"] = replace(world.nodes["n0"], ignored=True)
    world.fault("n0", "reboot")
    world.settle()
    assert not world.done
    world.nodes["n0"] = replace(world.nodes["n0"], ignored=False)
    world.settle()
    assert world.rung("n0") == "Reboot"
    world.nodes["n0"] = replace(world.nodes["n0"], ignored=True, quarantined=False)
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


def test_observing_restores_nothing_that_was_removed() -> None:
    world = World()
    world.fault("n0", "quarantine")
    world.settle()
    world.config = RemediationConfig()
    world.nodes["n0"] = replace(world.nodes["n0"], quarantined=False, record=None)
    world.settle(60.0)
    assert not world.tainted()
    assert world.plan.held == {"Observing": 1}
