"""CustomResourceDefinitions: validated, established at once, and served.

Only the storage version is served; the server does not convert between versions.
"""

from __future__ import annotations

from typing import Any

from muster.embedded.apiserver.kinds.custom import CustomStrategy
from muster.embedded.apiserver.status import FieldError, invalid, required, unsupported
from muster.embedded.apiserver.tables import jsonpath
from muster.embedded.apiserver.tables.table import AGE, NAME, Column, Columns, Row, age, name_of
from muster.embedded.apiserver.types import names
from muster.embedded.apiserver.types.registry import ResourceType, status_of
from muster.embedded.apiserver.types.strategy import Context, Strategy
from muster.embedded.objects import Obj, items, section, timestamp

CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


class CrdStrategy(Strategy):
    """CustomResourceDefinitions."""

    generation = True

    def default(self, context: Context, obj: Obj) -> None:
        """Fill in names, conversion and condition."""
        spec = obj.setdefault("spec", {})
        found = spec.setdefault("names", {})
        found.setdefault("singular", str(found.get("kind", "")).lower())
        found.setdefault("listKind", f"{found.get('kind', '')}List")
        spec.setdefault("conversion", {"strategy": "None"})

    def prepare_create(self, context: Context, obj: Obj) -> None:
        """Accept the names and establish the kind at once. Add the finalizer that deletes its objects first."""
        now = timestamp(context.clock.now())
        spec = obj["spec"]
        accepted = {"type": "NamesAccepted", "status": "True", "lastTransitionTime": now}
        established = {"type": "Established", "status": "True", "lastTransitionTime": now}
        obj["status"] = {
            "conditions": [
                {**accepted, "reason": "NoConflicts", "message": "no conflicts found"},
                {
                    **established,
                    "reason": "InitialNamesAccepted",
                    "message": "the initial names have been accepted",
                },
            ],
            "acceptedNames": spec["names"],
            "storedVersions": [version["name"] for version in items(spec, "versions") if version.get("storage")],
        }
        finalizers = obj["metadata"].setdefault("finalizers", [])
        if CLEANUP_FINALIZER not in finalizers:
            finalizers.append(CLEANUP_FINALIZER)

    def validate(self, context: Context, obj: Obj, old: Obj | None) -> list[FieldError]:
        """Check names, versions and that there are schemas."""
        spec = section(obj, "spec")
        found, group = section(spec, "names"), spec.get("group", "")
        errors: list[FieldError] = []
        if obj["metadata"].get("name") != f"{found.get('plural', '')}.{group}":
            what = 'must be spec.names.plural+"."+spec.group'
            errors.append(invalid("metadata.name", obj["metadata"].get("name", ""), what))
        if not group:
            errors.append(required("spec.group"))
        else:
            errors += [invalid("spec.group", group, problem) for problem in names.subdomain_problems(group)]
        if not spec.get("scope"):
            errors.append(required("spec.scope"))
        elif spec["scope"] not in ("Cluster", "Namespaced"):
            errors.append(unsupported("spec.scope", spec["scope"], ["Cluster", "Namespaced"]))
        errors += [required(f"spec.names.{name}") for name in ("plural", "kind") if not found.get(name)]
        versions = items(spec, "versions")
        if sum(bool(version.get("storage")) for version in versions) != 1:
            what = "must have exactly one version marked as storage version"
            errors.append(invalid("spec.versions", versions, what))
        for index, version in enumerate(versions):
            if not section(version, "schema").get("openAPIV3Schema"):
                where = f"spec.versions[{index}].schema.openAPIV3Schema"
                errors.append(required(where, "schemas are required"))
            elif section(version, "schema")["openAPIV3Schema"].get("type") != "object":
                where = f"spec.versions[{index}].schema.openAPIV3Schema.type"
                kind = section(version, "schema")["openAPIV3Schema"].get("type", "")
                errors.append(invalid(where, kind, "must be object at the root"))
        if old is not None:
            before = section(old, "spec")
            errors += [
                invalid(f"spec.{name}", spec.get(name), "field is immutable")
                for name in ("group", "scope")
                if spec.get(name) != before.get(name)
            ]
        return errors


def resource_type(crd: Obj) -> ResourceType:
    """Return the type a CustomResourceDefinition serves."""
    spec = crd["spec"]
    found = spec["names"]
    version = next(version for version in spec["versions"] if version.get("storage"))
    schema: Obj = version["schema"]["openAPIV3Schema"]
    has_status = "status" in section(version, "subresources")
    return ResourceType(
        spec["group"],
        version["name"],
        found["plural"],
        found["kind"],
        namespaced=spec["scope"] == "Namespaced",
        strategy=CustomStrategy(found["kind"], version["name"], schema, has_status=has_status),
        short_names=tuple(found.get("shortNames") or ()),
        categories=tuple(found.get("categories") or ()),
        subresources=(status_of(found["kind"]),) if has_status else (),
        singular=found.get("singular", ""),
        list_kind=found.get("listKind", ""),
        custom=True,
        columns=_columns(version),
        schema=schema,
    )


def _columns(version: Obj) -> Columns:
    wanted = items(version, "additionalPrinterColumns")
    if not wanted:
        wanted = [{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]
    columns = tuple(
        Column(
            item["name"],
            item.get("type", "string"),
            item.get("format", ""),
            item.get("priority", 0),
            item.get("description") or (AGE.description if item["name"] == "Age" else ""),
        )
        for item in wanted
    )
    return Columns((NAME, *columns), _row([(item["jsonPath"], item.get("type", "string")) for item in wanted]))


def _row(paths: list[tuple[str, str]]) -> Row:
    def row(obj: Obj, now: float) -> list[Any]:
        cells: list[Any] = [name_of(obj)]
        for path, kind in paths:
            value = jsonpath.read(obj, path)
            if kind == "date" and value is not None:
                value = age(value, now)
            elif kind == "string" and isinstance(value, (int, float)) and not isinstance(value, bool):
                value = str(value)
            cells.append(value)
        return cells

    return row
