"""The JSON schema of our dashboards: a part of Grafana's, and stricter, since every panel must explain itself."""

from __future__ import annotations

from typing import Any, Final

GRID: Final = {"type": "integer", "minimum": 0}
UNITS: Final = frozenset(
    ("short", "percentunit", "s", "bytes", "Bps", "bps", "pps", "ops", "cps", "reqps")
)  # of @grafana/data, valueFormats/categories.ts
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["uid", "title", "description", "tags", "schemaVersion", "time", "refresh", "templating", "panels"],
    "properties": {
        "uid": {"type": "string", "pattern": "^[a-z0-9-]{1,40}$"},
        "title": {"type": "string", "pattern": "^Muster / "},
        "description": {"type": "string", "minLength": 20},
        "tags": {"type": "array", "contains": {"const": "muster"}},
        "schemaVersion": {"type": "integer", "minimum": 36},
        "editable": {"type": "boolean"},
        "graphTooltip": {"enum": [0, 1, 2]},
        "timezone": {"type": "string"},
        "time": {"type": "object", "required": ["from", "to"]},
        "refresh": {"type": "string", "pattern": "^[0-9]+[smh]$"},
        "links": {"type": "array", "minItems": 1},
        "annotations": {"type": "object"},
        "templating": {
            "type": "object",
            "properties": {
                "list": {"type": "array", "items": {"type": "object", "required": ["type", "name", "label"]}}
            },
        },
        "panels": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/row"}, {"$ref": "#/$defs/panel"}]}},
    },
    "$defs": {
        "place": {
            "type": "object",
            "additionalProperties": False,
            "required": ["h", "w", "x", "y"],
            "properties": {"h": GRID, "w": {**GRID, "maximum": 24}, "x": {**GRID, "maximum": 23}, "y": GRID},
        },
        "row": {
            "type": "object",
            "additionalProperties": False,
            "required": ["id", "type", "title", "collapsed", "panels", "gridPos"],
            "properties": {
                "id": GRID,
                "type": {"const": "row"},
                "title": {"type": "string", "minLength": 1},
                "collapsed": {"const": False},
                "panels": {"maxItems": 0},
                "gridPos": {"$ref": "#/$defs/place"},
            },
        },
        "panel": {
            "type": "object",
            "additionalProperties": False,
            "required": [
                "id", "type", "title", "description", "datasource", "gridPos", "targets", "fieldConfig", "options",
            ],
            "properties": {
                "id": GRID,
                "type": {"enum": ["stat", "timeseries", "bargauge"]},
                "title": {"type": "string", "minLength": 3, "maxLength": 48},
                "description": {"type": "string", "minLength": 15, "pattern": "[.]$"},
                "datasource": {"const": {"type": "prometheus", "uid": "${datasource}"}},
                "gridPos": {"$ref": "#/$defs/place"},
                "targets": {
                    "type": "array",
                    "minItems": 1,
                    "items": {"type": "object", "required": ["refId", "expr", "legendFormat", "instant", "range"]},
                },
                "fieldConfig": {
                    "type": "object",
                    "required": ["defaults", "overrides"],
                    "properties": {
                        "defaults": {
                            "type": "object",
                            "required": ["unit", "thresholds", "color"],
                            "properties": {"unit": {"enum": sorted(UNITS)}},
                        }
                    },
                },
                "options": {"type": "object"},
                "links": {"type": "array"},
            },
        },
    },
}  # fmt: skip
