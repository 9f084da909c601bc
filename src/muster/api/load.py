"""Reads a manifest (YAML or JSON) into a TrainingJob. Every error names the line and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from muster.api.crd import KINDS, object_schema
from muster.api.marked import NotYaml, documents, place_of, plain, twice
from muster.api.misfits import field_hint
from muster.api.names import API_VERSION
from muster.api.schema import Schema
from muster.api.training_job import TrainingJob
from muster.api.validate import Problem, schema_problem, validate
from muster.kube.objects.struct import from_dict

_KIND: Final = TrainingJob.RESOURCE.kind
_SCHEMA: Final[Schema] = next(object_schema(kind) for kind in KINDS if kind.resource == TrainingJob.RESOURCE)
_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]")

_ELSEWHERE: Final = {
    "spec": {
        **dict.fromkeys(("nodes", "workers", "numnodes", "nnodes", "slots", "size"), "replicas"),
        **dict.fromkeys(("gpus", "gpuspernodes", "numgpus"), "gpusPerNode"),
        **dict.fromkeys(("nprocpernode", "slotsperworker", "ranks"), "ranksPerNode"),
    }
}
"""By path of the parent: names of fields in other projects (in lower case), and our names for them."""


class Complaint(NamedTuple):
    """One error in a manifest. Line and column count from 1; 0 means unknown."""

    line: int
    column: int
    message: str


class ManifestError(Exception):
    """The manifest is not valid. `complaints` holds the errors in order of lines."""

    def __init__(self, source: str, complaints: list[Complaint]) -> None:
        """Store the errors and the name of the source."""
        self.source = source
        self.complaints = sorted(complaints)
        super().__init__("\n".join(self._line(each) for each in self.complaints))

    def _line(self, complaint: Complaint) -> str:
        where = f"{self.source}:{complaint.line}:{complaint.column}" if complaint.line else self.source
        return f"{where}: {complaint.message}"


def load_training_job(text: str, source: str = "<manifest>") -> TrainingJob:
    """Return the only TrainingJob in `text`. Raises ManifestError with all errors."""
    try:
        node = _only(documents(text), source)
        if other := _other_kind(node):
            raise ManifestError(source, [other])
        complaints = [*_duplicates(node), *_unknown(node, _SCHEMA, "")]
        data = plain(node) if not complaints else None
    except NotYaml as error:
        raise ManifestError(source, [Complaint(*error.place, f"not YAML: {error.what}")]) from None
    if not isinstance(data, dict):
        raise ManifestError(source, complaints)
    complaints += _identity(node, data)
    if complaints:
        raise ManifestError(source, complaints)
    try:
        job = from_dict(data, TrainingJob)
    except msgspec.ValidationError as error:
        raise ManifestError(source, [_at(node, schema_problem(error))]) from None
    problems = validate(job)
    if problems:
        raise ManifestError(source, [_at(node, problem) for problem in problems])
    return job


def _only(found: list[yaml.Node], source: str) -> yaml.MappingNode:
    if len(found) != 1:
        contents = "nothing in it" if not found else f"{len(found)} documents in it"
        more = " (kubectl apply -f takes several)" if found else ""
        raise ManifestError(source, [Complaint(0, 0, f"{contents}; one {_KIND} is wanted{more}")])
    if not isinstance(found[0], yaml.MappingNode):
        raise ManifestError(source, [_complain(found[0], f"a {_KIND} is a map that starts with apiVersion: ...")])
    return found[0]


def _other_kind(node: yaml.MappingNode) -> Complaint | None:
    """Return an error if the manifest has another kind. Its fields are then not checked."""
    found = _find(node, "kind")
    if found is node or found.value == _KIND:
        return None
    named = repr(found.value) if isinstance(found, yaml.ScalarNode) else "no name"
    return _complain(found, f"kind: {named}; a {_KIND} is wanted, other kinds are for kubectl apply -f")


def _identity(node: yaml.MappingNode, data: dict[str, Any]) -> Iterator[Complaint]:
    for field, want in (("apiVersion", API_VERSION), ("kind", _KIND)):
        if data.get(field) != want:
            found = f"{data[field]!r}" if field in data else "missing"
            yield _complain(_find(node, field), f"{field}: {found}; write {field}: {want}")
    if "spec" not in data:
        yield _complain(node, "spec: missing; it needs at least replicas, image and command")


def _duplicates(node: yaml.Node) -> Iterator[Complaint]:
    for key, line in twice(node):
        yield _complain(key, f"{key.value}: given twice, first on line {line}; keep one")


def _unknown(node: yaml.Node, schema: Schema, path: str) -> Iterator[Complaint]:
    properties = schema.get("properties")
    if isinstance(node, yaml.SequenceNode) and "items" in schema:
        for index, value in enumerate(node.value):
            yield from _unknown(value, schema["items"], f"{path}[{index}]")
    if not isinstance(node, yaml.MappingNode) or properties is None:
        return
    for key, value in node.value:
        field = f"{path}.{key.value}".removeprefix(".")
        if key.value in properties:
            yield from _unknown(value, properties[key.value], field)
        elif not schema.get("x-kubernetes-preserve-unknown-fields"):
            name = str(key.value)
            hint = field_hint(name, properties, _ELSEWHERE.get(path, {}).get(name.lower(), ""))
            yield _complain(key, f"{field}: unknown field; {hint}")


def _at(root: yaml.Node, problem: Problem) -> Complaint:
    return _complain(_find(root, problem.field), str(problem) if problem.field else problem.message)


def _find(root: yaml.Node, path: str) -> yaml.Node:
    """The node at `path`, or the nearest one above it that exists."""
    node = root
    for match in _STEP.finditer(path):
        name, index = match.groups()
        below: yaml.Node | None = None
        if index is not None and isinstance(node, yaml.SequenceNode) and int(index) < len(node.value):
            below = node.value[int(index)]
        elif name is not None and isinstance(node, yaml.MappingNode):
            below = next((value for key, value in node.value if key.value == name), None)
        if below is None:
            break
        node = below
    return node


def _complain(node: yaml.Node, message: str) -> Complaint:
    return Complaint(*place_of(node), message)
