"""Configuration of joins: key `joins.yaml` of the ConfigMap `muster-joins`; all fields have defaults.

nodeSelector: {muster.dev/pool: h100}  # which new nodes are held back; default: every node
periodSeconds: 5                       # length of a period; nodes are opened once a period
startNodes: 5                          # nodes per period at first
maxNodes: 50                           # the most nodes per period
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from muster.api.configschema import Positive, schema
from muster.api.configtext import ConfigText

CONFIG_MAP = "muster-joins"
CONFIG_KEY = "joins.yaml"
PAGE = "docs/fleet.md"


class JoinsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Which nodes are held back, and the limits of the pace."""

    node_selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    period_s: Annotated[float, schema(minimum=1, maximum=300)] = msgspec.field(default=5.0, name="periodSeconds")
    start_nodes: Positive = 5
    max_nodes: Positive = 50


def parse_config(text: str) -> JoinsConfig:
    """Parse the text. Raises ConfigTextError with every problem."""
    read = ConfigText(text, JoinsConfig, PAGE)
    read.check(_problems(read.value))
    return read.value


def _problems(config: JoinsConfig) -> Iterator[tuple[str, str]]:
    if not 1 <= config.period_s <= 300:
        yield "$.periodSeconds", f"{config.period_s:g} is not possible; write 1 to 300"
    if config.start_nodes < 1:
        yield "$.startNodes", f"{config.start_nodes} is not possible; write 1 or more"
    if config.max_nodes < config.start_nodes:
        yield "$.maxNodes", f"{config.max_nodes} is less than startNodes, {config.start_nodes}; change one of them"
