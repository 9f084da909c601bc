"""Adapter type: how to read gang membership from pods of one kind of workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from muster.kube.objects.meta import K
from muster.kube.objects.pod import Pod
from muster.scheduler.gangs.adapters.membership import Description, Membership, Workload, WorkloadRef


@dataclass(frozen=True, slots=True, eq=False)
class Source(Generic[K]):
    """One adapter.

    Attributes:
        name: prefix of the names of its gangs.
        kind: type of the workload objects.
        member: returns a pod's membership; None if no such object owns it.
        describe: reads a workload object.
    """

    name: str
    kind: type[K]
    member: Callable[[Pod], Membership | None]
    describe: Callable[[K], Description]

    def workload(self, obj: K) -> Workload:
        """Return the object as the scheduler caches it."""
        ref = WorkloadRef(self.name, obj.namespace, obj.name, obj.uid)
        return Workload(ref, obj.owner_reference(controller=False), self.describe(obj))
