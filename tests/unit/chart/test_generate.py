"""Issue 11.6: the generated schemas of texts refuse what the parsers of these texts refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from muster.api.configtext import ConfigTextError
from muster.chart.generate import TEXTS, definition
from muster.fleet.joins import config as joins
from muster.fleet.preflight import config as preflight
from muster.fleet.remediation import config as remediation
from muster.scheduler import config as scheduler

PARSERS: dict[str, Callable[[str], object]] = {
    "fleet.joins.config": joins.parse_config,
    "health.preflight.config": preflight.parse_config,
    "health.remediation.config": remediation.parse_config,
    "scheduler.config": scheduler.parse_config,
}
NEEDED = {"health.preflight.config": {"image": "registry.example/gputest:1"}}


def bounds(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each field with a value that its schema refuses."""
    for name, field in schema.get("properties", {}).items():
        yield from bounds(field, (*path, name))
    for kind in (schema, *schema.get("anyOf", ())):
        if "minimum" in kind:
            yield path, kind["minimum"] - 1
        if "maximum" in kind:
            yield path, kind["maximum"] + 1
        if "exclusiveMinimum" in kind:
            yield path, kind["exclusiveMinimum"]
    if "enum" in schema or "pattern" in schema:
        yield path, "no such word"


@pytest.mark.parametrize("text", PARSERS)
def test_values_refused_by_the_schema_are_refused_by_the_parser(text: str) -> None:
    PARSERS[text](yaml.safe_dump(NEEDED.get(text, {})))
    tried = 0
    for path, wrong in bounds(definition(text)):
        body: Any = wrong
        for name in reversed(path):
            body = {name: body}
        with pytest.raises(ConfigTextError):
            PARSERS[text](yaml.safe_dump(NEEDED.get(text, {}) | body))
        tried += 1
    assert tried >= 4


@pytest.mark.parametrize("text", TEXTS)
def test_no_schema_lets_an_unknown_field_pass(text: str) -> None:
    def objects(schema: Any) -> Iterator[dict[str, Any]]:
        if isinstance(schema, dict):
            if "properties" in schema:
                yield schema
            for each in schema.values():
                yield from objects(each)
        elif isinstance(schema, list):
            for each in schema:
                yield from objects(each)

    found = list(objects(definition(text)))
    assert found
    assert [each for each in found if each["additionalProperties"] is not False] == []
