"""The columns of each built-in kind, and the function that computes each cell.

Source: kubernetes pkg/printers/internalversion/printers.go.
"""

from __future__ import annotations

from typing import Any

from muster.embedded.apiserver.tables.pod_row import pod_row
from muster.embedded.apiserver.tables.table import AGE, GENERIC, NAME, Column, Columns, age, created, name_of
from muster.embedded.apiserver.types.registry import ResourceType
from muster.embedded.objects import Obj, items, section


def _plain(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name) for name in names)


def _wide(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, priority=1) for name in names)


def _node(obj: Obj, now: float) -> list[Any]:
    status, labels = section(obj, "status"), section(section(obj, "metadata"), "labels")
    ready = next((item for item in items(status, "conditions") if item.get("type") == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"]
    if section(obj, "spec").get("unschedulable"):
        words.append("SchedulingDisabled")
    prefix = "node-role.kubernetes.io/"
    roles = {key.removeprefix(prefix) for key in labels if key.startswith(prefix)} - {""}
    if labels.get("kubernetes.io/role"):
        roles.add(labels["kubernetes.io/role"])
    info = section(status, "nodeInfo")
    addresses = {item.get("type"): item.get("address") for item in reversed(items(status, "addresses"))}
    kernel = info.get("kernelVersion") or "<unknown>"
    if info.get("architecture"):
        kernel += f" ({info['architecture']})"
    return [
        name_of(obj),
        ",".join(words),
        ",".join(sorted(roles)) or "<none>",
        created(obj, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", "<none>"),
        addresses.get("ExternalIP", "<none>"),
        info.get("osImage") or "<unknown>",
        kernel,
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _event(obj: Obj, now: float) -> list[Any]:
    core = obj.get("apiVersion") == "v1"
    about = section(obj, "involvedObject" if core else "regarding")
    source = section(obj, "source" if core else "deprecatedSource")
    series = section(obj, "series")
    first = obj.get("firstTimestamp" if core else "deprecatedFirstTimestamp") or obj.get("eventTime")
    last = obj.get("lastTimestamp" if core else "deprecatedLastTimestamp") or first
    count = obj.get("count" if core else "deprecatedCount") or 1
    if series:
        last, count = series.get("lastObservedTime"), series.get("count", count)
    component = source.get("component") or obj.get("reportingComponent" if core else "reportingController") or ""
    host = source.get("host") or obj.get("reportingInstance") or ""
    kind, name = str(about.get("kind", "")).lower(), about.get("name", "")
    return [
        age(last, now),
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{kind}/{name}" if name else kind,
        about.get("fieldPath", ""),
        f"{component}, {host}" if host else component,
        str(obj.get("message" if core else "note", "")).strip(),
        age(first, now),
        count,
        name_of(obj),
    ]


def _quota(obj: Obj, now: float) -> list[Any]:
    status = section(obj, "status")
    hard, used = section(status, "hard"), section(status, "used")
    requests = [
        f"{name}: {used.get(name, '0')}/{hard[name]}" for name in sorted(hard) if not name.startswith("limits.")
    ]
    limits = [f"{name}: {used.get(name, '0')}/{hard[name]}" for name in sorted(hard) if name.startswith("limits.")]
    return [name_of(obj), ", ".join(requests), ", ".join(limits), created(obj, now)]


def _budget(obj: Obj, now: float) -> list[Any]:
    spec = section(obj, "spec")
    allowed = section(obj, "status").get("disruptionsAllowed", 0)
    least, most = (str(spec.get(name, "N/A")) for name in ("minAvailable", "maxUnavailable"))
    return [name_of(obj), least, most, allowed, created(obj, now)]


def _service(obj: Obj, now: float) -> list[Any]:
    spec = section(obj, "spec")
    ports = [f"{port.get('port')}/{port.get('protocol', 'TCP')}" for port in items(spec, "ports")]
    selector = ",".join(f"{key}={value}" for key, value in section(spec, "selector").items())
    address = (items(spec, "clusterIPs") or [spec.get("clusterIP")])[0] or "<none>"
    return [
        name_of(obj),
        spec.get("type", ""),
        address,
        spec.get("externalName") or "<none>",
        ",".join(ports) or "<none>",
        created(obj, now),
        selector or "<none>",
    ]


def _claim(obj: Obj, now: float) -> list[Any]:
    spec, status = section(obj, "spec"), section(obj, "status")
    return [
        name_of(obj),
        status.get("phase", "Pending"),
        spec.get("volumeName", ""),
        section(status, "capacity").get("storage", ""),
        ",".join(items(status, "accessModes") or items(spec, "accessModes")),
        spec.get("storageClassName", ""),
        created(obj, now),
    ]


def _volume(obj: Obj, now: float) -> list[Any]:
    spec, status = section(obj, "spec"), section(obj, "status")
    claim = section(spec, "claimRef")
    return [
        name_of(obj),
        section(spec, "capacity").get("storage", ""),
        ",".join(items(spec, "accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        status.get("phase", "Available"),
        f"{claim['namespace']}/{claim['name']}" if claim else "",
        spec.get("storageClassName", ""),
        created(obj, now),
    ]


def _phase(obj: Obj, now: float) -> list[Any]:
    return [name_of(obj), section(obj, "status").get("phase", ""), created(obj, now)]


def _lease(obj: Obj, now: float) -> list[Any]:
    return [name_of(obj), section(obj, "spec").get("holderIdentity") or "", created(obj, now)]


def _config(obj: Obj, now: float) -> list[Any]:
    return [name_of(obj), len(section(obj, "data")) + len(section(obj, "binaryData")), created(obj, now)]


def _secret(obj: Obj, now: float) -> list[Any]:
    return [name_of(obj), obj.get("type", ""), len(section(obj, "data")), created(obj, now)]


def _priority(obj: Obj, now: float) -> list[Any]:
    default = bool(obj.get("globalDefault"))
    return [name_of(obj), obj.get("value", 0), default, created(obj, now), obj.get("preemptionPolicy", "")]


def _created_at(obj: Obj, now: float) -> list[Any]:
    return [name_of(obj), section(obj, "metadata").get("creationTimestamp", "")]


def _binding(obj: Obj, now: float) -> list[Any]:
    role = section(obj, "roleRef")
    return [name_of(obj), f"{role.get('kind', '')}/{role.get('name', '')}", created(obj, now)]


_POD = Columns(
    (NAME, *_plain("Ready", "Status", "Restarts"), AGE, *_wide("IP", "Node", "Nominated Node", "Readiness Gates")),
    pod_row,
)
_EVENT = Columns(
    (
        *_plain("Last Seen", "Type", "Reason", "Object"),
        *_wide("Subobject", "Source"),
        *_plain("Message"),
        *_wide("First Seen", "Count"),
        Column("Name", format="name", priority=1),
    ),
    _event,
)
_NODE_WIDE = _wide("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime")
_RBAC = Columns((NAME, Column("Created At", type="date")), _created_at)
_BINDING = Columns((NAME, *_plain("Role"), AGE), _binding)
_NUMBER = Column("Allowed Disruptions", type="integer")
_PRIORITY = (
    NAME,
    Column("Value", type="integer"),
    Column("Global-Default", type="boolean"),
    AGE,
    *_plain("PreemptionPolicy"),
)

_BY_STORAGE: dict[str, Columns] = {
    "pods": _POD,
    "events": _EVENT,
    "nodes": Columns((NAME, *_plain("Status", "Roles"), AGE, *_plain("Version"), *_NODE_WIDE), _node),
    "namespaces": Columns((NAME, *_plain("Status"), AGE), _phase),
    "services": Columns(
        (NAME, *_plain("Type", "Cluster-IP", "External-IP", "Port(s)"), AGE, *_wide("Selector")), _service
    ),
    "configmaps": Columns((NAME, *_plain("Data"), AGE), _config),
    "secrets": Columns((NAME, *_plain("Type", "Data"), AGE), _secret),
    "resourcequotas": Columns((NAME, *_plain("Request", "Limit"), AGE), _quota),
    "persistentvolumeclaims": Columns(
        (NAME, *_plain("Status", "Volume", "Capacity", "Access Modes", "StorageClass"), AGE), _claim
    ),
    "persistentvolumes": Columns(
        (NAME, *_plain("Capacity", "Access Modes", "Reclaim Policy", "Status", "Claim", "StorageClass"), AGE), _volume
    ),
    "leases.coordination.k8s.io": Columns((NAME, *_plain("Holder"), AGE), _lease),
    "priorityclasses.scheduling.k8s.io": Columns(_PRIORITY, _priority),
    "poddisruptionbudgets.policy": Columns((NAME, *_plain("Min Available", "Max Unavailable"), _NUMBER, AGE), _budget),
    "customresourcedefinitions.apiextensions.k8s.io": _RBAC,
    "roles.rbac.authorization.k8s.io": _RBAC,
    "clusterroles.rbac.authorization.k8s.io": _RBAC,
    "rolebindings.rbac.authorization.k8s.io": _BINDING,
    "clusterrolebindings.rbac.authorization.k8s.io": _BINDING,
}


def columns_of(resource: ResourceType) -> Columns:
    """Return the columns of a kind."""
    if resource.columns is not None:
        return resource.columns
    return _BY_STORAGE.get(resource.storage, GENERIC)
