"""Finds the queries of Grafana's dashboards, library panels and alert rules, in every version of their schema.

The search does not follow a schema: a text in a field `expr` or `...query` is a query wherever it stands. That finds
panels in rows, library panels, annotations, alerts and the elements of schema v2 alike, and those of later versions.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Set
from typing import Any, Final, NamedTuple

from muster.telemetry.usage.inputs.budget import PARTS_MAX, Budget
from muster.telemetry.usage.inputs.datasources import DataSources, is_other_type
from muster.telemetry.usage.inputs.definitions import Definition, definition_of
from muster.telemetry.usage.inputs.question import Question
from muster.telemetry.usage.inputs.rules import LOKI_GROUP, is_rule
from muster.telemetry.usage.inputs.variablequery import read_variable_query
from muster.telemetry.usage.query import Query, read_query
from muster.telemetry.usage.selection import EVERYTHING
from muster.telemetry.usage.variables import Values

_TITLES: Final = ("title", "name", "alert")
_TITLE_MAX: Final = 80
_UNPACKED_MAX: Final = 64 << 20
_QUERY: Final = re.compile(r"(?i)query$")
"""Fields of other objects that contain queries: `query` of Perses and KEDA, `errorQuery`, `seriesQuery`."""


class _Scope(NamedTuple):
    """What holds for a part of a document: variables and data sources of its dashboard, and where the part is."""

    variables: Mapping[str, Values]
    sources: DataSources
    source: Any = None
    panel_source: Any = None
    titles: tuple[str, ...] = ()

    def place(self, file: str) -> str:
        return ": ".join([file, *self.titles])


def dashboard_questions(
    document: Any, file: str, others: Set[str] = frozenset(), parts_max: int = PARTS_MAX
) -> Iterator[Question]:
    """Yield the queries in a document of Grafana.

    Args:
        document: parsed JSON or YAML: a dashboard, an answer of Grafana's API, a library panel, rules, or several.
        file: its name, for people.
        others: names and UIDs of data sources that are not this server.
        parts_max: most objects and lists in it.

    Raises:
        ValueError: it has too many parts, or a dashboard in it is not JSON.
    """
    yield from _walk(document, _Scope({}, DataSources({}, others)), file, others, Budget(parts_max))


def _walk(node: Any, scope: _Scope, file: str, others: Set[str], budget: Budget) -> Iterator[Question]:
    budget.spend()
    if isinstance(node, list):
        for each in node:
            yield from _walk(each, scope, file, others, budget)
        return
    if not isinstance(node, dict) or _is_rule(node):
        return
    scope = _scope_of(node, scope, others)
    other = scope.sources.is_other(scope.source)
    defined = definition_of(node)
    if defined is not None:
        place = scope._replace(titles=(*scope.titles[:-1], f"variable {defined.name}")).place(file)
        for text in () if other else defined.queries():
            yield Question(text, place, read_variable_query(text, scope.variables))
        return
    for key, value in node.items():
        if isinstance(value, str) and value.strip() and not other and (key == "expr" or _QUERY.search(key)):
            read = read_query if key == "expr" else read_variable_query
            yield Question(value, scope.place(file), read(value, scope.variables))
    if node.get("kind") == "GrafanaDashboard" and not _has_dashboard(node.get("spec")):
        yield Question("(elsewhere)", scope.place(file), Query(frozenset({EVERYTHING}), "its JSON is not in this file"))
    for key, value in node.items():
        if isinstance(value, dict | list):
            yield from _walk(value, scope, file, others, budget)
        elif isinstance(value, str) and (embedded := _embedded(key, value)) is not None:
            yield from _walk(embedded, scope._replace(titles=(*scope.titles, key)), file, others, budget)


def _is_rule(node: Mapping[str, Any]) -> bool:
    """Returns whether an object is a rule of Prometheus, or rules of Loki: read as rules, or not at all."""
    if str(node.get("apiVersion", "")).startswith(LOKI_GROUP):
        return True
    return is_rule(node)


def _has_dashboard(spec: Any) -> bool:
    return isinstance(spec, dict) and any(isinstance(spec.get(key), str) for key in ("json", "gzipJson"))


def _embedded(key: str, value: str) -> Any:
    """Return a dashboard that is a text in another object.

    Such as a ConfigMap's `*.json`, also in `binaryData`, and a GrafanaDashboard's `json` or `gzipJson`.

    Raises:
        ValueError: it is not JSON, or cannot be unpacked.
    """
    if key == "gzipJson":
        return json.loads(_unpacked(value))
    if not (key == "json" or key.endswith(".json")):
        return None
    if value.lstrip().startswith(("{", "[")):
        return json.loads(value)
    try:
        return json.loads(base64.b64decode(value, validate=True))
    except ValueError:
        return None  # the name of a file


def _unpacked(value: str) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(base64.b64decode(value))) as file:
            content = file.read(_UNPACKED_MAX + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"gzipJson cannot be unpacked: {error}") from error
    if len(content) > _UNPACKED_MAX:
        raise ValueError(f"gzipJson has more than {_UNPACKED_MAX >> 20} MiB")
    return content


def _scope_of(node: Mapping[str, Any], scope: _Scope, others: Set[str]) -> _Scope:
    """Return the scope inside of an object."""
    definitions = list(_definitions(node))
    if definitions or "__inputs" in node:
        types = {each.name: _plugin(each) for each in definitions if each.kind == "datasource"}
        variables = {each.name: each.values() for each in definitions if each.kind != "datasource"}
        scope = scope._replace(variables=variables, sources=DataSources({**types, **_inputs(node)}, others))
    title = next((text for key in _TITLES if isinstance(text := node.get(key), str) and text), "")
    if title:
        scope = scope._replace(titles=(*scope.titles, title[:_TITLE_MAX]))
    kind, spec = node.get("kind"), node.get("spec")
    if isinstance(kind, str) and isinstance(spec, dict) and is_other_type(kind):
        return scope._replace(source={"type": kind})
    if kind == "DataQuery" and "group" in node:
        named = node.get("datasource")
        return scope._replace(source={**(named if isinstance(named, dict) else {}), "group": node["group"]})
    source = node.get("datasource") or node.get("datasourceUid")
    if "targets" in node:
        scope = scope._replace(panel_source=scope.sources.certain(source))
    elif scope.panel_source and source and not _same(source, scope.panel_source):
        return scope  # Grafana asks the panel's data source, whatever a query still says of an earlier one
    return scope._replace(source=source) if source else scope


def _same(source: Any, of_panel: Any) -> bool:
    """Returns whether a query has the data source of its panel, or is an expression."""
    if isinstance(source, dict) and "__expr__" in (source.get("uid"), source.get("type")):
        return True
    if isinstance(source, dict) and isinstance(of_panel, dict):
        return bool(source.get("uid") == of_panel.get("uid"))
    return bool(source == of_panel)


def _definitions(node: Mapping[str, Any]) -> Iterator[Definition]:
    """Yield the variables of a dashboard, if the object is one."""
    templating = node.get("templating")
    listed = templating.get("list") if isinstance(templating, dict) else node.get("variables")
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and (found := definition_of(each)) is not None:
            yield found


def _plugin(definition: Definition) -> str:
    kind = definition.fields.get("pluginId") or definition.fields.get("query")
    return kind if isinstance(kind, str) else ""


def _inputs(node: Mapping[str, Any]) -> dict[str, str]:
    """Return types of data sources that an exported dashboard asks for when it is imported."""
    listed = node.get("__inputs")
    return {
        str(each.get("name")): str(each.get("pluginId"))
        for each in (listed if isinstance(listed, list) else ())
        if isinstance(each, dict) and each.get("type") == "datasource"
    }
