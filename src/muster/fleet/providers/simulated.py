"""A simulated cloud: groups fill up to their size over time, run short, give wrong answers and throttle."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from muster.fleet.providers.base import ProviderError
from muster.fleet.scaling.snapshot import Failure, Fault, Group, Instance, PoolSpec


@dataclass(slots=True)
class SimulatedInstance:
    """A machine. `up_at` is when its kubelet first reports (None: never); `gone_at` is when it is off."""

    id: str
    group: str
    up_at: float | None
    gone_at: float | None = None


@dataclass(slots=True)
class SimulatedGroup:
    """Instances of one kind.

    Attributes:
        size: the requested size.
        available: how many instances the cloud has; beyond that, launches fail with NoCapacity.
        silent: it does not report that: it accepts the request and creates fewer.
        deaf: it accepts a new size and keeps the old one.
        boot_s, stop_s: from the request until the kubelet reports, and from a deletion until it is off.
        never_join: this many of the next instances never report.
        trouble: errors of the next requests, in order. Requests with a `late` error take effect before it.
    """

    size: int = 0
    available: int = 1 << 30
    silent: bool = False
    deaf: bool = False
    boot_s: float = 60.0
    stop_s: float = 30.0
    never_join: int = 0
    instances: dict[str, SimulatedInstance] = field(default_factory=dict)
    failure: Failure | None = None
    trouble: deque[tuple[ProviderError, bool]] = field(default_factory=deque)
    launched: int = 0


class SimulatedCloud:
    """The simulated provider, with controls for tests and simulations.

    Args:
        now: seconds since the epoch.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.groups: dict[str, SimulatedGroup] = {}
        self.sizes: list[tuple[str, int]] = []
        """Every new size that was requested, by group."""
        self.deleted: list[tuple[str, str]] = []
        """Every instance whose deletion was requested, by group."""

    async def look(self, pool: PoolSpec) -> Group:
        """Return the current state of the group."""
        group = self._group(pool)
        self._trouble(group, late=None)
        self.advance()
        instances = tuple(Instance(each.id, terminating=each.gone_at is not None) for each in group.instances.values())
        return Group(group.size, instances, failure=group.failure)

    async def set_size(self, pool: PoolSpec, size: int) -> None:
        """Set the size of the group."""
        group = self._group(pool)
        self._trouble(group, late=False)
        self.sizes.append((pool.group, size))
        if not group.deaf:
            group.size = size
        self.advance()
        self._trouble(group, late=True)

    async def delete(self, pool: PoolSpec, instance: str, *, replace: bool) -> None:
        """Delete the instance."""
        group = self._group(pool)
        self._trouble(group, late=False)
        found = group.instances.get(instance)
        if found is not None and found.gone_at is None:
            self.deleted.append((pool.group, instance))
            found.gone_at = self._now() + group.stop_s
            group.size -= not replace
        self.advance()
        self._trouble(group, late=True)

    async def close(self) -> None:
        """Do nothing: this provider holds no resources."""

    def advance(self) -> None:
        """Advance every group to the present time."""
        now = self._now()
        for name, group in self.groups.items():
            for instance in [each for each in group.instances.values() if each.gone_at is not None]:
                if instance.gone_at is not None and now >= instance.gone_at:
                    del group.instances[instance.id]
            running = sum(each.gone_at is None for each in group.instances.values())
            for _ in range(group.size - running):
                if len(group.instances) >= group.available:
                    if not group.silent:
                        group.failure = Failure(Fault.NO_CAPACITY, f"no more instances of {name} are to be had", now)
                    break
                self._launch(name, group, now)

    def reporting(self) -> list[SimulatedInstance]:
        """Return the instances whose kubelets report now."""
        now = self._now()
        found = [each for group in self.groups.values() for each in group.instances.values()]
        return [each for each in found if each.gone_at is None and each.up_at is not None and each.up_at <= now]

    def _launch(self, name: str, group: SimulatedGroup, now: float) -> None:
        group.launched += 1
        instance = f"{name}-{group.launched}"
        up_at = now + group.boot_s
        joins = group.never_join == 0
        group.never_join -= not joins
        group.instances[instance] = SimulatedInstance(instance, name, up_at if joins else None)

    def _group(self, pool: PoolSpec) -> SimulatedGroup:
        if pool.group not in self.groups:
            raise ProviderError(Fault.MISCONFIGURED, f"there is no group {pool.group}")
        return self.groups[pool.group]

    def _trouble(self, group: SimulatedGroup, *, late: bool | None) -> None:
        if group.trouble and (late is None or group.trouble[0][1] is late):
            raise group.trouble.popleft()[0]
