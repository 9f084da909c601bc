"""Generates the reference of guard.yaml: `python -m muster.telemetry.guard.reference [--check]`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from inspect import getdoc
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.api.generated import write_or_check
from muster.telemetry.guard.config import GuardConfig

ROOT: Final = Path(__file__).resolve().parents[4]
PAGE: Final = ROOT / "docs/reference/guard.md"
_HOW: Final = "python -m muster.telemetry.guard.reference"
_ENTRY: Final = re.compile(r"    (\w+): (.*)")
EXAMPLE: Final = """\
upstream:
  url: https://mimir.monitoring:8080/prometheus
  tokenFile: /etc/muster-guard-secrets/mimir/token
  headers: {X-Cluster: training}            # with each request to the server
tls: {certificateFile: /etc/muster-guard-secrets/tls/tls.crt, keyFile: /etc/muster-guard-secrets/tls/tls.key}
callers:
  anonymous: visitors                       # group of callers without credentials
  anonymousTenant: public                   # their tenant
  tokens:
  - {name: grafana, sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae, tenant: team-a}
  cluster:                                  # tokens of service accounts
    callers:
    - {name: autoscaler, users: ["system:serviceaccount:keda:keda-operator"], group: programs}
  certificates:                             # client certificates
    caFile: /etc/muster-guard-secrets/ca/ca.crt
    callers:
    - {name: ruler, dns: ruler.monitoring.svc, group: programs}
  peers:                                    # Grafana names its users, from these addresses only
  - {name: grafana, caller: grafana, addresses: ["10.20.0.0/16"], group: people}
groups:
  people: {limits: {maxSeries: 50000, maxRangeSeconds: 604800}, eachCaller: {concurrentCost: 200000000}}
  programs: {together: {concurrentCost: 1000000000, costPerMinute: 20000000000}}
  visitors: {limits: {maxSeries: 5000}, together: {concurrentCost: 50000000}}
queue: {waitSeconds: 5, perCaller: 20, inAll: 200}
allowPaths: [/api/v1/status/runtimeinfo]    # passed on as they are, without a price
dearest: {readers: [programs, grafana]}     # callers and groups that see the queries of all
"""


def page() -> str:
    """Return the page as Markdown."""
    lines = [
        "# guard.yaml",
        "",
        f"<!-- Written by {_HOW}; change src/muster/telemetry/guard instead. -->",
        "",
        "The file that `muster guard --config` reads, and the chart's value `telemetry.guard.config`. Unknown fields",
        "are errors. [The guard](../guard.md) explains what they are for.",
        "",
        "```yaml",
        *EXAMPLE.splitlines(),
        "```",
        "",
        *_tables("", GuardConfig),
    ]
    return "\n".join(lines).rstrip() + "\n"


def descriptions(struct: type[msgspec.Struct]) -> Mapping[str, str]:
    """Return what the docstring of a struct says about each of its fields."""
    found: dict[str, str] = {}
    name = ""
    for line in (getdoc(struct) or "").partition("Attributes:\n")[2].splitlines():
        entry = _ENTRY.fullmatch(line)
        if entry is not None:
            name, found[entry.group(1)] = entry.group(1), entry.group(2)
        elif name and line.strip():
            found[name] += " " + line.strip()
    return found


def structs(struct: type[msgspec.Struct], path: str = "") -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Yield a struct and those of its fields, each with its path in the file."""
    yield path, struct
    for field, kind in _fields(struct):
        nested, suffix = _nested(kind)
        if nested is not None:
            yield from structs(nested, f"{path}.{field.encode_name}{suffix}".removeprefix("."))


def _tables(path: str, struct: type[msgspec.Struct]) -> Iterator[str]:
    for where, each in structs(struct, path):
        if where:
            yield from (f"## {where}", "", (getdoc(each) or "").partition("\n\n")[0], "")
        yield from ("| field | type | default | meaning |", "|---|---|---|---|")
        texts = descriptions(each)
        for field, kind in _fields(each):
            text = texts[field.name][:1].upper() + texts[field.name][1:]
            yield f"| `{field.encode_name}` | {_type(kind)} | {_default(field)} | {_named_as_written(text)} |"
        yield ""


def _named_as_written(text: str) -> str:
    """Replace names of fields of the code by those of the file."""
    fields = [field for _, each in structs(GuardConfig) for field, _ in _fields(each)]
    written = {f"`{field.name}`": f"`{field.encode_name}`" for field in fields}
    return re.sub(r"`\w+`", lambda found: written.get(found.group(), found.group()), text)


def _fields(struct: type[msgspec.Struct]) -> Iterator[tuple[msgspec.structs.FieldInfo, msgspec.inspect.Type]]:
    kinds = msgspec.inspect.type_info(struct)
    assert isinstance(kinds, msgspec.inspect.StructType)
    for field, kind in zip(msgspec.structs.fields(struct), kinds.fields, strict=True):
        yield field, kind.type


def _nested(kind: msgspec.inspect.Type) -> tuple[type[msgspec.Struct] | None, str]:
    """Return the struct of a field, of the items of a list or of the values of a map."""
    kind = _plain(kind)
    if isinstance(kind, msgspec.inspect.StructType):
        return kind.cls, ""
    if isinstance(kind, msgspec.inspect.VarTupleType):
        return _nested(kind.item_type)[0], "[]"
    if isinstance(kind, msgspec.inspect.DictType):
        return _nested(kind.value_type)[0], ".NAME"
    return None, ""


def _plain(kind: msgspec.inspect.Type) -> msgspec.inspect.Type:
    return _plain(kind.type) if isinstance(kind, msgspec.inspect.Metadata) else kind


def _type(kind: msgspec.inspect.Type) -> str:
    keywords: dict[str, Any] = {}
    while isinstance(kind, msgspec.inspect.Metadata):
        keywords.update(kind.extra_json_schema or {})
        kind = kind.type
    match kind:
        case msgspec.inspect.LiteralType(values):
            return " or ".join(f"`{value}`" for value in reversed(values))
        case msgspec.inspect.UnionType(types):
            return " or ".join(_type(each) for each in types)
        case msgspec.inspect.VarTupleType(item):
            return f"list of {_type(item)}"
        case msgspec.inspect.StructType():
            return "object"
        case msgspec.inspect.DictType(_, value):
            return f"map to {_type(value)}"
    names = {
        msgspec.inspect.StrType: "string",
        msgspec.inspect.IntType: "integer",
        msgspec.inspect.FloatType: "number",
        msgspec.inspect.BoolType: "boolean",
        msgspec.inspect.NoneType: "null",
    }
    return names[type(kind)] + _bounds(keywords)


def _bounds(keywords: Mapping[str, Any]) -> str:
    said = [
        f"{word} {keywords[key]}"
        for key, word in (("minimum", "at least"), ("exclusiveMinimum", "above"), ("maximum", "at most"))
        if key in keywords
    ]
    return f", {', '.join(said)}" if said else ""


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = msgspec.to_builtins(field.default if field.default is not msgspec.NODEFAULT else field.default_factory())
    if isinstance(value, dict | tuple | list):
        return "" if value else "empty"
    return f"`{json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)}`"


def main(arguments: list[str]) -> int:
    """Write the page, or with --check compare it; returns the exit status."""
    return write_or_check(arguments, lambda: {PAGE: page()}, _HOW, "the code says")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
