"""A provider that replaces machines: its instances are nodes of a run, each with an identity of its own."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from fuzz.fleet.clouds import CloudWeather, Way
from fuzz.health.mishaps import Habits
from fuzz.health.ward import Ward
from muster.fleet.scaling.snapshot import Group, Instance, PoolSpec
from muster.kube.errors import NotFound
from muster.sim.virtual.cluster import VirtualCluster


@dataclass
class Owned:
    """A machine of the provider: its Node's name and UID, and its number."""

    name: str
    uid: str
    number: int
    leaving: bool = False


class Vendor:
    """A `Provider`. An instance keeps its Node's name, or gets another one when it is replaced.

    Args:
        cluster: where machines register.
        ward: the machines.
        weather: the failures of requests.
        rng: source of fates.
        habits: of machines by number.
        born: registers a machine by its name and number.
        replaced: called with a machine that is about to be replaced.
    """

    def __init__(
        self,
        cluster: VirtualCluster,
        ward: Ward,
        weather: CloudWeather,
        rng: random.Random,
        habits: tuple[Habits, ...],
        born: Callable[[str, int], Awaitable[None]],
        replaced: Callable[[str, str], None],
    ) -> None:
        self._cluster, self._ward, self._habits = cluster, ward, habits
        self._born, self._replaced = born, replaced
        self._way = Way(cluster, weather, rng)
        self._made = 0
        self.instances: dict[str, Owned] = {}

    def own(self, name: str, number: int) -> None:
        """A machine with a Node of this name is the provider's; the node says so."""
        self._made += 1
        instance = f"vm-{self._made}"
        self.instances[instance] = Owned(name, self._ward.agents.uid(name), number)
        self._say(name, instance)

    def renewed(self, name: str) -> None:
        """The machine with this name has another Node: it is the same instance."""
        for instance, owned in self.instances.items():
            if owned.name == name and not owned.leaving:
                owned.uid = self._ward.agents.uid(name)
                self._say(name, instance)

    def _say(self, name: str, instance: str) -> None:
        with contextlib.suppress(NotFound):
            self._cluster.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"providerID": f"simulated://{instance}"}})

    # As controllers reach it

    async def look(self, pool: PoolSpec) -> Group:
        """Return all instances as they are now."""

        async def act() -> Group:
            found = tuple(Instance(id_, each.leaving, each.name) for id_, each in self.instances.items())
            return Group(len(found), found)

        group: Group = await self._way.ask(act)
        return group

    async def set_size(self, pool: PoolSpec, size: int) -> None:
        """Not used in these runs."""
        raise AssertionError(f"{pool.name} is to have {size}")

    async def delete(self, pool: PoolSpec, instance: str, *, replace: bool) -> None:
        """Replace an instance, unless it is gone or is already being replaced."""

        async def act() -> None:
            owned = self.instances.get(instance)
            if owned is None or owned.leaving:
                return
            self._replaced(owned.name, owned.uid)
            owned.leaving = True
            self._ward.switch_off(owned.name)
            self._way.far.spawn(self._replace(instance, owned))

        await self._way.ask(act)

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    # Over there

    @property
    def busy(self) -> Mapping[str, Owned]:
        """Machines that are being replaced."""
        return {id_: each for id_, each in self.instances.items() if each.leaving}

    async def _replace(self, instance: str, owned: Owned) -> None:
        """Its Node goes when it is off; another machine joins, under its name or another."""
        habits = self._habits[owned.number]
        await asyncio.sleep(habits.off_s)
        if owned.uid and self._ward.agents.uid(owned.name) == owned.uid:
            self._cluster.call("DELETE", f"/api/v1/nodes/{owned.name}")
        await asyncio.sleep(habits.replaced_s)
        del self.instances[instance]
        name = owned.name if habits.same_name else f"{owned.name}-{self._made}"
        if name == owned.name and self._ward.agents.uid(name):
            name = f"{owned.name}-{self._made}"  # the name was registered in between
        self._ward.renewed(name)
        await self._born(name, owned.number)
        self.own(name, owned.number)
