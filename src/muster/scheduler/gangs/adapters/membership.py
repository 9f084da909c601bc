"""Membership of a pod in a gang, and the description of a workload: common to all adapters."""

from __future__ import annotations

import msgspec

from muster.api.names import ANNOTATION_GANG_SIZE, NODES_PER_GANG_MAX
from muster.kube.objects.meta import OwnerReference
from muster.kube.objects.pod import Pod


class WorkloadRef(msgspec.Struct, frozen=True):
    """Reference to the object that owns a pod.

    `uid` is "" if the pod has only the name. `source` is the name of the adapter.
    """

    source: str
    namespace: str
    name: str
    uid: str = ""


class Membership(msgspec.Struct, frozen=True):
    """A pod's place in a gang.

    Attributes:
        key: key of the gang.
        size: number of members, from the pod's annotation; 0 without it.
        slot: the slot, from the pod's label.
        attempt: if two pods have the same slot, the later attempt wins.
        single: whether it is a gang of one. It needs no Placement, because one bind is atomic.
        error: error in the pod's labels.
        workload: the object that has the number of members; None if the pods have it.
        role: members of one role are interchangeable; "" if there is one role only.
        position: stable index in the role, kept through a restart; empty if pods have no number.
    """

    key: str
    name: str
    uid: str = ""
    size: int = 1
    slot: int = 0
    attempt: int = 0
    single: bool = False
    error: str = ""
    workload: WorkloadRef | None = None
    role: str = ""
    position: tuple[int, ...] = ()


class Role(msgspec.Struct, frozen=True):
    """Number of members of one role.

    Attributes:
        minimum: the number of pods that must exist before the gang starts.
        members: the number of pods that are members, at least `minimum`. A member may come after the start. Pods
            beyond this number are extras, which join if there is room.
        size: the expected number of pods; None if it is the number of existing pods.
    """

    minimum: int
    members: int
    size: int | None

    @classmethod
    def exactly(cls, count: int) -> Role:
        """Return a role of exactly `count` members, which all start together."""
        return cls(count, count, count)


class Shape(msgspec.Struct, frozen=True):
    """Number of members of a gang by role. Roles get their slots in this order."""

    roles: dict[str, Role]

    @property
    def minimum(self) -> int:
        """Number of members needed to start the gang."""
        return sum(role.minimum for role in self.roles.values())

    @property
    def size(self) -> int | None:
        """Expected number of members; None if a role does not specify it."""
        sizes = [role.size for role in self.roles.values()]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def role_of(self, role: str) -> str:
        """Return the role under which a pod of that role is counted."""
        return "" if "" in self.roles else role


class Description(msgspec.Struct, frozen=True):
    """Gang size, end and warning read from a workload object.

    Attributes:
        shape: number of members.
        ended: the state in which it needs no nodes; "" while it may need them.
        warning: a known problem with this workload under this scheduler; "" without one.
    """

    shape: Shape
    ended: str = ""
    warning: str = ""


class Workload(msgspec.Struct, frozen=True):
    """An object that owns pods, as the scheduler caches it."""

    ref: WorkloadRef
    owner: OwnerReference
    says: Description


def gang_key(namespace: str, name: str, uid: str) -> str:
    """Return the key of a gang. A new object with the same name is a different gang."""
    return f"{namespace}/{name}/{uid}"


def pod_key(namespace: str, name: str, uid: str) -> str:
    """Return the key of a single pod, which is a gang of one."""
    return f"{namespace}/{name}/pod/{uid}"


def gang_name(ref: WorkloadRef) -> str:
    """Return the gang name of a workload, such as `statefulset.web`; names of TrainingJobs contain no dot."""
    return f"{ref.source}.{ref.name}"


def number(text: str) -> int | None:
    """Parse a decimal number of up to nine digits; None if the text is something else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def size_error(pod: Pod, text: str) -> str:
    """Return the error in a gang's size; "" if it is valid."""
    size = number(text)
    if size is None or not 1 <= size <= NODES_PER_GANG_MAX:
        return f"annotation {ANNOTATION_GANG_SIZE} of pod {pod.name} is {text!r}; set it to the number of members"
    return ""


def member_of(
    ref: WorkloadRef, pod: Pod, *, role: str = "", position: tuple[int, ...] = (), attempt: int = 0
) -> Membership:
    """Return the membership of a pod of a foreign workload; reads muster.dev/gang-size from the pod."""
    text = pod.metadata.annotations.get(ANNOTATION_GANG_SIZE)
    error = size_error(pod, text) if text is not None else ""
    name = gang_name(ref)
    return Membership(
        key=gang_key(ref.namespace, name, ref.uid),
        name=name,
        uid=ref.uid,
        size=0 if text is None or error else number(text) or 0,
        slot=-1,
        attempt=attempt,
        error=error,
        workload=ref,
        role=role,
        position=position,
    )


def controller_of(pod: Pod, kind: str, group: str) -> OwnerReference | None:
    """Return the pod's controller if it has that kind."""
    for owner in pod.metadata.owner_references:
        if owner.controller and owner.kind == kind and owner.api_version.split("/")[0] == group:
            return owner
    return None
