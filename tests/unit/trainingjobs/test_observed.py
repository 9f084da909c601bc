"""Timestamps of other machines, whose clocks may be hours off."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from muster.kube.objects.pod import PodStatus
from muster.trainingjobs.cache import NEVER, renewed
from muster.trainingjobs.observed import Observed
from tests.unit.trainingjobs.world import T0, World, make_job, make_node, moment

HOUR_S = 3600.0


@pytest.mark.parametrize("off_s", [HOUR_S, -HOUR_S])
def test_a_kubelet_whose_clock_is_off_has_ten_minutes_to_start_a_pod(off_s: float) -> None:
    world = World(make_job(2, backoffLimit=0))
    world.until("Starting")
    pod = world.holder(1)
    stuck = PodStatus(phase="Pending", start_time=moment(world.now + off_s))

    def wait(seconds: float) -> None:
        until = world.now + seconds
        while world.now < until:
            world.control()
            world.step(20)
            if pod.name in world.pods:
                world.pods[pod.name] = replace(world.pods[pod.name], status=stuck)
                world.members.pop(pod.uid, None)

    wait(560)
    assert world.status.attempt == 1
    wait(80)
    assert [fault.rule for fault in world.status.faults] == ["never-started"]


@pytest.mark.parametrize("off_s", [HOUR_S, -HOUR_S])
def test_a_node_whose_clock_is_off_is_lost_after_the_same_time(off_s: float) -> None:
    world = World(make_job(2), nodes=3).started()
    node = world.holder(1).spec.node_name
    world.restart_controller()
    world.dead.add(node)
    world.nodes[node] = make_node(node, ready=False, since=world.now + off_s)
    for _ in range(40):
        world.step()
        world.control()
    assert world.status.attempt == 1
    for _ in range(10):
        world.step()
        world.control()
    assert [fault.rule for fault in world.status.faults] == ["node-lost"]


def test_outdated_facts_are_counted_again() -> None:
    observed = Observed()
    ready, broken = make_node("a"), make_node("a", ready=False)
    assert observed.look("job", (), {"a": broken}, 1.0) == {("a", "notReady"): 1.0}
    assert observed.look("job", (), {"a": broken}, 5.0) == {("a", "notReady"): 1.0}
    assert observed.look("job", (), {"a": ready}, 6.0) == {}
    assert observed.look("job", (), {"a": broken}, 7.0) == {("a", "notReady"): 7.0}


def test_a_lease_that_changed_was_alive_after_the_look_before() -> None:
    clock = timedelta(hours=-5)
    first = renewed(NEVER, moment(T0) + clock, T0 + 1)
    assert first.alive_at == 0  # nothing is known: that clock cannot be right
    second = renewed(first, moment(T0) + clock, T0 + 4)
    assert second.alive_at == 0
    third = renewed(second, moment(T0 + 5) + clock, T0 + 6.5)
    assert third.alive_at == T0 + 4  # after the look before, maybe only just


def test_a_change_since_long_ago_says_nothing_of_now() -> None:
    old = renewed(NEVER, moment(T0), T0 + 1)
    assert old.alive_at == T0
    assert renewed(old, moment(T0 + 80), T0 + 100).alive_at == T0 + 80  # the node's own word
    assert renewed(old, moment(T0 + 80 - HOUR_S), T0 + 100).alive_at == 0
