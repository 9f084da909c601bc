"""What an adapter says of a pod and of the object that it belongs to: the one type behind all sources of gangs."""

from __future__ import annotations

import msgspec

from muster.api.names import ANNOTATION_GANG_SIZE, NODES_PER_GANG_MAX
from muster.kube.meta import OwnerReference
from muster.kube.pod import Pod


class WorkloadRef(msgspec.Struct, frozen=True):
    """The object a pod belongs to; `uid` is "" where the pod only names it. `source` is the name of the adapter."""

    source: str
    namespace: str
    name: str
    uid: str = ""


class Membership(msgspec.Struct, frozen=True):
    """A pod's place in a gang.

    Attributes:
        key: of the gang.
        size: members of the gang as the pod itself says; 0 where it does not say.
        slot: its slot, where the pod itself says so.
        attempt: of two pods in a slot the one of the later attempt counts.
        single: a gang of one needs no Placement: one bind is all or nothing.
        error: what is wrong with the pod's labels.
        workload: the object that says how many members there are; None where the pods say so.
        role: members of one role can stand in for each other; "" where there is one role only.
        position: which one of its role it is, and stays through a restart; empty where pods have no number.
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
    """How many members of one role there are.

    Attributes:
        minimum: the gang does not start before so many exist.
        members: so many are placed and kept as members, also where they come later; those beyond are extras, which
            join where there is room. Never below `minimum`.
        size: so many there will be; None: as many as there are pods.
    """

    minimum: int
    members: int
    size: int | None

    @classmethod
    def exactly(cls, count: int) -> Role:
        """All or nothing."""
        return cls(count, count, count)


class Shape(msgspec.Struct, frozen=True):
    """How many members a gang has, by role, in the order in which they get their slots."""

    roles: dict[str, Role]

    @property
    def minimum(self) -> int:
        """Members without which the gang does not start."""
        return sum(role.minimum for role in self.roles.values())

    @property
    def size(self) -> int | None:
        """Members there will be; None where nobody says."""
        sizes = [role.size for role in self.roles.values()]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def role_of(self, role: str) -> str:
        """Return the role under which a pod of that role is counted."""
        return "" if "" in self.roles else role


class Description(msgspec.Struct, frozen=True):
    """What an object says of its pods.

    Attributes:
        shape: how many there are.
        ended: the word for a state in which it needs no nodes, "" where it may need them.
        warning: what would go wrong with it under this scheduler; "" where nothing is known.
    """

    shape: Shape
    ended: str = ""
    warning: str = ""


class Workload(msgspec.Struct, frozen=True):
    """An object that pods belong to, as scheduling needs it."""

    ref: WorkloadRef
    owner: OwnerReference
    says: Description


def gang_key(namespace: str, name: str, uid: str) -> str:
    """Return the key of a gang: another object of the same name is another gang."""
    return f"{namespace}/{name}/{uid}"


def pod_key(namespace: str, name: str, uid: str) -> str:
    """Return the key of a pod that is a gang of its own."""
    return f"{namespace}/{name}/pod/{uid}"


def gang_name(ref: WorkloadRef) -> str:
    """Return the name of a workload's gang, such as `statefulset.web`; no TrainingJob's name has a dot."""
    return f"{ref.source}.{ref.name}"


def number(text: str) -> int | None:
    """Return the number that the text is, None where it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def size_error(pod: Pod, text: str) -> str:
    """Return what is wrong with a gang's size, "" where it is one."""
    size = number(text)
    if size is None or not 1 <= size <= NODES_PER_GANG_MAX:
        return f"annotation {ANNOTATION_GANG_SIZE} of pod {pod.name} is {text!r}; set it to the number of members"
    return ""


def member_of(
    ref: WorkloadRef, pod: Pod, *, role: str = "", position: tuple[int, ...] = (), attempt: int = 0
) -> Membership:
    """Return the membership of a pod of somebody else's workload; muster.dev/gang-size on the pod is read here."""
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
    """Return the pod's controller where it is of that kind."""
    for owner in pod.metadata.owner_references:
        if owner.controller and owner.kind == kind and owner.api_version.split("/")[0] == group:
            return owner
    return None
