"""The rung drain: pods and gangs leave before anything is done to their node."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from muster.fleet.health.policy import Action as HealthAction
from muster.fleet.remediation.draining.drain import SETTLE_S, SILENT_S
from muster.fleet.remediation.ladder import record
from muster.fleet.remediation.plan import Evict
from tests.unit.remediation.remediationworld import ACT, World, pod


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


def test_a_dead_node_is_emptied_without_waiting_for_a_spare_or_for_its_kubelet() -> None:
    world = World()
    world.dead["n0"] = "its Lease is not renewed, and n1, n2 cannot reach it"
    world.nodes["n0"] = replace(world.nodes["n0"], ready=False)
    world.pods["n0"] = [pod("rank-0", gang="ns/g")]
    world.gangs["n0"] = frozenset({"ns/g"})
    world.settle()
    assert [each.gang for each in world.done if isinstance(each, Evict)] == ["ns/g"]
    assert world.rung("n0") == "NeedsOperator"
    assert world.tainted() == {"n0"}


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
    world.nodes["n3"] = replace(world.nodes["n3"], keeps_away=frozenset({"example.com/owner"}))
    world.free = frozenset({"n1", "n2", "n3", "n4"})
    world.pods["n0"] = [pod("rank", gang="ns/g")]
    world.gangs["n0"] = frozenset({"ns/g"})
    world.fault("n0", "reboot")
    kept = [dict(world.step().kept) for _ in range(4)]
    assert {"n4": "ns/g"} in kept
    assert all(set(each) <= {"n4"} for each in kept)
