"""What people ask for: a node out of use stays out until a user asks for its release and a later test is passed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from muster.api.names import remediation_name
from muster.api.node_remediation import NodeRemediation, NodeRemediationSpec, RemediationRequest, RequestedAction
from muster.fleet.remediation.config import Breaker, Limits, RemediationConfig, SharedFaults
from muster.fleet.remediation.ladder import record
from muster.kube.objects.meta import ObjectMeta
from tests.unit.remediation.remediationworld import ACT, World

OBSERVE = RemediationConfig()
FULL = RemediationConfig(mode="act", breaker=Breaker(share="0%", nodes=0), quarantined=Limits(all=0, pool=0, team=0))


def ask(world: World, name: str, action: RequestedAction) -> None:
    """As `muster nodes quarantine|release` does."""
    node = world.nodes[name]
    request = RemediationRequest(action=action, by="ada", time=record.at(world.now), reason="a cable")
    known = world.sessions.get(remediation_name(name, node.uid))
    session = known or NodeRemediation(
        metadata=ObjectMeta(name=remediation_name(name, node.uid), resource_version="0"),
        spec=NodeRemediationSpec(node=name, node_uid=node.uid),
    )
    world.sessions[session.name] = replace(session, spec=replace(session.spec, request=request))


@pytest.mark.parametrize("config", [OBSERVE, ACT, FULL], ids=["observe", "act", "no budget"])
def test_a_node_that_a_person_wants_out_is_out_whatever_the_mode_and_the_budgets(config: RemediationConfig) -> None:
    world = World(config=config)
    ask(world, "n0", "Quarantine")
    world.settle()
    assert world.tainted() == {"n0"}
    assert world.rung("n0") == "Quarantine"
    (session,) = world.sessions.values()
    assert session.status.history[-1].reason == "asked for by ada: a cable"


@pytest.mark.parametrize("config", [OBSERVE, ACT], ids=["observe", "act"])
def test_it_stays_out_through_passed_and_failed_tests_until_its_release_is_asked_for(
    config: RemediationConfig,
) -> None:
    world = World(config=config)
    ask(world, "n0", "Quarantine")
    world.settle()
    world.test("n0")
    world.settle(10 * 86400.0)
    world.test("n0", passed=False)
    world.settle()
    world.test("n0")
    world.settle()
    assert (world.rung("n0"), world.tainted()) == ("Quarantine", {"n0"})
    world.now += 1.0
    ask(world, "n0", "Release")
    world.settle()
    assert world.tainted() == {"n0"}, "the test it passed is from before"
    world.test("n0")
    world.settle()
    assert (world.rung("n0"), world.tainted()) == ("Released", set())


def test_a_node_that_was_handed_to_a_person_comes_back_after_a_test_that_they_asked_for() -> None:
    world = World()
    world.fault("n0", "human")
    world.settle()
    assert world.rung("n0") == "NeedsOperator"
    world.test("n0", passed=False)
    del world.evidence["n0"]
    world.settle()
    ask(world, "n0", "Release")
    world.settle()
    assert world.rung("n0") == "NeedsOperator"
    world.test("n0")
    world.settle()
    assert world.rung("n0") == "Released"


def test_a_node_that_is_asked_out_again_after_its_release_goes_out_again() -> None:
    world = World(config=OBSERVE)
    for _ in range(2):
        ask(world, "n0", "Quarantine")
        world.settle()
        assert world.tainted() == {"n0"}
        world.now += 1.0
        ask(world, "n0", "Release")
        world.test("n0")
        world.settle()
        assert not world.tainted()


def test_nothing_is_tried_on_a_node_that_a_person_keeps_out() -> None:
    world = World()
    ask(world, "n0", "Quarantine")
    world.settle()
    world.fault("n0", "reboot")
    world.settle(86400.0)
    assert world.rung("n0") == "Quarantine"
    assert not world.steps


def test_operator_releases_a_node_without_gpus() -> None:
    world = World(gpus=0)
    world.fault("n0", "quarantine")
    world.settle()
    assert world.tainted() == {"n0"}
    world.now += 1.0
    ask(world, "n0", "Release")
    world.now += 1.0
    world.fault("n0", "quarantine")
    world.settle()
    assert world.tainted() == {"n0"}, "what was found after that is another matter"
    world.now += 1.0
    ask(world, "n0", "Release")
    world.step()
    del world.evidence["n0"]  # what was seen before the release counts no more (evidence.py)
    world.settle()
    assert (world.rung("n0"), world.tainted()) == ("Released", set())


def test_the_breaker_counts_a_node_that_a_person_took_out_in_its_pool_after_it_is_gone() -> None:
    """Issue 11: `muster nodes quarantine` makes a session without the pool's label (seed 950080)."""
    config = replace(ACT, breaker=Breaker(nodes=1, share="0%"), shared=SharedFaults(nodes=0))
    world = World(10, config, pool="a")
    ask(world, "n0", "Quarantine")
    world.settle()
    world.nodes["n0"] = replace(world.nodes["n0"], uid="another", quarantined=False, record=None)
    world.settle(10.0)
    world.fault("n0", "quarantine")
    world.fault("n1", "quarantine")
    world.settle()
    assert world.tainted() == set(), "one node of the pool went out of use within the window"
    assert "the breaker" in world.session("n1").status.message
    world.settle(config.breaker.window_s)
    assert len(world.tainted()) == 1
