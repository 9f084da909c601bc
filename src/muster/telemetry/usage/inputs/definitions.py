"""Variables of a dashboard: their known values, the types of data sources, and queries that fill them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from muster.telemetry.usage.variables import Values

_KINDS: Final[Mapping[str, str]] = {
    "QueryVariable": "query",
    "TextVariable": "textbox",
    "ConstantVariable": "constant",
    "DatasourceVariable": "datasource",
    "IntervalVariable": "interval",
    "CustomVariable": "custom",
    "SwitchVariable": "switch",
}
_TYPES: Final = ("adhoc", "groupby", *_KINDS.values())
_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?")
_OPTION: Final = re.compile(r"(?:\\,|[^,])+")
_QUERY_KEYS: Final = ("query", "__legacyStringValue", "expr")


class Definition(NamedTuple):
    """A variable, whatever version of the schema it comes from.

    Attributes:
        name: as queries write it.
        kind: query, custom, constant, textbox, interval, datasource, switch, ...
        fields: its other fields.
    """

    name: str
    kind: str
    fields: Mapping[str, Any]

    def values(self) -> Values:
        """Return the values that it can have; None if it can have any."""
        if self.kind == "interval":
            return ("5m",)
        if self.kind == "constant":
            return _texts(self.fields.get("query")) or _texts(self.fields.get("current"))
        if self.kind == "switch":
            return (*(_texts(self.fields.get("enabledValue")) or ()), *(_texts(self.fields.get("disabledValue")) or ()))
        if self.kind == "textbox":
            known = {*(_texts(self.fields.get("query")) or ()), *(_texts(self.fields.get("current")) or ())}
            return tuple(known) if known and all(map(_NUMBER.fullmatch, known)) else None
        if self.kind == "custom" and not self.fields.get("allValue"):
            return tuple(dict.fromkeys((*_options(self.fields), *_current(self.fields)))) or None
        return None

    def queries(self) -> Iterator[str]:
        """Yield the query of a query variable."""
        if self.kind == "query":
            found = list(_query_texts(self.fields.get("query")))
            found = found or list(_query_texts(self.fields.get("definition")))
            yield from found or _all_texts(self.fields.get("query"))


def definition_of(node: Mapping[str, Any]) -> Definition | None:
    """Return the variable that an object of a dashboard defines; None if it is something else."""
    kind, name = node.get("kind"), node.get("name")
    if isinstance(kind, str) and kind in _KINDS and isinstance(fields := node.get("spec"), dict):
        return Definition(str(fields.get("name", "")), _KINDS[kind], fields)
    if isinstance(name, str) and node.get("type") in _TYPES and ("query" in node or "current" in node):
        return Definition(name, node["type"], node)
    return None


def _texts(value: Any) -> tuple[str, ...]:
    """Return the texts of a field: a text, a number, a list, or an object with `value`."""
    if isinstance(value, dict):
        return _texts(value.get("value"))
    if isinstance(value, list):
        return tuple(text for each in value for text in _texts(each))
    if isinstance(value, bool) or value is None or value == "":
        return ()
    return (str(value),) if isinstance(value, str | int | float) else ()


def _current(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the chosen values, which may be typed in by a user."""
    return tuple(each for each in _texts(fields.get("current")) if not each.startswith("$__"))


def _all_texts(value: Any) -> Iterator[str]:
    """Yield every text of a query without a text of its own: its fields may name a metric and a label."""
    if isinstance(value, str) and value.strip():
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _all_texts(each)


def _options(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values of a custom variable: `a,b` or `text : value,...`, and those of its list of options."""
    found = [each.strip().replace("\\,", ",") for each in _OPTION.findall(str(fields.get("query") or ""))]
    values = [each.partition(" : ")[2].strip() or each for each in found]
    listed = fields.get("options")
    if isinstance(listed, list):
        values += [text for each in listed if isinstance(each, dict) for text in _texts(each.get("value"))]
    return tuple(dict.fromkeys(each for each in values if each and each != "$__all"))


def _query_texts(value: Any) -> Iterator[str]:
    """Yield the text of a query: a text, or an object that has it in one of its fields, at any depth."""
    if isinstance(value, str):
        if value.strip():
            yield value
    elif isinstance(value, dict):
        for key in (*_QUERY_KEYS, "spec"):
            if key in value:
                yield from _query_texts(value[key])
