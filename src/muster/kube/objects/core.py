"""The smaller kinds of core/v1 (and events.k8s.io) that we read and write."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

import msgspec

from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct, at_microsecond


class NamespaceStatus(KubeStruct):
    """`phase` is Active or Terminating."""

    phase: str = ""


class Namespace(KubeObject):
    """core/v1 Namespace."""

    RESOURCE: ClassVar[Resource] = Resource("", "v1", "namespaces", "Namespace", namespaced=False)

    status: NamespaceStatus = msgspec.field(default_factory=NamespaceStatus)


class ConfigMap(KubeObject):
    """core/v1 ConfigMap; `binary_data` is base64 on the wire."""

    RESOURCE: ClassVar[Resource] = Resource("", "v1", "configmaps", "ConfigMap")

    data: dict[str, str] = msgspec.field(default_factory=dict)
    binary_data: dict[str, bytes] = msgspec.field(default_factory=dict)
    immutable: bool | None = None


class Secret(KubeObject):
    """core/v1 Secret; `data` is base64 on the wire. Its repr shows key names only."""

    RESOURCE: ClassVar[Resource] = Resource("", "v1", "secrets", "Secret")

    type: str = ""
    data: dict[str, bytes] = msgspec.field(default_factory=dict)
    string_data: dict[str, str] = msgspec.field(default_factory=dict)
    immutable: bool | None = None

    def __repr__(self) -> str:
        return f"Secret({self.key!r}, type={self.type!r}, keys={sorted({*self.data, *self.string_data})})"


class ServiceAccount(KubeObject):
    """core/v1 ServiceAccount."""

    RESOURCE: ClassVar[Resource] = Resource("", "v1", "serviceaccounts", "ServiceAccount")


class ObjectReference(KubeStruct):
    """Points at any object."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class EventSource(KubeStruct):
    """The reporter of a core/v1 event."""

    component: str = ""
    host: str = ""


class Event(KubeObject):
    """core/v1 Event, the form kubectl describe reads."""

    RESOURCE: ClassVar[Resource] = Resource("", "v1", "events", "Event")

    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    reason: str = ""
    message: str = ""
    type: str = ""
    source: EventSource | None = None
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    count: int = 0
    event_time: datetime | None = None
    action: str = ""
    reporting_component: str = ""
    reporting_instance: str = ""
    related: ObjectReference | None = None

    def __post_init__(self) -> None:
        """Keep `event_time` a valid MicroTime."""
        msgspec.structs.force_setattr(self, "event_time", at_microsecond(self.event_time))
