"""Generates files from our kinds: `python -m muster.api.generate [--check]`.

CustomResourceDefinitions for the chart, JSON schemas for editors, and reference pages. With --check nothing is written,
and the exit status is 1 if a file differs from the code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from muster.api.crd import KINDS, Kind, definition, object_schema
from muster.api.generated import write_or_check
from muster.api.names import API_VERSION
from muster.api.schema import Schema
from muster.api.training_job import MUTABLE_FIELDS, TrainingJob

ROOT: Final = Path(__file__).resolve().parents[3]
_HOW: Final = "python -m muster.api.generate"


def files() -> dict[str, str]:
    """Every generated file: its path below the repository, and its text."""
    out = {}
    for kind in KINDS:
        name = kind.resource.kind.lower()
        out[f"deploy/chart/muster/files/crds/{kind.resource.plural}.yaml"] = crd_text(kind)
        out[f"docs/reference/{name}.schema.json"] = schema_text(kind)
        out[f"docs/reference/{name}.md"] = page(kind)
    return out


def crd_text(kind: Kind) -> str:
    """The CustomResourceDefinition as YAML, for the chart. `helm uninstall` keeps it, and so it keeps every job."""
    body = definition(kind)
    body["metadata"] = {**body["metadata"], "annotations": {"helm.sh/resource-policy": "keep"}}
    text = yaml.safe_dump(body, sort_keys=False, width=120, allow_unicode=True)
    return f"# Written by {_HOW}; change src/muster/api instead.\n{text}"


def schema_text(kind: Kind) -> str:
    """The JSON schema for editors: the CRD's schema, but unknown fields are errors."""
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": kind.resource.kind,
        **_strict(object_schema(kind)),
    }
    schema["properties"]["apiVersion"] = {"const": API_VERSION}
    schema["properties"]["kind"] = {"const": kind.resource.kind}
    schema["required"] = ["apiVersion", "kind", "metadata", *schema.get("required", ())]
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _strict(schema: Schema) -> Schema:
    """Drop Kubernetes' own keywords, which editors do not know, and refuse unknown fields."""
    free = schema.get("x-kubernetes-preserve-unknown-fields", False)
    out: Schema = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-")}
    if "properties" in out:
        out["properties"] = {name: _strict(inner) for name, inner in out["properties"].items()}
        out.setdefault("additionalProperties", free)
    if "items" in out:
        out["items"] = _strict(out["items"])
    return out


def page(kind: Kind) -> str:
    """The reference page as Markdown."""
    whole = object_schema(kind)
    short = ", ".join(f"`{name}`" for name in kind.short_names)
    lines = [
        f"# {kind.resource.kind}",
        "",
        f"<!-- Written by {_HOW}; change src/muster/api instead. -->",
        "",
        kind.summary,
        "",
        f"`{API_VERSION}`, `kubectl get {kind.resource.plural}`, short: {short}.",
        "",
    ]
    for section in ("spec", "status"):
        if section in whole["properties"]:
            lines += _tables(section, whole["properties"][section])
        if section == "spec" and kind.resource is TrainingJob.RESOURCE:
            names = ", ".join(f"`{name}`" for name in sorted(MUTABLE_FIELDS))
            lines += [
                "### Changing a job",
                "",
                f"While a job is active, only these fields of `spec` may change: {names}.",
            ]
            lines += ["For all others set `suspend` to true, change them, then set `suspend` to false.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _tables(path: str, schema: Schema) -> Iterator[str]:
    yield from (f"## {path}", "", schema.get("description", ""), "")
    if not schema["properties"]:
        return
    yield from ("| field | type | default | |", "|---|---|---|---|")
    required = schema.get("required", ())
    nested = []
    for name, inner in schema["properties"].items():
        default = f"`{json.dumps(inner['default'])}`" if "default" in inner else "required" if name in required else ""
        text = inner.get("description", "").replace("|", "\\|")
        yield f"| `{name}` | {_type(inner)} | {default} | {text} |"
        items = inner.get("items", inner)
        if "properties" in items and "x-kubernetes-preserve-unknown-fields" not in items:
            nested.append((f"{path}.{name}{'[]' if 'items' in inner else ''}", items))
    yield ""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield f"- {rule['message']}"
    if schema.get("x-kubernetes-validations"):
        yield ""
    for nested_path, nested_schema in nested:
        yield from _tables(nested_path, nested_schema)


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return " \\| ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}"
    if schema["type"] == "object":
        if "additionalProperties" in schema:
            return f"map to {_type(schema['additionalProperties'])}"
        return "object"
    name = "time" if schema.get("format") == "date-time" else str(schema["type"])
    match schema.get("minimum"), schema.get("maximum"):
        case None, None:
            return name
        case low, None:
            return f"{name}, at least {low}"
        case low, high:
            return f"{name}, {low} to {high}"
    raise AssertionError("every case returned")


def main(arguments: list[str]) -> int:
    """Write the files, or with --check compare them; returns the exit status."""
    return write_or_check(
        arguments, lambda: {ROOT / name: text for name, text in files().items()}, _HOW, "the code says"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
