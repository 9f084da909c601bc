"""Checks a configuration of the network agent without a cluster."""

from __future__ import annotations

from pathlib import Path

import yaml

from muster.api.configtext import place_text
from muster.api.marked import NotYaml, document, value_at
from muster.cli.errors import BadInput
from muster.cli.input_file import read_text
from muster.network.agent.parts import enabled
from muster.network.config import parse_config


def check_config(file: Path | None) -> str:
    """Check a configuration, and return which parts it turns on.

    Args:
        file: a network.yaml, or values of the chart: then `network.config` is checked. `-` is standard input.

    Raises:
        BadInput: the file does not exist, cannot be read, or is not YAML.
        ConfigTextError: an agent would refuse it. The message has every problem, with its line.
    """
    if file is None:
        raise BadInput("--check needs a file", "name it with --config: a network.yaml, or values of the chart")
    name = "<stdin>" if str(file) == "-" else str(file)
    try:
        root = document(read_text(str(file)))
    except NotYaml as error:
        raise BadInput(f"{place_text(error.place, name)}not YAML: {error.what}", "mend it") from None
    parsed = parse_config(_config(root), name)
    parts = ", ".join(each.section for each in enabled(parsed)) or "none"
    return f"{name}: the network agent accepts it; parts that are on: {parts}"


def _config(root: yaml.Node | None) -> str | yaml.Node:
    """Return the part of a document that configures the agent: all of it, unless it is values of the chart."""
    if root is None or value_at(root, "network") is None:
        return root or ""
    return value_at(root, "network", "config") or ""
