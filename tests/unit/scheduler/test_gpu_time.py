"""Issue 13.7: metrics of GPU time: backfilled, idle while gangs wait, and the delay of gangs that take nodes back."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from muster.scheduler.explain.gpu_time import SAMPLE_S, GpuTime
from muster.scheduler.explain.idle_gpus import IdleWhy, idle_gpus
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.metrics import SchedulerMetrics
from muster.scheduler.plan import MarkBound
from tests.unit.scheduler.world import World, node


class Measured(World):
    """A world whose plans are measured, as the controller does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.registry = CollectorRegistry()
        self.gpu_time = GpuTime(SchedulerMetrics(self.registry))

    def decide(self) -> Any:
        plan = super().decide()
        self.gpu_time.look(self.state.snapshot(self.now), plan, self.now)
        return plan

    def wait(self, seconds: float) -> None:
        """Plan every second, as the controller does at least every few."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.run()

    def total(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"muster_scheduler_{name}", labels) or 0.0

    def idle(self, why: IdleWhy) -> float:
        return self.total("idle_while_waiting_gpu_seconds_total", reason=why.value)

    def end(self, gang: str) -> None:
        self.remove_gang(gang)
        self.state.remove_placement(self.placements.pop(f"default/{gang}"))


def idle_now(world: World) -> dict[IdleWhy, int]:
    plan = world.run()
    return dict(idle_gpus(world.state.snapshot(world.now), plan))


def waiting_head(world: World, size: int = 3, **options: Any) -> None:
    world.add_gang("running", 1, **options)
    world.run()
    world.add_gang("head", size, **options)


def test_nothing_is_idle_while_no_gang_waits() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("runs", 1)
    assert idle_now(world) == {}


def test_gangs_without_gpus_that_wait_leave_no_gpu_idle() -> None:
    world = World()
    world.add_nodes("a")
    world.add_pod("filler", {"gpus": 0, "containers": [{"name": "c", "resources": {"limits": {"cpu": "96"}}}]})
    world.run()
    world.add_pod("waits", {"gpus": 0, "containers": [{"name": "c", "resources": {"limits": {"cpu": "96"}}}]})
    assert idle_now(world) == {}


def test_free_nodes_of_the_head_are_reserved_and_the_rest_of_used_nodes_is_fragmented() -> None:
    world = World()
    world.add_nodes("a", "b", "c")
    world.add_pod("part", {"gpus": 3})
    world.run()
    world.add_gang("head", 3)
    assert idle_now(world) == {IdleWhy.RESERVED: 16, IdleWhy.FRAGMENTED: 5}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"ready": False}, IdleWhy.QUARANTINED),
        ({"unschedulable": True}, IdleWhy.QUARANTINED),
        ({"taints": [{"key": "muster.dev/quarantine", "value": "true", "effect": "NoSchedule"}]}, IdleWhy.QUARANTINED),
        ({"taints": [{"key": "muster.dev/preflight", "value": "pending", "effect": "NoSchedule"}]}, IdleWhy.UNTESTED),
        ({"taints": [{"key": "muster.dev/joining", "value": "pending", "effect": "NoSchedule"}]}, IdleWhy.UNTESTED),
        ({"taints": [{"key": "muster.dev/team", "value": "red", "effect": "NoSchedule"}]}, IdleWhy.CONSTRAINT),
        ({"taints": [{"key": "example.com/mine", "effect": "NoSchedule"}]}, IdleWhy.CONSTRAINT),
        ({"gpus": 4}, IdleWhy.CONSTRAINT),
    ],
)
def test_nodes_that_no_waiting_gang_may_use(options: dict[str, Any], why: IdleWhy) -> None:
    world = World()
    world.add_nodes("a", "b", "c")
    waiting_head(world)
    world.add_nodes("other", **options)
    assert idle_now(world) == {IdleWhy.RESERVED: 16, why: options.get("gpus", 8)}


def test_nodes_without_a_passed_test_are_untested() -> None:
    world = World(tests_needed=True)
    world.add_nodes("a", "b", "c", "new")
    for name in "abc":
        world.set_tested(name)
    waiting_head(world)
    assert idle_now(world) == {IdleWhy.RESERVED: 16, IdleWhy.UNTESTED: 8}


def test_idle_time_adds_up_until_the_gang_starts() -> None:
    world = Measured()
    world.add_nodes("a", "b", "c")
    waiting_head(world)
    world.run()
    world.wait(100)
    assert world.idle(IdleWhy.RESERVED) == pytest.approx(16 * 100, abs=16 * SAMPLE_S)
    world.end("running")
    world.wait(SAMPLE_S)
    started = world.idle(IdleWhy.RESERVED)
    world.wait(100)
    assert world.idle(IdleWhy.RESERVED) == started
    assert world.total("backfilled_gpu_seconds_total") == 0


@pytest.mark.slow
def test_backfilled_time_and_the_delay_of_the_head_are_measured() -> None:
    world = Measured()
    world.add_nodes("a", "b", "c")
    waiting_head(world)
    world.set_job("small", JobFacts(restartable=True))
    world.add_gang("small", 1)
    world.run()
    world.wait(50)
    assert world.total("backfilled_gpu_seconds_total") == pytest.approx(8 * 50, abs=8 * SAMPLE_S)
    assert world.idle(IdleWhy.RESERVED) == pytest.approx(8 * 50, abs=8 * SAMPLE_S + 16 * 2)
    assert world.total("backfill_delay_seconds_count") == 0
    due = world.now
    world.end("running")  # the small gang still rests for some seconds
    while not world.nodes_of("head"):
        world.wait(1)
        placement = world.placements.get("default/small")
        if placement is not None and placement.status.phase == "Preempting" and world.now >= due + 30:
            world.end("small")  # it took its time to save
    assert world.total("backfill_delay_seconds_count") == 1
    assert world.total("backfill_delay_seconds_sum") == pytest.approx(world.now - due, abs=2)


def test_no_delay_is_measured_for_a_gang_that_goes_away_or_does_not_fit_any_more() -> None:
    world = Measured()
    world.add_nodes("a", "b", "c")
    waiting_head(world)
    world.set_job("small", JobFacts(restartable=True))
    world.add_gang("small", 1)
    world.run()
    world.end("running")
    assert world.decide().delayed
    world.remove_node("a")
    world.wait(2)
    world.add_nodes("a")
    world.run()
    world.remove_gang("head")
    world.wait(2)
    assert world.total("backfill_delay_seconds_count") == 0


def test_jumps_of_the_clock_add_at_most_one_interval() -> None:
    world = Measured()
    world.add_nodes("a", "b", "c")
    waiting_head(world)
    world.run()
    before = world.idle(IdleWhy.RESERVED)
    world.now += 1e6
    world.run()
    world.now -= 2e6
    world.run()
    assert world.idle(IdleWhy.RESERVED) - before <= 16 * SAMPLE_S


def test_a_gang_that_starts_at_once_has_no_delay() -> None:
    world = Measured()
    world.add_nodes("a")
    world.add_gang("runs", 1)
    plan = world.run()
    assert not any(isinstance(action, MarkBound) for action in plan.actions)
    assert world.total("backfill_delay_seconds_count") == 0


def test_gpus_of_all_nodes_are_used_or_free_or_unusable() -> None:
    world = Measured()
    world.add_nodes("a", "b", "c")
    world.add_gang("runs", 1)
    world.run()
    world.wait(SAMPLE_S + 1)
    assert {state: world.total("gpus", state=state) for state in ("used", "free", "unusable")} == {
        "used": 8,
        "free": 16,
        "unusable": 0,
    }
    world.set_node(node("b", ready=False))
    world.wait(SAMPLE_S + 1)
    assert {state: world.total("gpus", state=state) for state in ("used", "free", "unusable")} == {
        "used": 8,
        "free": 8,
        "unusable": 8,
    }
