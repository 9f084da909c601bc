"""Invariants on requests to the cloud, and on the final status of its pools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuzz.checks import Checker
from fuzz.fleet.ownerchecks import holders
from fuzz.fleet.people import SYSTEM
from fuzz.view import View
from muster.embedded.objects import Obj, decode
from muster.fleet.providers.simulated import SimulatedGroup
from muster.fleet.scaling.snapshot import PoolSpec
from muster.fleet.scaling.status import STATUS_KEY, STATUS_MAP

STATES = frozenset({
    "Requested", "Launching", "Joining", "Settling", "Idle", "InUse", "Held", "Unready", "Overdue", "Draining",
    "Deleting",
})  # fmt: skip
"""By docs/fleet.md."""


class NoNodeTakenFromAnybody(Checker):
    """No machine with a pod or a slot is deleted, and each pool's size stays between its minimum and its maximum.

    Attributes:
        groups: the groups of the cloud.
    """

    name = "no node taken from anybody, no pool out of its bounds"

    def __init__(self, view: View, stale_s: float) -> None:
        super().__init__(view, stale_s)
        self.groups: Mapping[str, SimulatedGroup] = {}

    def asked(self, what: str, pool: PoolSpec, size: int, instance: str) -> None:
        """Check a request before the cloud executes it."""
        group = self.groups[pool.group]
        if what == "set_size" and size > pool.max:
            self.fail(f"{pool.name} is to have {size} machines, {pool.max} are the most")
        if what == "set_size" and size < min(pool.min, group.size):
            self.fail(f"{pool.name} is to have {size} machines, {pool.min} are the least")
        if what != "delete" or instance not in group.instances or group.instances[instance].gone_at is not None:
            return
        if size < min(pool.min, group.size):
            self.fail(f"{pool.name} comes down to {size} machines by the end of {instance}, {pool.min} are the least")
        needed = holders(self.view, instance)
        if needed:
            self.fail(f"{instance} is given back, and {', '.join(needed)} is there")

    def at_rest(self, bounds: Mapping[str, tuple[int, int]]) -> None:
        """Every machine is in one named state, and there are as many as there should be."""
        reported = self._reported()
        for name, (least, most) in bounds.items():
            group = self.groups[name]
            if not least <= group.size <= most:
                self.fail(f"{name} has size {group.size}, not {least} to {most}")
            states = reported[name]["states"] if name in reported else {}
            if not STATES.issuperset(states) or sum(states.values()) != max(group.size, len(group.instances)):
                self.fail(f"{name} of size {group.size} with {sorted(group.instances)} is said to be {states}")

    def _reported(self) -> dict[str, Obj]:
        found: Any = self.view.object("configmaps", SYSTEM, STATUS_MAP)
        status = decode(found["data"][STATUS_KEY].encode()) if found is not None else {}
        return {pool["name"]: pool for pool in status.get("pools", ())}
