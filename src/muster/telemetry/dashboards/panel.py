"""Panels: what they show, and their JSON."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

Json = dict[str, Any]
Kind = Literal["stat", "timeseries", "bargauge"]
Color = Literal["green", "orange", "red", "blue", "text"]

WIDTH: Final = 24
"""Columns of Grafana's grid."""
RUNBOOKS: Final = "docs/runbooks"
"""Folder of runbooks; the chart replaces it by `telemetry.alerts.runbookBaseUrl`."""
DATASOURCE: Final[Json] = {"type": "prometheus", "uid": "${datasource}"}
_RANGE: Final = {"instant": False, "range": True}
_INSTANT: Final = {"instant": True, "range": False}


class Query(msgspec.Struct, frozen=True):
    """A query of a panel.

    Attributes:
        expr: PromQL with the dashboard's variables.
        legend: name of each series, with `{{label}}`.
    """

    expr: str
    legend: str


class Step(msgspec.Struct, frozen=True):
    """A threshold: from this value on, the color is shown."""

    value: float
    color: Color


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """A panel.

    Attributes:
        title: a noun.
        description: what it shows, and what to do if it is unusual.
        queries: in the order of the legend.
        kind: a stat shows figures of now, a time series shows the range, a bar gauge ranks series of now.
        unit: Grafana's id of the unit.
        steps: colors from values on; below the first the color is green, or without steps the text's.
        width: columns of 24.
        height: rows of the grid.
        stacked: whether the series add up.
        decimals: digits after the point; None: as Grafana finds best.
        most: the largest possible value, as 1 for shares.
        names: texts for values.
        alerts: names of alerts whose runbooks belong to it.
    """

    title: str
    description: str
    queries: tuple[Query, ...]
    kind: Kind
    unit: str
    steps: tuple[Step, ...] = ()
    width: int = 8
    height: int = 8
    stacked: bool = False
    decimals: int | None = None
    most: float | None = None
    names: dict[str, str] = msgspec.field(default_factory=dict)
    alerts: tuple[str, ...] = ()

    def to_json(self, number: int, x: int, y: int) -> Json:
        """Return the panel with this id at this place."""
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "targets": [self._target(query, letter) for query, letter in zip(self.queries, _LETTERS, strict=False)],
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": _OPTIONS[self.kind],
            "links": [
                {"title": f"Runbook {name}", "url": f"{RUNBOOKS}/{name}.md", "type": "link", "targetBlank": True}
                for name in self.alerts
            ],
        }

    def _target(self, query: Query, letter: str) -> Json:
        return {
            "refId": letter,
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": query.expr,
            "legendFormat": query.legend,
            **(_RANGE if self.kind == "timeseries" else _INSTANT),
        }

    def _defaults(self) -> Json:
        base: Color = "green" if self.steps else "text"
        steps: list[Json] = [{"color": base, "value": None}]
        steps += [{"color": each.color, "value": each.value} for each in self.steps]
        by_value = self.kind != "timeseries"
        found: Json = {
            "unit": self.unit,
            "min": 0,
            "color": {"mode": "thresholds" if by_value else "palette-classic"},
            "thresholds": {"mode": "absolute", "steps": steps},
            "mappings": [],
        }
        if self.names:
            options = {value: {"text": text, "index": index} for index, (value, text) in enumerate(self.names.items())}
            found["mappings"] = [{"type": "value", "options": options}]
        if self.decimals is not None:
            found["decimals"] = self.decimals
        if self.most is not None:
            found["max"] = self.most
        if self.kind == "timeseries":
            found["custom"] = {
                "drawStyle": "line",
                "lineWidth": 1,
                "fillOpacity": 30 if self.stacked else 5,
                "showPoints": "never",
                "spanNulls": False,
                "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            }
        return found


_LETTERS: Final = "ABCDEFGH"
_LAST: Final = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: Final[dict[Kind, Json]] = {
    "stat": {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
        "reduceOptions": _LAST,
    },
    "timeseries": {
        "legend": {"showLegend": True, "displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "bargauge": {
        "displayMode": "basic",
        "valueMode": "color",
        "showUnfilled": True,
        "orientation": "horizontal",
        "reduceOptions": _LAST,
    },
}


def bad_from(value: float, worse: float | None = None) -> tuple[Step, ...]:
    """Return thresholds: orange from a value on, and red from a larger one; without that, red from the first on."""
    if worse is None:
        return (Step(value, "red"),)
    return (Step(value, "orange"), Step(worse, "red"))


def stat(
    title: str, description: str, expr: str, unit: str = "short", steps: tuple[Step, ...] = (), **more: Any
) -> Panel:
    """A figure of now. Six of them make a row."""
    shape = {"width": 4, "height": 4, "legend": "now", **more}
    queries = (Query(expr, shape.pop("legend")),)
    return Panel(kind="stat", title=title, description=description, queries=queries, unit=unit, steps=steps, **shape)


def graph(title: str, description: str, *queries: tuple[str, str], unit: str = "short", **more: Any) -> Panel:
    """Series over the time range, from pairs of expression and legend. Three of them make a row."""
    found = tuple(Query(*query) for query in queries)
    return Panel(kind="timeseries", title=title, description=description, queries=found, unit=unit, **more)


def ranked(title: str, description: str, expr: str, legend: str, unit: str = "short", **more: Any) -> Panel:
    """The largest values of now, if there may be a series for each node or job."""
    found = (Query(expr, legend),)
    return Panel(kind="bargauge", title=title, description=description, queries=found, unit=unit, **more)
