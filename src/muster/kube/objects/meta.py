"""Fields that every Kubernetes object has: metadata, its resource, conditions."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, ClassVar, Final, Generic, TypeVar
from urllib.parse import quote

import msgspec

from muster.kube.errors import Invalid
from muster.kube.objects.struct import KubeStruct

_PLAIN_SEGMENT: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._~]*")


def path_segment(value: str, what: str = "name") -> str:
    """Return a name as one escaped segment of a URL path.

    Raises:
        Invalid: the name would reach another path; client-go refuses the same names (rest.IsValidPathSegmentName).
    """
    if _PLAIN_SEGMENT.fullmatch(value):
        return value
    if value in ("", ".", "..") or any(character in "/%\\" or not character.isprintable() for character in value):
        raise Invalid(0, "InvalidName", f"{value!r} cannot be the {what} of an object")
    return quote(value, safe="")


class Resource(msgspec.Struct, frozen=True):
    """The place of a kind in the API: group ("" is core), version, plural, kind, and whether it is namespaced."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`v1`, or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """Return the URL path of a collection (all namespaces when `namespace` is None), an object or a subresource.

        Raises:
            Invalid: `namespace` or `name` cannot be a segment of a path.
        """
        path = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if namespace and self.namespaced:
            path += f"/namespaces/{path_segment(namespace, 'namespace')}"
        path += f"/{self.plural}"
        if name:
            path += f"/{path_segment(name)}"
        return f"{path}/{subresource}" if subresource else path

    def object_path(self, namespace: str | None, name: str, subresource: str = "") -> str:
        """Return the path of one object. Raises Invalid also for an empty name: its path is that of the collection."""
        if not name:
            raise Invalid(0, "InvalidName", f"the name of a {self.kind} is missing")
        return self.path(namespace, name, subresource)


class OwnerReference(KubeStruct):
    """An owner: this object is deleted together with it."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(KubeStruct):
    """metadata, without managedFields."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()


class Condition(KubeStruct):
    """metav1.Condition: `status` is True, False or Unknown."""

    type: str
    status: str
    observed_generation: int = 0
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class KubeObject(KubeStruct):
    """A top-level object. A subclass sets RESOURCE, from which apiVersion and kind are written. They are not stored."""

    RESOURCE: ClassVar[Resource]

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        resource = cls.__dict__.get("RESOURCE")
        if resource is not None:
            cls.HEADER = f'"apiVersion":"{resource.api_version}","kind":"{resource.kind}"'.encode()

    @property
    def api_version(self) -> str:
        """`v1`, or `group/version`."""
        return self.RESOURCE.api_version

    @property
    def kind(self) -> str:
        """The kind's name."""
        return self.RESOURCE.kind

    @property
    def name(self) -> str:
        """metadata.name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """metadata.namespace; "" for cluster-scoped objects."""
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        """metadata.uid."""
        return self.metadata.uid

    @property
    def key(self) -> str:
        """`namespace/name`, or `name` for cluster-scoped objects: the key in informers and work queues."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name

    def owner_reference(self, *, controller: bool = True) -> OwnerReference:
        """Return a reference that makes another object belong to this one."""
        return OwnerReference(
            api_version=self.api_version,
            kind=self.kind,
            name=self.name,
            uid=self.uid,
            controller=controller or None,
            block_owner_deletion=controller or None,
        )


K = TypeVar("K", bound=KubeObject)


def split_key(key: str) -> tuple[str, str]:
    """Return (namespace, name) of a key; the namespace of a cluster-scoped object is ""."""
    namespace, _, name = key.rpartition("/")
    return namespace, name


class ListMeta(KubeStruct):
    """metadata of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Listing(KubeStruct, Generic[K]):
    """One page of a list."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[K] = msgspec.field(default_factory=list)

    @property
    def resource_version(self) -> str:
        """The version of the list, from which a watch continues."""
        return self.metadata.resource_version

    @property
    def continue_(self) -> str:
        """The token of the next page; "" on the last one."""
        return self.metadata.continue_


def is_later(left: KubeObject, right: KubeObject) -> bool:
    """Returns whether `left` is the later version of an object; resource versions compare as numbers (KEP-5504)."""
    one, two = left.metadata.resource_version, right.metadata.resource_version
    return one.isdecimal() and two.isdecimal() and int(one) > int(two)
