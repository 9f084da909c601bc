"""OpenAPI: fields of built-in kinds from the field table, without descriptions, and the full schema of custom kinds.

v3 is JSON. v2 is asked for as protobuf, and an empty document is a valid one: clients then rely on v3 or on the types
built into them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from typing import Final

from muster.embedded.apiserver.request import Request, Response, json_response
from muster.embedded.apiserver.types.field_table import SCALARS, field_table, type_name
from muster.embedded.apiserver.types.registry import Registry, ResourceType
from muster.embedded.objects import Obj, encode

V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""The content type of kube-apiserver's answer: kubectl asks for `v2@v1.0`, which it cannot parse as a media type."""
_SCALAR_SCHEMAS: Final[dict[str, Obj]] = {
    "s": {"type": "string"},
    "b": {"type": "boolean"},
    "i": {"type": "integer", "format": "int64"},
    "j": {"type": "integer", "format": "int32"},
    "f": {"type": "number", "format": "double"},
    "q": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "x": {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
    "t": {"type": "string", "format": "date-time"},
    "u": {"type": "string", "format": "date-time"},
    "B": {"type": "string", "format": "byte"},
    "o": {"type": "object"},
    "a": {},
}


def answer(registry: Registry, request: Request) -> Response | None:
    """Answer an OpenAPI request; None for another path."""
    path = request.path.rstrip("/")
    if path == "/openapi/v2":
        if "protobuf" in request.headers.get("accept", ""):
            return Response(200, b"", content_type=V2_PROTOBUF)
        info = {"title": "Kubernetes", "version": "v1.36.0"}
        return json_response(200, {"swagger": "2.0", "info": info, "paths": {}, "definitions": {}})
    if path == "/openapi/v3":
        listed = {name: {"serverRelativeURL": _url(name, document)} for name, document in _documents(registry)}
        return json_response(200, {"paths": listed})
    if path.startswith("/openapi/v3/"):
        for name, document in _documents(registry):
            if name == path.removeprefix("/openapi/v3/"):
                return json_response(200, document)
    return None


def _url(name: str, document: Obj) -> str:
    return f"/openapi/v3/{name}?hash={hashlib.sha256(encode(document)).hexdigest()[:32].upper()}"


def _documents(registry: Registry) -> Iterator[tuple[str, Obj]]:
    for group, versions in registry.groups().items():
        for version, resources in versions.items():
            name = f"apis/{group}/{version}" if group else f"api/{version}"
            yield name, _document(name, resources)


def _document(prefix: str, resources: list[ResourceType]) -> Obj:
    paths: Obj = {}
    schemas: Obj = {}
    for resource in resources:
        gvk = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        if resource.schema is not None:
            name = ".".join([*reversed(resource.group.split(".")), resource.version, resource.kind])
            schemas[name] = {**resource.schema, "x-kubernetes-group-version-kind": [gvk]}
        else:
            name = type_name(resource.api_version, resource.kind)
            schemas.update((part, _schema(part)) for part in _parts(name) if part not in schemas)
            described = f"{resource.kind}: the embedded server knows the names and types of fields, no descriptions."
            schemas[name] = {
                **_schema(name),
                "description": described,
                "x-kubernetes-group-version-kind": [gvk],
            }
        if "patch" not in resource.verbs:
            continue
        middle = "/namespaces/{namespace}" if resource.namespaced else ""
        operations: Obj = {}
        for method, action in (("get", "get"), ("patch", "patch"), ("put", "put"), ("delete", "delete")):
            operations[method] = {
                "x-kubernetes-action": action,
                "x-kubernetes-group-version-kind": gvk,
                "responses": {"200": {"description": "OK"}},
            }
            if method in ("patch", "put"):
                operations[method]["parameters"] = [_parameter("dryRun"), _parameter("fieldValidation")]
        collection: Obj = {
            "post": {
                "x-kubernetes-action": "post",
                "x-kubernetes-group-version-kind": gvk,
                "parameters": [_parameter("dryRun"), _parameter("fieldValidation")],
                "responses": {"201": {"description": "Created"}},
            }
        }
        paths[f"/{prefix}{middle}/{resource.plural}"] = collection
        paths[f"/{prefix}{middle}/{resource.plural}/{{name}}"] = operations
    info = {"title": "Kubernetes", "version": "v1.36.0"}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _parameter(name: str) -> Obj:
    return {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}


@functools.cache
def _parts(name: str) -> tuple[str, ...]:
    """Return a type and all types of its fields, recursively."""
    found, waiting = {name}, [name]
    while waiting:
        for field in field_table()[waiting.pop()].values():
            inner = field.type.strip("[]{}")
            if inner not in SCALARS and inner not in found:
                found.add(inner)
                waiting.append(inner)
    return tuple(sorted(found))


@functools.cache
def _schema(name: str) -> Obj:
    fields = field_table()[name]
    schema: Obj = {"type": "object", "properties": {field: _type(each.type) for field, each in fields.items()}}
    needed = [field for field, each in fields.items() if each.required]
    return {**schema, "required": needed} if needed else schema


def _type(kind: str) -> Obj:
    if kind in _SCALAR_SCHEMAS:
        return _SCALAR_SCHEMAS[kind]
    if kind[0] == "[":
        return {"type": "array", "items": _type(kind[1:-1])}
    if kind[0] == "{":
        return {"type": "object", "additionalProperties": _type(kind[1:-1])}
    return {"allOf": [{"$ref": f"#/components/schemas/{kind}"}]}
