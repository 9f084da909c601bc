"""Queries that the guard recorded."""

from __future__ import annotations

import json
from pathlib import Path

from muster.telemetry.guard.dearest.asked import TEXT_MAX, shown_text
from muster.telemetry.usage.inputs.guardqueries import guard_questions


def test_query_that_the_guard_cut_may_read_everything(tmp_path: Path) -> None:
    long = " + ".join(f"metric_{n}" for n in range(TEXT_MAX))
    page = {"queries": [{"query": shown_text(each), "kind": "query"} for each in (long, "a_total")]}
    (tmp_path / "page.json").write_text(json.dumps(page))
    cut, whole = guard_questions(tmp_path / "page.json")
    assert any(each.reads_name("metric_999") for each in cut.query.selections)
    assert cut.query.doubt
    assert not any(each.reads_name("metric_999") for each in whole.query.selections)
