"""Writes the generated parts of the chart: `python -m muster.chart.generate [--check]`.

These are the definitions in values.schema.json, and files/defaults.yaml, a copy of values.yaml that templates can read.
The definitions are for texts that reach the programs in ConfigMaps; they are read off the structs that parse them.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from muster.agent.checks import CHECKS
from muster.agent.settings import AgentSettings
from muster.api.generated import write_or_check
from muster.chart.alerts import definitions
from muster.chart.files import chart
from muster.fleet.balloons.config import BalloonsText
from muster.fleet.health.policyfields import PolicyText
from muster.fleet.joins.config import JoinsConfig
from muster.fleet.preflight.config import PreflightConfig
from muster.fleet.remediation.config import RemediationConfig
from muster.fleet.scaling.config import ScalingText
from muster.network.config import NetworkConfig
from muster.scheduler.config import SchedulerConfig
from muster.telemetry.guard.config import GuardConfig

_HOW: Final = "python -m muster.chart.generate"
Schema = dict[str, Any]

TEXTS: Final[dict[str, type[msgspec.Struct]]] = {
    "fleet.balloons.config": BalloonsText,
    "fleet.joins.config": JoinsConfig,
    "fleet.scaling.config": ScalingText,
    "health.agent.config": AgentSettings,
    "health.preflight.config": PreflightConfig,
    "health.remediation.config": RemediationConfig,
    "health.remediation.policy": PolicyText,
    "network.config": NetworkConfig,
    "scheduler.config": SchedulerConfig,
    "telemetry.guard.config": GuardConfig,
}
"""The struct that parses each text, by its path in values.yaml."""

_MAY_BE_EMPTY: Final = {"health.remediation.policy", "telemetry.guard.config"}
"""Texts that are empty by default, although the programs need some of their fields."""

_LEFT_OUT: Final = {"title", "default"}


def definition(path: str) -> Schema:
    """The JSON schema of the value at `path`. It refuses unknown fields, also where a program ignores them."""
    schema = text_schema(TEXTS[path])
    if path == "health.agent.config":
        anyway = schema["properties"]["checks"]["additionalProperties"]
        schema["properties"]["checks"] = {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                name: {**anyway, "properties": {**anyway["properties"], "options": text_schema(_options(make))}}
                for name, make in CHECKS.items()
            },
        }
    if path in _MAY_BE_EMPTY:
        schema = {"anyOf": [{"type": "object", "maxProperties": 0}, schema]}
    return schema


def _options(make: str) -> type[msgspec.Struct]:
    """The struct of a check's own settings. `make` names its module."""
    found: type[msgspec.Struct] = importlib.import_module(make.partition(":")[0]).Options
    return found


def text_schema(kind: type[msgspec.Struct]) -> Schema:
    """The schema of a struct with every reference replaced: keywords beside a `$ref` are ignored in draft 7."""
    (root,), components = msgspec.json.schema_components([kind], ref_template="{name}")
    return _whole(root, components)


def _whole(schema: Schema, components: dict[str, Schema]) -> Schema:
    schema = (
        {**components[schema["$ref"]], **{key: each for key, each in schema.items() if key != "$ref"}}
        if ("$ref" in schema)
        else schema
    )
    out: Schema = {key: value for key, value in schema.items() if key not in _LEFT_OUT}
    if not out.get("required", True):
        del out["required"]
    if "properties" in out:
        out["properties"] = {name: _whole(each, components) for name, each in out["properties"].items()}
        out["additionalProperties"] = False
    elif isinstance(out.get("additionalProperties"), dict):
        out["additionalProperties"] = _whole(out["additionalProperties"], components)
    if isinstance(out.get("items"), dict):
        out["items"] = _whole(out["items"], components)
    if "anyOf" in out:
        out = _any_of(out, [_whole(each, components) for each in out["anyOf"]])
    return out


def _any_of(schema: Schema, kinds: list[Schema]) -> Schema:
    """Plain types as one list of types, whose refusal is one line."""
    if any(each.keys() != {"type"} for each in kinds):
        return {**schema, "anyOf": kinds}
    types = [each["type"] for each in kinds]
    out = {key: value for key, value in schema.items() if key != "anyOf"}
    return {"type": [name for name in types if name != "integer" or "number" not in types], **out}


def schema_text() -> str:
    """values.schema.json, whose other definitions are written by hand."""
    whole = json.loads((chart() / "values.schema.json").read_text(encoding="utf-8"))
    kept = {name: each for name, each in whole["definitions"].items() if not name.startswith("generated:")}
    whole["definitions"] = kept | {f"generated:{path}": definition(path) for path in TEXTS}
    whole["definitions"] |= {f"generated:{path}": each for path, each in definitions().items()}
    whole["$comment"] = f"{_HOW} writes the definitions whose names begin with generated:"
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def defaults_text() -> str:
    """values.yaml without its comments."""
    values = yaml.safe_load((chart() / "values.yaml").read_text(encoding="utf-8"))
    return f"# Written by {_HOW}; change values.yaml instead.\n" + yaml.safe_dump(values, sort_keys=False, width=110)


def files() -> dict[Path, str]:
    """Every generated file with its text."""
    return {chart() / "values.schema.json": schema_text(), chart() / "files/defaults.yaml": defaults_text()}


def main(arguments: list[str]) -> int:
    """Write the files, or with --check compare them; returns the exit status."""
    return write_or_check(arguments, files, _HOW, "the code says")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
