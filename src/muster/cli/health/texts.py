"""Finds texts of node health: in files, in ConfigMaps as kubectl and helm print them, in the chart's values."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from muster.api.configtext import place_text
from muster.api.marked import NotYaml, documents, value_at
from muster.cli.errors import BadInput

KINDS: Final = ("policy", "remediation", "preflight")
"""The kind of a text; its key in a ConfigMap is this name with `.yaml`."""
_IN_VALUES: Final = {
    "policy": ("health", "remediation", "policy"),
    "remediation": ("health", "remediation", "config"),
    "preflight": ("health", "preflight", "config"),
}
_NEARLY: Final = 0.5
"""Weight of a misspelt field when the kind of a text is guessed; a field spelt right counts 1."""


class Text(NamedTuple):
    """One text: its kind, its name in error messages, and its content."""

    kind: str
    source: str
    text: str | yaml.Node


def texts(source: str, text: str, kind: str | None) -> list[Text]:
    """Return the texts in a file.

    Args:
        source: the file's name.
        text: its content.
        kind: its kind, if the user gave one.

    Raises:
        BadInput: it is not YAML, or neither its name nor its fields show its kind.
    """
    if kind is not None:
        return [Text(kind, source, text)]
    try:
        roots = [root for root in documents(text) if isinstance(root, yaml.MappingNode)]
    except NotYaml as error:
        raise BadInput(f"{place_text(error.place, source)}not YAML: {error.what}", "mend it") from None
    found = [each for root in roots for each in (*_of_config_map(root, source, text), *_of_values(root, source))]
    if found:
        return found
    fields = [str(key.value) for root in roots for key, _ in root.value]
    return [Text(_kind_of(source, fields), source, text)]


def _of_config_map(root: yaml.MappingNode, source: str, text: str) -> Iterator[Text]:
    """Yield each key of a ConfigMap's data as a text whose lines and columns are those of the file."""
    if getattr(value_at(root, "kind"), "value", "") != "ConfigMap":
        return
    for kind in KINDS:
        node = value_at(root, "data", f"{kind}.yaml")
        if not isinstance(node, yaml.ScalarNode):
            continue
        if node.style != "|":
            yield Text(kind, f"{source}: {kind}.yaml", node.value)
            continue
        first, lines = node.start_mark.line + 1, text.splitlines()
        written = next((line for line in lines[first:] if line.strip()), "")
        inside = next((line for line in node.value.splitlines() if line.strip()), "")
        indent = " " * (len(written) - len(written.lstrip()) - len(inside) + len(inside.lstrip()))
        yield Text(kind, source, "\n" * first + textwrap.indent(node.value, indent))


def _of_values(root: yaml.MappingNode, source: str) -> Iterator[Text]:
    for kind, path in _IN_VALUES.items():
        node = value_at(root, *path)
        if isinstance(node, yaml.MappingNode) and node.value:
            yield Text(kind, source, node)


def _kind_of(source: str, fields: list[str]) -> str:
    """Returns the kind of a text: by the file's name, else by its fields. Raises BadInput if neither shows it."""
    named = [kind for kind in KINDS if kind in Path(source).name]
    if len(named) == 1:
        return named[0]
    points = {kind: sum(_points(field, names) for field in fields) for kind, names in _known().items()}
    best = max(points.values())
    likely = [kind for kind, found in points.items() if found == best]
    if best and len(likely) == 1:
        return likely[0]
    hint = f"say which with --as {', --as '.join(KINDS)}"
    raise BadInput(f"{source}: neither its name nor its fields say what it configures", hint)


def _known() -> Mapping[str, list[str]]:
    from msgspec import Struct
    from msgspec.structs import fields

    from muster.fleet.health.policyfields import PolicyText
    from muster.fleet.preflight.config import PreflightConfig
    from muster.fleet.remediation.config import RemediationConfig

    structs: tuple[type[Struct], ...] = (PolicyText, RemediationConfig, PreflightConfig)
    return {kind: [each.encode_name for each in fields(struct)] for kind, struct in zip(KINDS, structs, strict=True)}


def _points(field: str, known: list[str]) -> float:
    if field in known:
        return 1.0
    return _NEARLY if difflib.get_close_matches(field, known, n=1) else 0.0
