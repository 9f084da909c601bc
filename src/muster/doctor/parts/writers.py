"""A short watch of Events: who writes them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from typing import Final

import msgspec

from muster.doctor.rule import Context
from muster.kube.errors import ApiError, Forbidden
from muster.kube.objects.core import Event
from muster.kube.watch import ADDED, MODIFIED

_PATH: Final = "/api/v1/events"
_WHAT: Final = "who writes Events"
_EVENTS_MAX: Final = 500
_SIZED: Final = 20
"""Events whose size is measured."""
_WINDOW_MAX_S: Final = 30.0


class EventSource(msgspec.Struct, frozen=True):
    """A source of Events: the component that reports them, and the namespace that they are in."""

    component: str
    namespace: str


class EventWriters(msgspec.Struct, frozen=True):
    """Events that were written in the window, by source.

    Attributes:
        counts: number of writes by source.
        seconds: time watched; shorter than the window if there were too many.
        size_bytes: mean size of an Event.
    """

    counts: Mapping[EventSource, int]
    seconds: float
    size_bytes: float


async def collect_event_writers(context: Context) -> EventWriters | None:
    """Watch Events until the window ends, or until there were enough."""
    reader = context.reader
    listed = await reader.list(_PATH, what=_WHAT, limit=_SIZED, sample=True)
    if listed is None:
        return None
    clock = asyncio.get_running_loop().time
    started, counts = clock(), Counter[EventSource]()
    limit_s = min(context.options.window_s, _WINDOW_MAX_S)
    reader.cost.requests += 1
    watch = reader.client.watch_batches(Event, resource_version=listed.version, timeout_s=limit_s + 1)
    try:
        async with asyncio.timeout(limit_s), aclosing(watch) as batches:
            async for batch in batches:
                counts.update(source_of(event.object) for event in batch if event.type in (ADDED, MODIFIED))
                if counts.total() >= _EVENTS_MAX:
                    break
    except TimeoutError:
        pass
    except Forbidden as error:
        reader.note(_WHAT, error.message, "watch events")
        return None
    except ApiError as error:
        reader.note(_WHAT, error.message)
    return EventWriters(counts, max(clock() - started, 0.1), listed.bytes_each)


def source_of(event: Event) -> EventSource:
    """Return the source of an Event."""
    source = event.source.component if event.source is not None else ""
    return EventSource(event.reporting_component or source or "unknown", event.namespace)
