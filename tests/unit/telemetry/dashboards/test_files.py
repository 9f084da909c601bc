"""Issue 17.C: the files of dashboards are what Grafana's SDK and a schema accept, and what a person can use."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models import dashboard as sdk

from muster.telemetry.dashboards import generate
from muster.telemetry.dashboards.boards.all import DASHBOARDS
from muster.telemetry.dashboards.dashboard import Dashboard, Row
from muster.telemetry.dashboards.panel import RUNBOOKS, WIDTH, graph, stat
from tests.unit.telemetry.dashboards.schema import SCHEMA

ROOT: Final = Path(__file__).parents[4]
each_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.name)


def lost(mine: Any, theirs: Any, path: str = "$") -> Iterator[str]:
    """What the SDK dropped or changed."""
    if isinstance(mine, dict):
        for key, value in mine.items():
            if not isinstance(theirs, dict) or key not in theirs:
                yield f"{path}.{key}"
            else:
                yield from lost(value, theirs[key], f"{path}.{key}")
    elif isinstance(mine, list):
        if not isinstance(theirs, list) or len(mine) != len(theirs):
            yield path
        else:
            for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
                yield from lost(one, other, f"{path}[{number}]")
    elif mine != theirs:
        yield f"{path}: {mine!r} became {theirs!r}"


def through_sdk(mine: dict[str, Any]) -> dict[str, Any]:
    plugins.register_default_plugins()
    found: dict[str, Any] = json.loads(json.dumps(sdk.Dashboard.from_json(mine), cls=encoder.JSONEncoder))
    return found


def test_files_are_what_the_code_says() -> None:
    assert generate.main(["--check"]) == 0
    assert {path.stem for path in generate.FILES.iterdir()} == {each.name for each in DASHBOARDS}


@each_dashboard
def test_grafanas_sdk_knows_every_field(dashboard: Dashboard) -> None:
    """The SDK drops unknown fields without an error, so what it encodes again is compared."""
    mine = json.loads(generate.file_text(dashboard))
    assert list(lost(mine, through_sdk(mine))) == []


def test_a_field_that_grafana_does_not_know_is_found() -> None:
    mine = json.loads(generate.file_text(DASHBOARDS[0]))
    mine["panels"][1]["colour"] = "red"
    mine["panels"][2]["options"]["grafMode"] = "none"
    assert list(lost(mine, through_sdk(mine))) == ["$.panels[1].colour", "$.panels[2].options.grafMode"]


@each_dashboard
def test_schema_holds(dashboard: Dashboard) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(generate.file_text(dashboard)))


def test_uids_are_unique_and_every_dashboard_links_to_the_others() -> None:
    found = [each.to_json() for each in DASHBOARDS]
    assert len({each["uid"] for each in found}) == len(found)
    for each in found:
        (link,) = each["links"]
        assert (link["type"], link["tags"], link["includeVars"], link["keepTime"]) == (
            "dashboards",
            ["muster"],
            True,
            True,
        )
        assert set(link["tags"]) <= set(each["tags"])


@each_dashboard
def test_panels_have_unique_ids_and_do_not_overlap(dashboard: Dashboard) -> None:
    panels = dashboard.to_json()["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= WIDTH
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
    assert len({each["title"] for each in panels if each["type"] != "row"}) == sum(
        each["type"] != "row" for each in panels
    )


def test_a_panel_that_does_not_fit_begins_a_new_line() -> None:
    wide = graph("wide", "It is wide.", ("up", "up"), width=16)
    narrow = stat("narrow", "It is narrow.", "up", width=12)
    rows = (Row("r", (wide, narrow)), Row("s", (narrow,)))
    made = Dashboard(name="n", title="t", description="d", rows=rows).to_json()
    places = [each["gridPos"] for each in made["panels"]]
    assert [(each["x"], each["y"]) for each in places] == [(0, 0), (0, 1), (0, 9), (0, 13), (0, 14)]


@each_dashboard
def test_it_begins_with_figures_that_have_thresholds(dashboard: Dashboard) -> None:
    first = dashboard.rows[0].panels
    assert {each.kind for each in first} == {"stat"}
    assert 4 <= len(first) <= 6
    assert any(each.steps for each in first)


@each_dashboard
def test_runbooks_that_panels_name_exist(dashboard: Dashboard) -> None:
    for panel in dashboard.panels():
        for name in panel.alerts:
            assert (ROOT / RUNBOOKS / f"{name}.md").is_file(), (panel.title, name)


def test_alerts_of_the_chart_are_on_a_panel() -> None:
    """A person who follows an alert finds its figures on a dashboard."""
    alerts = importlib.import_module("muster.telemetry.alerts.alerts").by_name()
    shown = {name for dashboard in DASHBOARDS for panel in dashboard.panels() for name in panel.alerts}
    assert shown - alerts.keys() == set()
    assert alerts.keys() - shown == set()
