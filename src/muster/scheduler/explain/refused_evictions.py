"""Reads refused evictions from Events. Processes other than the leader need this, because they do no dry runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from muster.api.names import ANNOTATION_REFUSAL, ANNOTATION_REFUSED_UNTIL
from muster.kube.client import Client
from muster.kube.errors import Forbidden, NotFound
from muster.kube.objects.core import Event
from muster.scheduler.actions.event_objects import reference
from muster.scheduler.actions.evictor import SPARED_S
from muster.scheduler.gangs.gang import seconds
from muster.scheduler.preemption.eviction import by_eviction
from muster.scheduler.state import ClusterState

EVICTION_REFUSED: Final = "EvictionRefused"


def refusal_facts(why: str, until: float) -> Mapping[str, str]:
    """Return the annotations of an Event about a refused eviction; `list_refusals` reads them."""
    moment = datetime.fromtimestamp(until, UTC)
    return {ANNOTATION_REFUSAL: why, ANNOTATION_REFUSED_UNTIL: moment.isoformat(timespec="microseconds")}


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
            refused = newest.get(about_it.uid) if about_it is not None else None
            if refused is not None:
                state.tried(gang, *_refusal(refused))


def _refusal(event: Event) -> tuple[float, str]:
    """Return until when the gang is not a candidate, and the API server's answer.

    Events of earlier versions have no annotations. For these, the function assumes the usual time and returns the
    whole message.
    """
    facts = event.metadata.annotations
    try:
        until = datetime.fromisoformat(facts.get(ANNOTATION_REFUSED_UNTIL, "")).timestamp()
    except ValueError:
        until = seconds(event.last_timestamp) + SPARED_S
    return until, facts.get(ANNOTATION_REFUSAL) or event.message
