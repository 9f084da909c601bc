"""Discovery: /api, /apis in their legacy and aggregated (apidiscovery.k8s.io/v2) forms, /version."""

from __future__ import annotations

import hashlib
import platform

from muster.embedded.apiserver.request import Request, Response, json_response
from muster.embedded.apiserver.types.registry import Registry, ResourceType
from muster.embedded.objects import Obj, encode

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
VERSION = ("1", "36", "v1.36.0+muster")


def answer(registry: Registry, request: Request) -> Response | None:
    """Answer a discovery request; None for another path."""
    path = request.path.rstrip("/")
    if path == "/version":
        return json_response(200, _version())
    if path in ("", "/"):
        return json_response(
            200, {"paths": ["/api", "/api/v1", "/apis", "/healthz", "/openapi/v2", "/openapi/v3", "/version"]}
        )
    if path in ("/api", "/apis"):
        if "as=APIGroupDiscoveryList" in request.headers.get("accept", ""):
            return _aggregated(registry, core=path == "/api")
        return json_response(200, _core_versions() if path == "/api" else _group_list(registry))
    parts = path.strip("/").split("/")
    groups = registry.groups()
    if parts[0] == "api" and len(parts) == 2:
        return _resource_list(groups.get("", {}).get(parts[1]), parts[1])
    if parts[0] == "apis" and len(parts) == 2 and parts[1] in groups:
        return json_response(200, {"kind": "APIGroup", "apiVersion": "v1", **_group(parts[1], groups[parts[1]])})
    if parts[0] == "apis" and len(parts) == 3:
        return _resource_list(groups.get(parts[1], {}).get(parts[2]), f"{parts[1]}/{parts[2]}")
    return None


def _version() -> Obj:
    major, minor, text = VERSION
    return {
        "major": major,
        "minor": minor,
        "gitVersion": text,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "none",
        "platform": f"linux/{platform.machine()}",
    }


def _core_versions() -> Obj:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def _group(name: str, versions: dict[str, list[ResourceType]]) -> Obj:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _group_list(registry: Registry) -> Obj:
    groups = [_group(name, versions) for name, versions in registry.groups().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def _resource_list(resources: list[ResourceType] | None, group_version: str) -> Response | None:
    if resources is None:
        return None
    listed: list[Obj] = []
    for resource in resources:
        entry: Obj = {
            "name": resource.plural,
            "singularName": resource.singular or resource.kind.lower(),
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(resource.verbs),
        }
        if resource.short_names:
            entry["shortNames"] = list(resource.short_names)
        if resource.categories:
            entry["categories"] = list(resource.categories)
        if "list" in resource.verbs:
            entry["storageVersionHash"] = _hash(resource)
        listed.append(entry)
        for sub in resource.subresources:
            named = {"group": sub.group, "version": sub.version} if sub.group else {}
            listed.append(
                {
                    "name": f"{resource.plural}/{sub.name}",
                    "singularName": "",
                    "namespaced": resource.namespaced,
                    **named,
                    "kind": sub.kind,
                    "verbs": list(sub.verbs),
                }
            )
    return json_response(
        200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed}
    )


def _hash(resource: ResourceType) -> str:
    return hashlib.sha256(f"{resource.storage}/{resource.version}".encode()).hexdigest()[:12]


def _aggregated(registry: Registry, *, core: bool) -> Response:
    found = []
    for name, versions in registry.groups().items():
        if bool(name) is core:
            continue
        meta: Obj = {"creationTimestamp": None}
        if name:
            meta["name"] = name
        listed = [
            {"version": version, "resources": [_described(item) for item in resources], "freshness": "Current"}
            for version, resources in versions.items()
        ]
        found.append({"metadata": meta, "versions": listed})
    body = encode(
        {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": found}
    )
    return Response(200, body, content_type=AGGREGATED, headers={"Vary": "Accept"})


def _described(resource: ResourceType) -> Obj:
    def kind(group: str, version: str, name: str) -> Obj:
        return {"group": group, "version": version, "kind": name}

    entry: Obj = {
        "resource": resource.plural,
        "responseKind": kind(resource.group, resource.version, resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular or resource.kind.lower(),
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    if resource.subresources:
        entry["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": kind(sub.group or resource.group, sub.version or resource.version, sub.kind),
                "verbs": list(sub.verbs),
            }
            for sub in resource.subresources
        ]
    return entry
