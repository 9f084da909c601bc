"""A simulated cloud: requests to it, and machines that boot and disappear."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from fuzz.weather import LATEST_S
from muster.fleet.providers.base import ProviderError
from muster.fleet.providers.simulated import SimulatedCloud, SimulatedGroup
from muster.fleet.scaling.snapshot import Fault, Group, PoolSpec
from muster.kube.errors import NotFound
from muster.sim.nodes import SimNodes
from muster.sim.virtual.cluster import VirtualCluster
from muster.sim.virtual.process import Process

TIMEOUT_S = 15.0
"""Time limit of a request. After it, the request has no further effect."""
_LOOK_S = 1.0
_FORGOTTEN_S = 60.0
"""The cloud's own controller removes Node objects of machines that are gone (Kubernetes: cloud controller manager)."""


class Trouble(msgspec.Struct, frozen=True):
    """What goes wrong at the cloud from `start` to `end`, virtual seconds since the epoch.

    Kinds:
        full: no more machines.
        silent: the same, and the cloud does not report it.
        deaf: accepts a size and keeps the old one.
        strangers: the next machines never join.
        reclaimed: takes one machine away.
    """

    kind: str
    group: str
    start: float
    end: float
    count: int = 1


class CloudWeather(msgspec.Struct, frozen=True):
    """Failures of requests until `calm_at`. Rates are shares of all requests."""

    calm_at: float
    throttled: float = 0.0
    unanswered: float = 0.0
    late: float = 0.0
    boot_s: float = 20.0
    stop_s: float = 10.0

    @property
    def rough(self) -> bool:
        """Returns whether any request fails."""
        return bool(self.throttled or self.unanswered or self.late)


class Way:
    """The connection to a cloud: requests arrive late, are throttled, or get no answer.

    Args:
        cluster: whose time it is.
        weather: failures of requests.
        rng: source of fates.
    """

    def __init__(self, cluster: VirtualCluster, weather: CloudWeather, rng: random.Random) -> None:
        self._cluster, self._weather, self._rng = cluster, weather, rng
        self.far = Process("cloud")
        """The process in which the cloud acts."""

    async def ask(self, act: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Execute a request at the cloud, even if its sender is killed. Raises ProviderError."""
        weather, rng = self._weather, self._rng
        calm = self._cluster.loop.now >= weather.calm_at
        draw = rng.random()
        if not calm and draw < weather.throttled:
            raise ProviderError(Fault.THROTTLED, "simulated: rate exceeded", rng.choice((0.0, 5.0)))
        answered: asyncio.Future[Any] = self._cluster.loop.create_future()
        there_s = rng.uniform(0, LATEST_S) if not calm and rng.random() < weather.late else rng.uniform(0.05, 0.5)
        silent = not calm and rng.random() < weather.unanswered

        async def arrive() -> None:
            await asyncio.sleep(there_s)
            try:
                result, error = await act(), None
            except ProviderError as refused:
                result, error = None, refused
            if not silent and not answered.done():
                answered.set_exception(error) if error is not None else answered.set_result(result)

        self.far.spawn(arrive())
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await answered
        except TimeoutError:
            raise ProviderError(Fault.TIMED_OUT, f"simulated: no answer within {TIMEOUT_S:g} s") from None


class Cloud:
    """A `Provider`, and the machines behind it.

    Args:
        cluster: where machines register.
        nodes: their kubelets.
        weather: the failures of requests.
        capacity: of each machine, as its kubelet reports it.
        rng: source of fates.
        asked: called before each effect: `set_size` or `delete`, the pool, and the size or instance.
    """

    def __init__(
        self,
        cluster: VirtualCluster,
        nodes: SimNodes,
        weather: CloudWeather,
        capacity: Mapping[str, str],
        rng: random.Random,
        asked: Callable[[str, PoolSpec, int, str], None],
    ) -> None:
        self._cluster, self._nodes, self._weather = cluster, nodes, weather
        self._capacity, self._rng, self._asked = dict(capacity), rng, asked
        self._way = Way(cluster, weather, rng)
        self._joining: dict[str, asyncio.Task[None]] = {}
        self.simulated = SimulatedCloud(cluster.loop.time)
        self.labels: dict[str, dict[str, str]] = {}
        """Labels of the machines of each group."""
        self.held: dict[str, bool] = {}
        """Groups whose kubelets register with the taint of joining nodes."""

    def group(self, name: str, size: int, labels: Mapping[str, str], *, held: bool) -> None:
        """Create a group."""
        weather = self._weather
        self.simulated.groups[name] = SimulatedGroup(size=size, boot_s=weather.boot_s, stop_s=weather.stop_s)
        self.labels[name], self.held[name] = dict(labels), held

    # As controllers reach it

    async def look(self, pool: PoolSpec) -> Group:
        """Return the group as it is now."""
        found: Group = await self._way.ask(lambda: self.simulated.look(pool))
        return found

    async def set_size(self, pool: PoolSpec, size: int) -> None:
        """Set the size of a group."""

        async def act() -> None:
            self._asked("set_size", pool, size, "")
            await self.simulated.set_size(pool, size)

        await self._way.ask(act)

    async def delete(self, pool: PoolSpec, instance: str, *, replace: bool) -> None:
        """Delete an instance."""

        async def act() -> None:
            size = self.simulated.groups[pool.group].size - (not replace)
            self._asked("delete", pool, size, instance)
            await self.simulated.delete(pool, instance, replace=replace)

        await self._way.ask(act)

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    # Over there

    def strike(self, trouble: Trouble) -> None:
        """Begin a failure of the cloud."""
        group = self.simulated.groups[trouble.group]
        if trouble.kind in ("full", "silent"):
            group.available, group.silent = len(group.instances), trouble.kind == "silent"
        elif trouble.kind == "deaf":
            group.deaf = True
        elif trouble.kind == "strangers":
            group.never_join = trouble.count
        else:
            up = [each for each in group.instances.values() if each.gone_at is None]
            for instance in up[: trouble.count]:
                instance.gone_at = self._cluster.loop.now

    def relent(self, trouble: Trouble) -> None:
        """End a failure of the cloud."""
        group = self.simulated.groups[trouble.group]
        group.available, group.silent, group.deaf, group.never_join = 1 << 30, False, False, 0

    async def run(self) -> None:
        """Let machines boot, register and disappear, until cancelled."""
        up: dict[str, None] = {}
        while True:
            self.simulated.advance()
            reporting = {each.id: each.group for each in self.simulated.reporting()}
            for name, group in reporting.items():
                if name not in up:
                    self._joining[name] = asyncio.create_task(self._join(name, group))
            for name in [name for name in up if name not in reporting]:
                self._vanish(name)
            up = dict.fromkeys(reporting)
            await asyncio.sleep(_LOOK_S)

    async def _join(self, name: str, group: str) -> None:
        taints = [{"key": "muster.dev/joining", "value": "pending", "effect": "NoSchedule"}] * self.held[group]
        ready_after_s = self._rng.uniform(0.5, 6)
        labels = self.labels[group]
        await self._nodes.join(name, capacity=self._capacity, labels=labels, taints=taints, ready_after_s=ready_after_s)

    def _vanish(self, name: str) -> None:
        self._joining.pop(name).cancel()
        if name in self._nodes.nodes:
            self._nodes.leave(name)
        self._cluster.loop.call_later(_FORGOTTEN_S, self._forget, name)

    def _forget(self, name: str) -> None:
        with contextlib.suppress(NotFound):
            self._cluster.call("DELETE", f"/api/v1/nodes/{name}")
