"""Muster's own dashboards, alerts and commands count as readers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import muster.telemetry
from muster.telemetry.usage.inputs.own import own_questions
from muster.telemetry.usage.kept import kept_because

COMMANDS = ("cardinality", "replay")


@pytest.mark.slow
def test_own_dashboards_and_alerts_are_understood() -> None:
    questions = list(own_questions())
    assert len(questions) > 100
    assert [each for each in questions if each.query.doubt] == []
    read = {selection.exact for each in questions for selection in each.query.selections}
    assert {"up", "muster_leader"} <= read


def test_metrics_that_commands_read_are_kept() -> None:
    files = [file for each in COMMANDS for file in (Path(muster.telemetry.__file__).parent / each).rglob("*.py")]
    texts = [file.read_text() for file in files]
    named = {name for text in texts for name in re.findall(r"\b(?:prometheus|process)_[a-z_]+[a-z]\b", text)}
    metrics = {each for each in named if each.endswith(("_total", "_seconds", "_bytes", "_series", "_sum", "_info"))}
    assert len(metrics) >= 8
    assert {each for each in metrics if not kept_because(each)} == set()
