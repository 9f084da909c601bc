"""The registry of kinds: names, verbs, selectable fields, and the strategy of each kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from muster.embedded.apiserver.tables.table import Columns
from muster.embedded.apiserver.types.strategy import Strategy
from muster.embedded.objects import Obj, items, section

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
FieldReader = Callable[[Obj], dict[str, str]]


@dataclasses.dataclass(frozen=True)
class Subresource:
    """A path below an object, as discovery lists it."""

    name: str
    kind: str
    verbs: tuple[str, ...]
    group: str = ""
    version: str = ""


STATUS_VERBS = ("get", "patch", "update")


@dataclasses.dataclass(frozen=True, eq=False)
class ResourceType:
    """One kind at one version."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    strategy: Strategy = dataclasses.field(default_factory=Strategy)
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[Subresource, ...] = ()
    singular: str = ""
    list_kind: str = ""
    read_fields: FieldReader | None = None
    fields: tuple[str, ...] = ()  # field selectors besides metadata.name and metadata.namespace
    known_fields_message: bool = True  # which of kube-apiserver's two messages is used for other fields
    indexes: tuple[str, ...] = ()
    custom: bool = False
    storage_name: str = ""
    schema: Obj | None = None  # of custom kinds
    columns: Columns | None = None  # of custom kinds; the built-in ones are in `printers`

    @property
    def api_version(self) -> str:
        """`v1`, `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def storage(self) -> str:
        """The name of the store's table, which all versions of a kind share."""
        return self.storage_name or (f"{self.plural}.{self.group}" if self.group else self.plural)

    @property
    def items_kind(self) -> str:
        """`PodList`."""
        return self.list_kind or self.kind + "List"

    @property
    def has_status(self) -> bool:
        """Returns whether the kind has a status subresource."""
        return any(sub.name == "status" for sub in self.subresources)

    def describe(self, obj: Obj) -> dict[str, str]:
        """Read the selectable fields of an object."""
        return self.read_fields(obj) if self.read_fields is not None else {}


def status_of(kind: str) -> Subresource:
    """The status subresource of a kind."""
    return Subresource("status", kind, STATUS_VERBS)


def text(value: object) -> str:
    """Write a field's value as field selectors compare it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def pod_fields(obj: Obj) -> dict[str, str]:
    """Source: kubernetes pkg/registry/core/pod ToSelectableFields."""
    spec, status = section(obj, "spec"), section(obj, "status")
    addresses = items(status, "podIPs")
    return {
        "spec.nodeName": text(spec.get("nodeName")),
        "spec.restartPolicy": text(spec.get("restartPolicy")),
        "spec.schedulerName": text(spec.get("schedulerName")),
        "spec.serviceAccountName": text(spec.get("serviceAccountName")),
        "spec.hostNetwork": text(bool(spec.get("hostNetwork"))),
        "status.phase": text(status.get("phase")),
        "status.podIP": text(addresses[0].get("ip") if addresses else status.get("podIP")),
        "status.nominatedNodeName": text(status.get("nominatedNodeName")),
    }


def node_fields(obj: Obj) -> dict[str, str]:
    """Nodes can be selected by spec.unschedulable. The other fields let controllers avoid decoding nodes."""
    spec, conditions = section(obj, "spec"), items(section(obj, "status"), "conditions")
    ready: Obj = next((item for item in conditions if item.get("type") == "Ready"), {})
    return {
        "spec.unschedulable": text(bool(spec.get("unschedulable"))),
        "ready": text(ready.get("status")),
        "heartbeat": text(ready.get("lastHeartbeatTime")),
        "taints": ",".join(f"{t.get('key')}={t.get('value', '')}:{t.get('effect')}" for t in items(spec, "taints")),
    }


def namespace_fields(obj: Obj) -> dict[str, str]:
    """Namespaces can be selected by their phase."""
    name = section(obj, "metadata").get("name")
    return {"status.phase": text(section(obj, "status").get("phase")), "name": text(name)}


def secret_fields(obj: Obj) -> dict[str, str]:
    """Secrets can be selected by their type."""
    return {"type": text(obj.get("type"))}


def service_fields(obj: Obj) -> dict[str, str]:
    """Services can be selected by their address and type."""
    spec = section(obj, "spec")
    return {"spec.clusterIP": text(spec.get("clusterIP")), "spec.type": text(spec.get("type"))}


_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


def event_fields(obj: Obj) -> dict[str, str]:
    """Source: kubernetes pkg/registry/core/event ToSelectableFields."""
    about, source = section(obj, "involvedObject"), section(obj, "source")
    found = {f"involvedObject.{name}": text(about.get(name)) for name in _REFERENCE}
    component = text(source.get("component")) or text(obj.get("reportingComponent"))
    found["reason"] = text(obj.get("reason"))
    found["type"] = text(obj.get("type"))
    found["source"] = component
    found["reportingComponent"] = text(obj.get("reportingComponent"))
    return found


POD_FIELDS = tuple(pod_fields({}))
EVENT_FIELDS = tuple(event_fields({}))


class Registry:
    """All resource types served now: the built-in ones and those of CustomResourceDefinitions."""

    def __init__(self, builtin: tuple[ResourceType, ...]) -> None:
        self._types: dict[tuple[str, str, str], ResourceType] = {}
        self._by_storage: dict[str, ResourceType] = {}
        self.revision = 0  # changes with every add and remove
        for resource in builtin:
            self.add(resource)

    def add(self, resource: ResourceType) -> None:
        """Serve a type, replacing the one of the same name and version."""
        self._types[(resource.group, resource.version, resource.plural)] = resource
        current = self._by_storage.get(resource.storage)
        if current is None or current.group == resource.group:
            self._by_storage[resource.storage] = resource
        self.revision += 1

    def remove(self, resource: ResourceType) -> None:
        """Stop serving a type."""
        self._types.pop((resource.group, resource.version, resource.plural), None)
        self._by_storage.pop(resource.storage, None)
        self.revision += 1

    def find(self, group: str, version: str, plural: str) -> ResourceType | None:
        """Return the type served at a path."""
        return self._types.get((group, version, plural))

    def of_storage(self, storage: str) -> ResourceType | None:
        """Return the type that owns a table."""
        return self._by_storage.get(storage)

    def all(self) -> list[ResourceType]:
        """Return every type, in the order added."""
        return list(self._types.values())

    def stored(self) -> list[ResourceType]:
        """Return one type for each table."""
        return list(self._by_storage.values())

    def groups(self) -> dict[str, dict[str, list[ResourceType]]]:
        """Return types by group and version."""
        found: dict[str, dict[str, list[ResourceType]]] = {}
        for resource in self._types.values():
            found.setdefault(resource.group, {}).setdefault(resource.version, []).append(resource)
        return found
