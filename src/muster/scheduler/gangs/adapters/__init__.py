"""Adapters that find the gang of a pod. The first adapter that matches is used; explicit labels come first."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from muster.api.names import SCHEDULER_NAME
from muster.kube.objects.meta import OwnerReference
from muster.kube.objects.pod import Pod
from muster.scheduler.gangs.adapters.coscheduling import COSCHEDULING
from muster.scheduler.gangs.adapters.job import JOB
from muster.scheduler.gangs.adapters.jobset import JOBSET
from muster.scheduler.gangs.adapters.label import alone, by_label
from muster.scheduler.gangs.adapters.membership import Membership, WorkloadRef
from muster.scheduler.gangs.adapters.mpijob import MPIJOB
from muster.scheduler.gangs.adapters.native import NATIVE
from muster.scheduler.gangs.adapters.raycluster import RAYCLUSTER
from muster.scheduler.gangs.adapters.source import Source
from muster.scheduler.gangs.adapters.statefulset import STATEFULSET

SOURCES: Mapping[str, Source[Any]] = MappingProxyType(
    {source.name: source for source in (NATIVE, COSCHEDULING, JOBSET, MPIJOB, RAYCLUSTER, JOB, STATEFULSET)}
)
"""Adapters by name, in the order in which they are tried."""


def membership(pod: Pod) -> Membership | None:
    """Return the pod's place in a gang; None for pods of other schedulers."""
    if pod.spec.scheduler_name != SCHEDULER_NAME:
        return None
    found = by_label(pod)
    if found is not None:
        return found
    for source in SOURCES.values():
        found = source.member(pod)
        if found is not None:
            return found
    return alone(pod)


def described(ref: WorkloadRef) -> str:
    """Return a readable name of the object."""
    resource = SOURCES[ref.source].kind.RESOURCE
    return f"{resource.kind} {ref.namespace}/{ref.name} ({resource.api_version})"


def source_of(owner: OwnerReference) -> str:
    """Return the name of the adapter for objects of that kind; "" if none handles it."""
    group = owner.api_version.split("/")[0]
    for source in SOURCES.values():
        resource = source.kind.RESOURCE
        if (resource.group, resource.kind) == (group, owner.kind):
            return source.name
    return ""
