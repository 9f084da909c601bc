"""Finds the kinds that the cache is configured to serve, by the API server's discovery."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from muster.kube.client import Client
from muster.kube.errors import ApiError, NotFound
from muster.kube.objects.meta import Resource
from muster.readcache.kinds import CachedKind
from muster.readcache.media import MediaType

DEFAULT_KINDS: Final = (
    "pods",
    "nodes",
    "services",
    "namespaces",
    "endpointslices.discovery.k8s.io",
    "trainingjobs.muster.dev",
    "nodehealths.muster.dev",
)
"""What agents of nodes read, and what Muster's own programs read. No Secrets."""

_BUILTIN_GROUPS: Final = frozenset(
    {
        "",
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
        "apps",
        "autoscaling",
        "batch",
        "certificates.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "flowcontrol.apiserver.k8s.io",
        "networking.k8s.io",
        "node.k8s.io",
        "policy",
        "rbac.authorization.k8s.io",
        "resource.k8s.io",
        "scheduling.k8s.io",
        "storage.k8s.io",
        "storagemigration.k8s.io",
    }
)

_NAME: Final = re.compile(
    r"(?P<plural>[a-z][a-z0-9]*)(\.(?P<version>v\d+((alpha|beta)\d+)?))?(\.(?P<group>[a-z0-9]([a-z0-9.-]*[a-z0-9])?))?"
)


class _Version(msgspec.Struct):
    version: str


class _Group(msgspec.Struct, rename="camel"):
    preferred_version: _Version


class _Entry(msgspec.Struct):
    name: str
    kind: str
    namespaced: bool


class _Resources(msgspec.Struct):
    resources: list[_Entry]


class _SelectableField(msgspec.Struct, rename="camel"):
    json_path: str


class _CustomVersion(msgspec.Struct, rename="camel"):
    name: str
    selectable_fields: list[_SelectableField] = []


class _CustomSpec(msgspec.Struct):
    versions: list[_CustomVersion]


class _Custom(msgspec.Struct):
    spec: _CustomSpec


def split_name(name: str) -> tuple[str, str, str]:
    """Split `PLURAL[.VERSION][.GROUP]` into plural, version and group; "" where it has none.

    Raises:
        ValueError: it has another form.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not PLURAL[.VERSION][.GROUP], as in pods or leases.v1.coordination.k8s.io")
    return found["plural"], found["version"] or "", found["group"] or ""


async def resolve(client: Client, name: str) -> CachedKind:
    """Find a kind.

    Without a version it is the group's preferred one.

    Raises:
        NotFound: the server does not serve it.
        ApiError: the server did not answer.
    """
    plural, version, group = split_name(name)
    if not group:
        version = version or "v1"
    elif not version:
        found = msgspec.json.decode(await client.request("GET", f"/apis/{group}"), type=_Group)
        version = found.preferred_version.version
    place = f"/apis/{group}/{version}" if group else f"/api/{version}"
    entries = msgspec.json.decode(await client.request("GET", place), type=_Resources).resources
    entry = next((entry for entry in entries if entry.name == plural), None)
    if entry is None:
        raise NotFound(404, "NotFound", f"the API server serves no {plural} in {place.partition('/')[2]}")
    resource = Resource(group, version, plural, entry.kind, entry.namespaced)
    custom = group not in _BUILTIN_GROUPS
    protobuf = not custom and await _has_protobuf(client, resource)
    selectable = await _selectable(client, resource) if custom else ()
    return CachedKind(resource, custom, protobuf, selectable)


async def _has_protobuf(client: Client, resource: Resource) -> bool:
    try:
        await client.request(
            "GET",
            resource.path(),
            params={"limit": "1"},  # with resourceVersion=0 the limit would be ignored
            headers={"Accept": MediaType.PROTOBUF.value},
        )
    except ApiError as error:
        if error.status == 406:
            return False
        raise
    return True


async def _selectable(client: Client, resource: Resource) -> tuple[str, ...]:
    """Read a custom kind's selectable fields; none without the right to, so that such selectors are forwarded."""
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{resource.plural}.{resource.group}"
    try:
        custom = msgspec.json.decode(await client.request("GET", path), type=_Custom)
    except ApiError as error:
        if error.status in (403, 404):
            return ()
        raise
    fields = [
        field
        for version in custom.spec.versions
        if version.name == resource.version
        for field in version.selectable_fields
    ]
    return tuple(field.json_path for field in fields)
