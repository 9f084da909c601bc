"""A cluster with a simulated cloud, gangs that come and end, and a scheduler that places them whole: no event loop."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.fleet.providers.base import ProviderError
from muster.fleet.providers.simulated import SimulatedCloud, SimulatedGroup
from muster.fleet.scaling.classify import tracked_key
from muster.fleet.scaling.controller import undone
from muster.fleet.scaling.decide import decide
from muster.fleet.scaling.plan import Cordon, Delete, ForgetNode, Plan, SetSize, Uncordon
from muster.fleet.scaling.pool_memory import silent
from muster.fleet.scaling.snapshot import (
    Fault,
    GangDemand,
    Group,
    Members,
    PoolMemory,
    PoolSpec,
    ScalingNode,
    Template,
    View,
)
from muster.fleet.scaling.states import NodeState, Tracked

LIVE = frozenset(
    {NodeState.SETTLING, NodeState.IDLE, NodeState.IN_USE, NodeState.HELD, NodeState.UNREADY, NodeState.DRAINING}
)
TRANSITIONS: dict[NodeState, frozenset[NodeState]] = {
    NodeState.REQUESTED: frozenset({NodeState.LAUNCHING}),
    NodeState.LAUNCHING: LIVE | {NodeState.JOINING, NodeState.OVERDUE, NodeState.DELETING},
    NodeState.JOINING: LIVE | {NodeState.LAUNCHING, NodeState.OVERDUE, NodeState.DELETING},
    # A late node counts like any other, until its deletion was requested.
    NodeState.OVERDUE: LIVE | {NodeState.LAUNCHING, NodeState.JOINING, NodeState.DELETING},
    **{state: LIVE | {NodeState.DELETING} for state in LIVE},
    # A deletion that the provider lost is requested again.
    NodeState.DELETING: LIVE | {NodeState.LAUNCHING, NodeState.JOINING, NodeState.OVERDUE},
}
"""The possible next states; a node may also keep its state or disappear."""
GPUS = 8
NODE = {"cpu": 64_000, "nvidia.com/gpu": GPUS, "pods": 110}
POD = {"cpu": 1_000, "nvidia.com/gpu": GPUS, "pods": 1}


def pool(name: str, *, max: int, min: int = 0, price: float = 1.0, **options: Any) -> PoolSpec:
    template = Template(options.pop("labels", {}), (), NODE)
    defaults = {"idle_s": 300.0, "cool_down_s": 60.0, "join_timeout_s": 200.0}
    return PoolSpec(name, "simulated", name, min, max, price, template, **{**defaults, **options})


def members(count: int, **options: Any) -> Members:
    return Members(count, POD, alone=True, **options)


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """Run what never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waited")


@dataclass
class Gang:
    name: str
    size: int
    runs_s: float
    approved: bool = True
    nodes: list[str] = field(default_factory=list)
    ends_at: float | None = None
    since: float = 0.0


class World:
    def __init__(self, pools: Sequence[PoolSpec], groups: dict[str, SimulatedGroup]) -> None:
        self.now = 1_000_000.0
        self.cloud = SimulatedCloud(lambda: self.now)
        self.cloud.groups.update(groups)
        self.pools = tuple(sorted(pools, key=lambda each: (each.price, each.name)))
        self.gangs: dict[str, Gang] = {}
        self.cordons: dict[str, float] = {}
        self.ours: dict[str, str] = {}
        self.known_cordons: set[str] = set()
        self.needed_at: dict[str, float] = {}
        """When a user was last seen on each node, or it was first seen."""
        self.tracked: dict[str, Tracked] = {}
        self.memory: dict[str, PoolMemory] = {}
        self.faults: dict[str, tuple[Fault, str, float]] = {}
        self.plan: Plan | None = None
        self.view: View | None = None

    # ---- the cluster

    def nodes(self) -> dict[str, str]:
        """Name (the instance's id) -> pool."""
        return {each.id: each.group for each in self.cloud.reporting()}

    def free(self) -> list[str]:
        taken = {node for gang in self.gangs.values() for node in gang.nodes}
        return [name for name in sorted(self.nodes()) if name not in taken and name not in self.known_cordons]

    def schedule(self) -> None:
        """First come, first served, each whole; what the scheduler knows of cordons is a step old."""
        for gang in list(self.gangs.values()):
            if gang.ends_at is not None and self.now >= gang.ends_at:
                del self.gangs[gang.name]
        free = self.free()
        for gang in self.gangs.values():
            if gang.nodes:
                continue
            if gang.size > len(free):
                break
            gang.nodes, free = free[: gang.size], free[gang.size :]
            gang.ends_at = self.now + gang.runs_s
        self.known_cordons = set(self.cordons)

    def demands(self) -> tuple[GangDemand, ...]:
        free, found = len(self.free()), []
        for gang in self.gangs.values():
            if not gang.nodes:
                missing = max(0, gang.size - free)
                free = max(0, free - gang.size)
                if missing:
                    found.append(GangDemand(gang.name, gang.name, (members(missing),), gang.since, gang.approved))
        return tuple(found)

    def submit(self, name: str, size: int, *, runs_s: float = 1e9, approved: bool = True) -> Gang:
        gang = self.gangs[name] = Gang(name, size, runs_s, approved, since=self.now)
        return gang

    def occupied(self, node: str) -> str:
        return next((f"gang {gang.name}" for gang in self.gangs.values() if node in gang.nodes), "")

    # ---- scaling

    def look(self) -> View:
        groups: dict[str, Group] = {}
        faults, self.faults = self.faults, {}
        for each in self.pools:
            if each.name in self.memory and silent(self.memory[each.name], self.now):
                continue
            try:
                groups[each.name] = at_once(self.cloud.look(each))
            except ProviderError as error:
                faults[each.name] = (error.fault, error.message, error.wait_s)
        views = tuple(
            ScalingNode(
                name=name,
                uid=f"uid-{name}",
                pool=group,
                instance=name,
                ready=True,
                created_at=self.now,
                occupied=self.occupied(name),
                draining=name in self.cordons,
            )
            for name, group in self.nodes().items()
        )
        return View(self.pools, groups, views, self.demands(), self.tracked, self.memory, faults)

    def step(self, seconds: float = 10.0) -> Plan:
        """Let time pass, the scheduler work, and scaling do what it decides."""
        self.now += seconds
        self.schedule()
        for name in self.nodes():
            if name not in self.needed_at or self.occupied(name):
                self.needed_at[name] = self.now
        before = dict(self.tracked)
        self.view = view = self.look()
        self.plan = plan = decide(view, self.now)
        self._check_transitions(before, plan)
        failed = []
        for action in plan.actions:
            spec = next(each for each in self.pools if each.name == action.pool)
            try:
                if isinstance(action, SetSize):
                    at_once(self.cloud.set_size(spec, action.size))
                elif isinstance(action, Cordon):
                    self.cordons[action.node] = self.now
                elif isinstance(action, Uncordon):
                    self.cordons.pop(action.node, None)
                elif isinstance(action, Delete):
                    if action.node and self.occupied(action.node):
                        failed.append(action)
                    else:
                        at_once(self.cloud.delete(spec, action.instance, replace=action.replace))
                        self.cordons.pop(action.node, None)
                else:
                    assert isinstance(action, ForgetNode)
            except ProviderError as error:
                failed.append(action)
                self.faults[action.pool] = (error.fault, error.message, error.wait_s)
        self.tracked, self.memory = undone(plan, view, failed)
        return plan

    def run(self, seconds: float, step_s: float = 10.0) -> list[Plan]:
        return [self.step(step_s) for _ in range(round(seconds / step_s))]

    def restart(self) -> None:
        """Another leader: what was only remembered is gone."""
        self.tracked, self.memory, self.faults = {}, {}, {}

    def state(self, pool: str, instance: str) -> str:
        return self.tracked[tracked_key(pool, instance)].state.value

    def _check_transitions(self, before: dict[str, Tracked], plan: Plan) -> None:
        for key, after in plan.tracked.items():
            known = before.get(key)
            if known is not None and known.state is not after.state:
                assert after.state in TRANSITIONS[known.state], f"{key}: {known.state} -> {after.state}"
