"""Kubernetes events about objects: deduplicated, aggregated and rate-limited, so that no loop can flood the API server.

The limits are client-go's (tools/record/events_cache.go): a repeated event only raises its count. From the 11th
different message about one object and reason in ten minutes on, the messages are combined. An object gets at most 25
events, then one every five minutes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import msgspec

from muster.kube.client import Client
from muster.kube.clock import steady_time
from muster.kube.errors import ApiError, ConfigError, NotFound
from muster.kube.metrics import KubeMetrics, kube_metrics
from muster.kube.objects.core import Event, EventSource, ObjectReference
from muster.kube.objects.meta import KubeObject, ObjectMeta

log = logging.getLogger(__name__)

NORMAL, WARNING = "Normal", "Warning"
_SIMILAR_MAX = 10
_WINDOW_S = 600.0
_BURST = 25
_REFILL_S = 300.0
_KNOWN_MAX = 4096
_PENDING_MAX = 1000
_MESSAGE_MAX = 1024


@dataclass(slots=True)
class _Seen:
    """An event that the API server has stored."""

    name: str
    namespace: str
    count: int
    last_at: float


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


@dataclass(slots=True)
class _Similar:
    since: float
    messages: set[str] = field(default_factory=set)


class EventRecorder:
    """Records events without waiting. A separate task writes them while the context is open.

    Args:
        client: the API server.
        component: the reporter, such as `muster-scheduler`.
        instance: the process of the reporter.
        clock: seconds since the epoch, for the times in events.
        rng: source of the names' random part.
        metrics: receives counts of events by outcome.
    """

    def __init__(
        self,
        client: Client,
        component: str,
        *,
        instance: str = "",
        clock: Callable[[], float] = steady_time,
        rng: random.Random | None = None,
        metrics: KubeMetrics | None = None,
    ) -> None:
        self._client = client
        self._component = component
        self._instance = instance or component
        self._clock = clock
        self._rng = rng or random.Random()
        self._outcomes = (metrics or kube_metrics()).events
        self._pending: asyncio.Queue[tuple[Event, bool]] = asyncio.Queue(_PENDING_MAX)
        self._seen: OrderedDict[tuple[str, ...], _Seen] = OrderedDict()
        self._similar: OrderedDict[tuple[str, ...], _Similar] = OrderedDict()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._writer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._writer = asyncio.create_task(self._write(), name="events")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, timeout_s: float = 2.0) -> None:
        """Write pending events for at most `timeout_s`, and stop."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._pending.join()
        except TimeoutError:
            log.info("events: %d not written at the end", self._pending.qsize())
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)

    def event(
        self,
        about: KubeObject | ObjectReference,
        type_: str,
        reason: str,
        message: str,
        *,
        related: ObjectReference | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Record an event; never blocks and never raises.

        Args:
            about: the object concerned.
            type_: Normal or Warning.
            reason: one CamelCase word for machines.
            message: a sentence for people; cut at 1024 bytes, the API's limit.
            related: another object that the event is about.
            annotations: facts for programs. If an event is repeated, the newest annotations are kept.
        """
        reference = about if isinstance(about, ObjectReference) else reference_to(about)
        if not self._allowed(reference.uid or reference.name):
            self._outcomes.labels("suppressed").inc()
            return
        message = _cut(message)
        combined = self._is_combined(reference, type_, reason, message)
        if combined:
            message = _cut(f"(combined from similar events): {message}")
        try:
            event = self._made(reference, type_, reason, message, related=related, annotations=annotations)
            self._pending.put_nowait((event, combined))
        except asyncio.QueueFull:
            self._outcomes.labels("dropped").inc()

    async def once(self, about: ObjectReference, type_: str, reason: str, message: str, *, action: str) -> None:
        """Write an event that cannot repeat, such as Scheduled, at once. Failures are only counted.

        The caller limits the rate: the limits above do not apply.
        """
        try:
            await self._create(self._made(about, type_, reason, _cut(message), action))
        except (ApiError, ConfigError) as error:
            self._failed(about, reason, error)
        else:
            self._outcomes.labels("created").inc()

    def _made(
        self,
        about: ObjectReference,
        type_: str,
        reason: str,
        message: str,
        action: str = "",
        related: ObjectReference | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> Event:
        now = datetime.fromtimestamp(self._clock(), UTC)
        return Event(
            metadata=ObjectMeta(namespace=about.namespace or "default", annotations=dict(annotations or {})),
            involved_object=about,
            type=type_,
            reason=reason,
            message=message,
            action=action,
            source=EventSource(component=self._component),
            first_timestamp=now,
            last_timestamp=now,
            count=1,
            reporting_component=self._component,
            reporting_instance=self._instance,
            related=related,
        )

    def _allowed(self, about: str) -> bool:
        now = self._now()
        bucket = self._buckets.get(about)
        if bucket is None:
            bucket = self._buckets[about] = _Bucket(_BURST, now)
        self._buckets.move_to_end(about)
        _trim(self._buckets)
        bucket.tokens = min(_BURST, bucket.tokens + (now - bucket.filled_at) / _REFILL_S)
        bucket.filled_at = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    def _is_combined(self, about: ObjectReference, type_: str, reason: str, message: str) -> bool:
        """Return whether the event is counted with similar ones, because there are too many different messages."""
        key = (about.kind, about.uid, about.namespace, about.name, type_, reason)
        now = self._now()
        similar = self._similar.get(key)
        if similar is None or now - similar.since > _WINDOW_S:
            similar = self._similar[key] = _Similar(now)
        self._similar.move_to_end(key)
        _trim(self._similar)
        if message not in similar.messages:
            if len(similar.messages) >= _SIMILAR_MAX:
                return True
            similar.messages.add(message)
        return False

    async def _write(self) -> None:
        while True:
            event, combined = await self._pending.get()
            try:
                self._outcomes.labels(await self._write_one(event, combined)).inc()
            except (ApiError, ConfigError) as error:
                self._failed(event.involved_object, event.reason, error)
            finally:
                self._pending.task_done()

    async def _write_one(self, event: Event, combined: bool) -> str:
        about = event.involved_object
        message_key = "" if combined else event.message
        key = (about.kind, about.uid, about.namespace, about.name, event.type, event.reason, message_key)
        seen = self._seen.get(key)
        now = self._now()
        if seen is not None and now - seen.last_at <= _WINDOW_S:
            patch: dict[str, Any] = {
                "count": seen.count + 1, "lastTimestamp": event.last_timestamp, "message": event.message
            }  # fmt: skip
            if event.metadata.annotations:
                patch["metadata"] = {"annotations": event.metadata.annotations}
            try:
                await self._client.patch(Event, seen.name, patch, namespace=seen.namespace)
            except NotFound:  # the API server forgets events after an hour
                del self._seen[key]
            else:
                seen.count, seen.last_at = seen.count + 1, now
                self._seen.move_to_end(key)
                return "counted"
        created = await self._create(event)
        self._seen[key] = _Seen(created.name, created.namespace, 1, now)
        _trim(self._seen)
        return "created"

    async def _create(self, event: Event) -> Event:
        base = event.involved_object.name[:200] or "event"
        return await self._client.create(_named(event, f"{base}.{self._rng.getrandbits(64):016x}"))

    def _failed(self, about: ObjectReference, reason: str, error: Exception) -> None:
        log.info("event %s about %s not written: %s", reason, about.name, error)
        self._outcomes.labels("failed").inc()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def reference_to(obj: KubeObject) -> ObjectReference:
    """Return a reference to `obj`."""
    return ObjectReference(
        api_version=obj.api_version,
        kind=obj.kind,
        namespace=obj.namespace,
        name=obj.name,
        uid=obj.uid,
        resource_version=obj.metadata.resource_version,
    )


def _named(event: Event, name: str) -> Event:
    return msgspec.structs.replace(event, metadata=msgspec.structs.replace(event.metadata, name=name))


def _cut(message: str) -> str:
    encoded = message.encode()
    return message if len(encoded) <= _MESSAGE_MAX else encoded[: _MESSAGE_MAX - 3].decode("utf-8", "ignore") + "..."


def _trim(cache: OrderedDict[Any, Any]) -> None:
    while len(cache) > _KNOWN_MAX:
        cache.popitem(last=False)
