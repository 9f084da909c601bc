"""The kinds that the cache serves."""

from __future__ import annotations

from dataclasses import dataclass

from muster.kube.objects.meta import Resource
from muster.readcache.media import MediaType


@dataclass(frozen=True, slots=True)
class CachedKind:
    """A kind that the cache serves.

    Attributes:
        resource: its place in the API.
        custom: whether it is a CustomResourceDefinition's, so that items of its lists have apiVersion and kind.
        protobuf: whether the server writes it as protobuf too. Not for custom kinds; the embedded server never does.
        selectable: fields of a custom resource that selectors may use, as JSON paths such as `.spec.color`.
    """

    resource: Resource
    custom: bool = False
    protobuf: bool = True
    selectable: tuple[str, ...] = ()

    @property
    def list_kind(self) -> str:
        """The kind of its lists."""
        return f"{self.resource.kind}List"

    @property
    def media_types(self) -> tuple[MediaType, ...]:
        """The media types in which the cache may keep it."""
        return (MediaType.JSON, MediaType.PROTOBUF) if self.protobuf else (MediaType.JSON,)
