"""Who lacks nodes, as the scheduler last said, and since when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from muster.fleet.scaling.snapshot import GangDemand
from muster.kube.clock import steady_time
from muster.kube.core import ObjectReference


class Demands:
    """Told after each plan of the scheduler; read by scaling.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = steady_time) -> None:
        self.changed = asyncio.Event()
        """Set when something else is lacking than before."""
        self.known = False
        """Whether the scheduler has said anything in this term."""
        self.gangs: tuple[GangDemand, ...] = ()
        self.about: dict[str, ObjectReference] = {}
        """What Events about a gang are about, by its key."""
        self._clock = clock

    def update(self, gangs: Sequence[tuple[GangDemand, ObjectReference | None]]) -> None:
        """Take what is lacking now, in the order of the queue; `since` of the gangs is filled in here."""
        since = {gang.key: gang.since for gang in self.gangs}
        now = self._clock()
        fresh = tuple(msgspec.structs.replace(each, since=since.get(each.key, now)) for each, _ in gangs)
        self.about = {each.key: about for each, about in gangs if about is not None}
        if fresh != self.gangs or not self.known:
            self.gangs, self.known = fresh, True
            self.changed.set()

    def forget(self) -> None:
        """The term is over: nothing is known."""
        self.known, self.gangs, self.about = False, (), {}
