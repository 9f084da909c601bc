"""Parses a file from the user: the text of `teams.yaml`, or a ConfigMap that contains it."""

from __future__ import annotations

import yaml

from muster.api.marked import place_of
from muster.api.names import TEAMS_CONFIG_KEY
from muster.teams.config import TeamsConfig, from_data, parse
from muster.teams.yaml_reader import Problem, Reader, TeamsConfigError


def parse_manifest(text: str) -> TeamsConfig:
    """Parse either form; line numbers refer to the file. Raises TeamsConfigError."""
    reader = Reader(text)
    root = reader.root().node if not reader.empty else None
    fields = _entries(root)
    kind = fields.get("kind")
    if not isinstance(kind, yaml.ScalarNode) or kind.value != "ConfigMap":
        return parse(text)
    data = _entries(fields.get("data"))
    held = data.get(TEAMS_CONFIG_KEY)
    if not isinstance(held, yaml.ScalarNode):
        return from_data(dict.fromkeys(data, ""))
    try:
        return parse(str(held.value))
    except TeamsConfigError as error:
        # A block scalar begins on the line after its indicator; a quoted scalar begins on the same line.
        offset = place_of(held).line - 1 + (held.style in ("|", ">"))
        found = [Problem(each.line and each.line + offset, each.what, each.change) for each in error.problems]
        raise TeamsConfigError(found) from None


def _entries(node: yaml.Node | None) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(key.value): value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
