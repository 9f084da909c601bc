"""Formats objects for clients: unchanged, in another version, as PartialObjectMetadata, or as rows of a Table."""

from __future__ import annotations

import dataclasses
import functools

from muster.embedded.apiserver.tables.table import Columns, table
from muster.embedded.apiserver.types import event_versions
from muster.embedded.apiserver.types.registry import ResourceType
from muster.embedded.objects import Clock, Obj, decode, encode
from muster.embedded.watching import PLAIN, JsonView

PARTIAL = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}


def convert(resource: ResourceType, obj: Obj) -> Obj:
    """Convert a stored object to the version of the request's path."""
    return event_versions.to_events_v1(obj) if resource.group == "events.k8s.io" else obj


def partial(obj: Obj) -> Obj:
    """Return the object's metadata alone."""
    return {**PARTIAL, "metadata": obj.get("metadata", {})}


class EventsV1View(JsonView):
    """Events as events.k8s.io/v1."""

    key: str | None = "events.k8s.io/v1"

    def encode(self, data: bytes) -> bytes:
        """Write one event."""
        return encode(event_versions.to_events_v1(decode(data)))


class PartialView(JsonView):
    """Metadata alone."""

    key: str | None = "partial"

    def encode(self, data: bytes) -> bytes:
        """Write one object's metadata."""
        return encode(partial(decode(data)))


class TableView(JsonView):
    """Each object as a Table of one row. Only the first Table has the columns, as in kube-apiserver."""

    key: str | None = None

    def __init__(self, resource: ResourceType, columns: Columns, include: str, clock: Clock) -> None:
        self._resource, self._columns, self._include, self._clock = resource, columns, include, clock
        self._first = True

    def encode(self, data: bytes) -> bytes:
        """Write one row."""
        obj = convert(self._resource, decode(data))
        made = table([obj], self._columns, self._include, self._clock.now(), definitions=self._first)
        made["metadata"] = {"resourceVersion": obj["metadata"]["resourceVersion"]}
        self._first = False
        return encode(made)


@dataclasses.dataclass(frozen=True)
class Form:
    """The form in the Accept header: "" plain, Table, PartialObjectMetadata, PartialObjectMetadataList."""

    name: str = ""


@functools.lru_cache(maxsize=64)
def accepted(header: str) -> Form | None:
    """Parse the Accept header; None if it names no supported format."""
    if not header:
        return Form()
    for clause in header.split(","):
        media, *parameters = [part.strip() for part in clause.split(";")]
        if media not in ("application/json", "*/*", "application/*"):
            continue
        wanted = dict(parameter.partition("=")[::2] for parameter in parameters)
        if "as" not in wanted:
            return Form()
        if wanted.get("g") == "meta.k8s.io" and wanted.get("v") in ("v1", "v1beta1"):
            return Form(wanted["as"])
    return None


def plain_view(resource: ResourceType) -> JsonView:
    """Return the view of whole objects."""
    return EventsV1View() if resource.group == "events.k8s.io" else PLAIN


__all__ = ["Form", "PartialView", "TableView", "accepted", "convert", "partial", "plain_view"]
