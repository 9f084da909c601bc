"""Writes the table of built-in kinds' fields from what a real API server publishes.

`python -m muster.embedded.apiserver.types.field_writer` starts a control plane, reads its OpenAPI documents and writes.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from muster.controlplane.programs import ControlPlane
from muster.embedded.apiserver.types import field_table

GROUPS: Final = (
    "api/v1",
    *(
        f"apis/{group}.k8s.io/v1"
        for group in (
            "admissionregistration",
            "apiextensions",
            "authentication",
            "authorization",
            "coordination",
            "events",
            "rbac.authorization",
            "scheduling",
        )
    ),
    "apis/policy/v1",
)
"""Documents that describe the kinds which the embedded server serves."""
ROOTS: Final = (
    *(
        f"core.v1.{kind}"
        for kind in (
            "Binding", "ConfigMap", "Event", "Namespace", "Node", "PersistentVolume", "PersistentVolumeClaim", "Pod",
            "ResourceQuota", "Secret", "Service", "ServiceAccount",
        )
    ),
    "admissionregistration.v1.ValidatingAdmissionPolicy",
    "admissionregistration.v1.ValidatingAdmissionPolicyBinding",
    "apiextensions.v1.CustomResourceDefinition",
    "authentication.v1.SelfSubjectReview",
    "authentication.v1.TokenRequest",
    "authentication.v1.TokenReview",
    *(
        f"authorization.v1.{kind}"
        for kind in (
            "LocalSubjectAccessReview", "SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview",
        )
    ),
    "coordination.v1.Lease",
    "events.v1.Event",
    "meta.v1.DeleteOptions",
    "policy.v1.Eviction",
    "policy.v1.PodDisruptionBudget",
    "rbac.v1.ClusterRole",
    "rbac.v1.ClusterRoleBinding",
    "rbac.v1.Role",
    "rbac.v1.RoleBinding",
    "scheduling.v1.PriorityClass",
)  # fmt: skip
_PREFIXES: Final = re.compile(
    r"io\.k8s\.(api\.|apimachinery\.pkg\.apis\.|apiextensions-apiserver\.pkg\.apis\.|apimachinery\.pkg\.)"
)
_PLAIN: Final = {
    "api.resource.Quantity": "q",
    "util.intstr.IntOrString": "x",
    "meta.v1.Time": "t",
    "meta.v1.MicroTime": "u",
    "meta.v1.FieldsV1": "o",
    "runtime.RawExtension": "o",
    "apiextensions.v1.JSON": "a",
    "apiextensions.v1.JSONSchemaPropsOrArray": "a",
    "apiextensions.v1.JSONSchemaPropsOrBool": "a",
    "apiextensions.v1.JSONSchemaPropsOrStringArray": "a",
}
_HEADER: Final = "# Fields of built-in kinds, written by field_writer.py and read by field_table.py.\n"
_WIDTH: Final = 118


def table_of(documents: list[Mapping[str, Any]]) -> str:
    """Return the table of what the OpenAPI documents say about the kinds in ROOTS."""
    schemas = {
        _short(name): schema for document in documents for name, schema in document["components"]["schemas"].items()
    }
    lines: dict[str, list[str]] = {}
    waiting, seen = list(ROOTS), set(ROOTS)
    while waiting:
        name = waiting.pop()
        group, _, kind = name.rpartition(".")
        schema = schemas[name]
        words = [kind]
        for field, described in sorted(schema.get("properties", {}).items()):
            written = _written(described)
            for other in re.findall(r"[A-Za-z0-9]+(?:\.[A-Za-z0-9]+)+", written):
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
            mark = "!" if field in schema.get("required", ()) else ""
            words.append(f"{field}{mark}:{written.replace(f'{group}.', '')}")
        lines.setdefault(group, []).append(
            textwrap.fill(
                " ".join(words), _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
        )
    parts = [f"[{group}]\n" + "\n".join(sorted(lines[group])) + "\n" for group in sorted(lines)]
    return _HEADER + "\n" + "\n".join(parts)


def _short(name: str) -> str:
    return _PREFIXES.sub("", name)


def _written(schema: Mapping[str, Any]) -> str:
    reference = schema.get("$ref") or next((part["$ref"] for part in schema.get("allOf", ()) if "$ref" in part), "")
    if reference:
        name = _short(reference.rpartition("/")[2])
        return _PLAIN.get(name, name)
    match schema.get("type"), schema.get("format"):
        case "array", _:
            return f"[{_written(schema['items'])}]"
        case "object", _:
            inner = schema.get("additionalProperties")
            return f"{{{_written(inner)}}}" if isinstance(inner, dict) else "o"
        case "string", "byte":
            return "B"
        case "string", _:
            return "s"
        case "boolean", _:
            return "b"
        case "integer", "int32":
            return "j"
        case "integer", _:
            return "i"
        case "number", _:
            return "f"
    return "a"


def main() -> None:
    """Write the table."""
    with ControlPlane(controller_manager=False) as plane:
        kubectl = plane.access.kubectl
        documents = [json.loads(kubectl("get", "--raw", f"/openapi/v3/{group}")) for group in GROUPS]
    folder = Path(field_table.__file__).parent
    (folder / field_table.TABLE).write_text(table_of(documents))


if __name__ == "__main__":
    main()
