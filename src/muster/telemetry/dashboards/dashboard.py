"""Dashboards: rows of panels, variables and links, and their JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from muster.telemetry.dashboards.panel import DATASOURCE, WIDTH, Json, Panel

TAG: Final = "muster"
SCHEMA_VERSION: Final = 39
"""Of Grafana 11. Newer versions convert it when they read the file."""


class Variable(msgspec.Struct, frozen=True):
    """A variable with the values of a label.

    Attributes:
        name: used as `$name`.
        label: shown to people.
        query: `label_values(selector, label)`; "" for a text box with a regular expression.
    """

    name: str
    label: str
    query: str = ""

    def to_json(self) -> Json:
        """Return the variable. It begins with all values, which also selects series without the label."""
        if not self.query:
            every = {"selected": True, "text": ".*", "value": ".*"}
            return {
                "type": "textbox", "name": self.name, "label": self.label, "hide": 0, "query": ".*", "current": every,
                "options": [every],
            }  # fmt: skip
        return {
            "type": "query",
            "name": self.name,
            "label": self.label,
            "hide": 0,
            "datasource": DATASOURCE,
            "query": {"query": self.query, "refId": f"Variable-{self.name}"},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
            "options": [],
        }


CLUSTER: Final = Variable("cluster", "Cluster", "label_values(muster_leader, cluster)")
NAMESPACE: Final = Variable(
    "namespace", "Namespace of Muster", 'label_values(muster_leader{cluster=~"$cluster"}, namespace)'
)
JOB: Final = Variable("jobname", "Job (regular expression)")
_DATASOURCE: Final[Json] = {
    "type": "datasource",
    "name": "datasource",
    "label": "Data source",
    "hide": 0,
    "query": "prometheus",
    "refresh": 1,
    "multi": False,
    "includeAll": False,
    "current": {},
    "options": [],
}


class Row(msgspec.Struct, frozen=True):
    """Panels under a heading, from left to right."""

    title: str
    panels: tuple[Panel, ...]


class Dashboard(msgspec.Struct, frozen=True, kw_only=True):
    """A dashboard.

    Attributes:
        name: of the file and, after `muster-`, of its address in Grafana.
        title: shown behind `Muster / `.
        description: the questions that it answers.
        rows: the first one holds the figures for a person on call; the others show causes.
        variables: besides the data source.
    """

    name: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = (CLUSTER, NAMESPACE)

    @property
    def uid(self) -> str:
        """The id in addresses of Grafana."""
        return f"muster-{self.name}"

    def panels(self) -> Iterator[Panel]:
        """Yield all panels."""
        for row in self.rows:
            yield from row.panels

    def to_json(self) -> Json:
        """Return the dashboard as Grafana imports it."""
        return {
            "uid": self.uid,
            "title": f"Muster / {self.title}",
            "description": self.description,
            "tags": [TAG],
            "schemaVersion": SCHEMA_VERSION,
            "editable": True,
            "graphTooltip": 1,
            "timezone": "browser",
            "time": {"from": "now-3h", "to": "now"},
            "refresh": "1m",
            "links": [_LINKS],
            "annotations": {"list": []},
            "templating": {"list": [_DATASOURCE, *(each.to_json() for each in self.variables)]},
            "panels": list(self._laid_out()),
        }

    def _laid_out(self) -> Iterator[Json]:
        number, y = 0, 0
        for row in self.rows:
            number += 1
            yield {
                "id": number, "type": "row", "title": row.title, "collapsed": False, "panels": [],
                "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y},
            }  # fmt: skip
            y += 1
            x = height = 0
            for panel in row.panels:
                if x + panel.width > WIDTH:
                    x, y, height = 0, y + height, 0
                number += 1
                yield panel.to_json(number, x, y)
                x, height = x + panel.width, max(height, panel.height)
            y += height


_LINKS: Final[dict[str, Any]] = {
    "type": "dashboards",
    "title": "Muster",
    "icon": "external link",
    "tooltip": "Other dashboards of Muster, with the same variables and time",
    "url": "",
    "tags": [TAG],
    "asDropdown": True,
    "includeVars": True,
    "keepTime": True,
    "targetBlank": False,
}
