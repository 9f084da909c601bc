"""Leases."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

import msgspec

from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct, at_microsecond


class LeaseSpec(KubeStruct):
    """The holder of a lease, and since when it holds it."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: datetime | None = None
    renew_time: datetime | None = None
    lease_transitions: int | None = None

    def __post_init__(self) -> None:
        """Keep both times valid MicroTimes."""
        msgspec.structs.force_setattr(self, "acquire_time", at_microsecond(self.acquire_time))
        msgspec.structs.force_setattr(self, "renew_time", at_microsecond(self.renew_time))


class Lease(KubeObject):
    """coordination.k8s.io/v1 Lease."""

    RESOURCE: ClassVar[Resource] = Resource("coordination.k8s.io", "v1", "leases", "Lease")

    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)
