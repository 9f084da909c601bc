"""Reads refused evictions from Events, for processes other than the leader, which have no record of its dry runs."""

from __future__ import annotations

from contextlib import suppress

from muster.kube.client import Client
from muster.kube.core import Event
from muster.kube.errors import Forbidden, NotFound
from muster.scheduler.actions.event_objects import reference
from muster.scheduler.actions.evictor import SPARED_S
from muster.scheduler.gangs.gang import Gang, seconds
from muster.scheduler.preemption.eviction import by_eviction
from muster.scheduler.state import ClusterState

EVICTION_REFUSED = "EvictionRefused"
_STAYS = "does not leave for it: "


def stays_for(gang: Gang, why: str) -> str:
    """Return the message for the gang that needs the room, when another does not leave; see `list_refusals`."""
    return f"{gang.full_name} {_STAYS}{why}"


async def list_refusals(client: Client, state: ClusterState) -> None:
    """Record recent dry runs in the state. Without permission to list Events, do nothing. Raises ApiError."""
    with suppress(NotFound, Forbidden):
        listing = await client.list_all(Event, field_selector=f"reason={EVICTION_REFUSED}")
        newest: dict[str, Event] = {}
        for event in sorted(listing.items, key=lambda event: seconds(event.last_timestamp)):
            about = event.related or event.involved_object
            newest[about.uid] = event
        for gang in list(state.gangs.values()) if newest else ():
            about_it = reference(gang) if by_eviction(gang) else None
            told = newest.get(about_it.uid) if about_it is not None else None
            if told is not None:
                _, _, refused = told.message.rpartition(_STAYS)
                state.tried(gang, seconds(told.last_timestamp) + SPARED_S, refused)
