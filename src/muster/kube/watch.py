"""Watch streams: newline-delimited JSON events, decoded into typed objects."""

from __future__ import annotations

import functools
import logging
from typing import Generic, TypeVar, cast

import msgspec

from muster.kube.errors import Status, error_from_status
from muster.kube.objects.meta import KubeObject
from muster.kube.objects.struct import KubeStruct

T = TypeVar("T", bound=KubeObject)
log = logging.getLogger(__name__)

ADDED, MODIFIED, DELETED, BOOKMARK = "ADDED", "MODIFIED", "DELETED", "BOOKMARK"
_CHANGES = (ADDED, MODIFIED, DELETED)
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""Annotation of the bookmark after the initial list of a watch with sendInitialEvents (KEP-3157)."""


class WatchEvent(KubeStruct, Generic[T]):
    """ADDED, MODIFIED, DELETED or BOOKMARK. The `object` of a BOOKMARK is a KubeObject with metadata only."""

    type: str
    object: T

    @property
    def resource_version(self) -> str:
        """Returns the resource version from which a watch may continue."""
        return self.object.metadata.resource_version


class _Envelope(KubeStruct):
    type: str
    object: msgspec.Raw


class WatchDecoder(Generic[T]):
    """Turns chunks of a stream into events. An ERROR event is raised as the ApiError it carries (410: Gone)."""

    def __init__(self, kind: type[T]) -> None:
        self._decode = _event_decoder(kind).decode
        self._partial: list[bytes] = []

    def feed(self, chunk: bytes) -> list[WatchEvent[T]]:
        """Return the events that `chunk` completes. Raises ApiError, or msgspec.DecodeError for an invalid event."""
        end = chunk.rfind(b"\n")
        if end < 0:
            self._partial.append(chunk)
            return []
        self._partial.append(chunk[:end])
        lines = b"".join(self._partial).split(b"\n")
        self._partial = [chunk[end + 1 :]] if end + 1 < len(chunk) else []
        return [event for line in lines if line and (event := self._event(line)) is not None]

    def _event(self, line: bytes) -> WatchEvent[T] | None:
        try:
            event = cast("WatchEvent[T]", self._decode(line))
        except msgspec.ValidationError:
            # The spec of a bookmark is empty, and an ERROR event has a Status, so neither can be decoded as T.
            envelope = _envelope.decode(line)
            if envelope.type in _CHANGES:
                raise
        else:
            if event.type in _CHANGES:
                return event
            envelope = _envelope.decode(line)
        if envelope.type == BOOKMARK:
            return WatchEvent(type=BOOKMARK, object=cast("T", _bookmark.decode(envelope.object)))
        if envelope.type == "ERROR":
            raise error_from_status(_status.decode(envelope.object))
        log.warning("watch: ignoring an event of unknown type %r", envelope.type)
        return None


_envelope = msgspec.json.Decoder(_Envelope)
_bookmark = msgspec.json.Decoder(KubeObject)
_status = msgspec.json.Decoder(Status)


@functools.cache
def _event_decoder(kind: type[KubeObject]) -> msgspec.json.Decoder[WatchEvent[KubeObject]]:
    return msgspec.json.Decoder(WatchEvent[kind])  # type: ignore[valid-type]
