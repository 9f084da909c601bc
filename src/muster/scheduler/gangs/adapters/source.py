"""A kind of object whose pods are gangs: which pods are its, and what it says of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from muster.kube.meta import K
from muster.kube.pod import Pod
from muster.scheduler.gangs.adapters.membership import Description, Membership, Workload, WorkloadRef


@dataclass(frozen=True, slots=True, eq=False)
class Source(Generic[K]):
    """One adapter.

    Attributes:
        name: what its gangs' names begin with.
        kind: the objects.
        member: reads a pod; None where it belongs to no such object.
        describe: reads an object.
    """

    name: str
    kind: type[K]
    member: Callable[[Pod], Membership | None]
    describe: Callable[[K], Description]

    def workload(self, obj: K) -> Workload:
        """Return the object as the scheduler keeps it."""
        ref = WorkloadRef(self.name, obj.namespace, obj.name, obj.uid)
        return Workload(ref, obj.owner_reference(controller=False), self.describe(obj))
