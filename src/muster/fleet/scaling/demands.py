"""The nodes that gangs lack, as the scheduler last reported, and since when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from muster.fleet.scaling.snapshot import GangDemand
from muster.kube.clock import steady_time
from muster.kube.objects.core import ObjectReference


class Demands:
    """Written by the scheduler after each plan; read by scaling.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = steady_time) -> None:
        self.changed = asyncio.Event()
        """Set when the demand has changed."""
        self.known = False
        """Whether the scheduler has reported in this term."""
        self.gangs: tuple[GangDemand, ...] = ()
        self.about: dict[str, ObjectReference] = {}
        """The objects for Events about gangs, by gang key."""
        self._clock = clock

    def update(self, gangs: Sequence[tuple[GangDemand, ObjectReference | None]]) -> None:
        """Take the current demand, in the order of the queue. Sets `since` of the gangs."""
        since = {gang.key: gang.since for gang in self.gangs}
        now = self._clock()
        fresh = tuple(msgspec.structs.replace(each, since=since.get(each.key, now)) for each, _ in gangs)
        self.about = {each.key: about for each, about in gangs if about is not None}
        if fresh != self.gangs or not self.known:
            self.gangs, self.known = fresh, True
            self.changed.set()

    def forget(self) -> None:
        """Forget everything at the end of the term."""
        self.known, self.gangs, self.about = False, (), {}
