"""Issue 17 A3: the log of the dearest queries stays small, shows dashboards and panels, and hides secrets."""

from __future__ import annotations

import json

import msgspec
import pytest
from multidict import CIMultiDict

from muster.telemetry.guard.callers.caller import Caller
from muster.telemetry.guard.dearest.asked import TEXT_MAX, Asked, shown_text
from muster.telemetry.guard.dearest.config import DearestConfig
from muster.telemetry.guard.dearest.dearest import Dearest
from muster.telemetry.guard.dearest.lines import LINES_MAX
from muster.telemetry.guard.dearest.source import Source, source_of

ALICE = Caller("grafana/alice", "header", "people", "grafana/*")
BOB = Caller("grafana/bob", "header", "people", "grafana/*")
ADMIN = Caller("admin", "token", "operators", "admin")
PANEL = Source("uid-1", "Nodes", "7", "CPU", "", "1")


def asked(
    text: str = "up", cost: float = 100, caller: Caller = ALICE, source: Source = PANEL, outcome: str = "sent"
) -> Asked:
    return Asked(caller, "query_range", text, 3600, 15, cost, source, outcome, 0.5, 2000, 10, 100)


def queries(dearest: Dearest, reader: Caller = ADMIN, now: float = 0.0, shown: int = 50) -> list[dict[str, object]]:
    page = json.loads(json.dumps(dearest.page(reader, now, shown), allow_nan=False))
    assert page["status"] == "success"
    return list(page["data"]["queries"])


def made(entries: int = 10, half_life_s: float = 3600) -> Dearest:
    return Dearest(DearestConfig(entries=entries, half_life_s=half_life_s, readers=("operators",)))


def test_equal_requests_are_one_query_with_its_dashboard_and_panel() -> None:
    dearest = made()
    for n in range(5):
        dearest.record(asked(outcome="refused" if n == 0 else "sent", cost=100 + n), 0.0)
    [query] = queries(dearest)
    assert (query["dashboardUid"], query["dashboardTitle"], query["panelId"]) == ("uid-1", "Nodes", "7")
    assert (query["requests"], query["notSent"], query["recentCost"], query["maxCost"]) == (5, 1, 510, 104)
    assert (query["caller"], query["query"], query["maxAnswerBytes"]) == ("grafana/alice", "up", 2000)


def test_dearest_come_first_and_old_costs_fade() -> None:
    dearest = made(half_life_s=100)
    dearest.record(asked("old", 1000), 0.0)
    dearest.record(asked("new", 300), 200.0)
    assert [query["query"] for query in queries(dearest, now=0.0)] == ["old", "new"]
    found = queries(dearest, now=200.0)
    assert [(query["query"], query["recentCost"]) for query in found] == [("new", 300), ("old", 250)]


def test_many_cheap_queries_do_not_push_out_a_dear_one() -> None:
    dearest = made(entries=10)
    dearest.record(asked("dear", 1e9), 0.0)
    for n in range(5000):
        dearest.record(asked(f"cheap {n}", 1), float(n) / 10)
        assert len(dearest) <= 20
    assert queries(dearest, now=500.0, shown=1)[0]["query"] == "dear"


def test_callers_see_their_own_queries_and_readers_see_all() -> None:
    dearest = made()
    dearest.record(asked("of alice", caller=ALICE), 0.0)
    dearest.record(asked("of bob", caller=BOB), 0.0)
    assert [query["query"] for query in queries(dearest, ALICE)] == ["of alice"]
    assert dearest.page(ALICE, 0.0)["data"]["of"] == "grafana/alice"
    assert {query["query"] for query in queries(dearest, ADMIN)} == {"of alice", "of bob"}
    dearest.replace(msgspec.structs.replace(DearestConfig(), readers=("grafana/alice",)))
    assert len(queries(dearest, ALICE)) == 2
    assert queries(dearest, ADMIN) == []


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -5.0, 1e300])
def test_cost_of_any_kind_can_be_shown(cost: float) -> None:
    dearest = made()
    dearest.record(asked(cost=cost), 0.0)
    dearest.record(asked(cost=cost), -100.0)
    assert len(queries(dearest)) == 1


def test_long_queries_use_little_memory_and_stay_distinct() -> None:
    dearest, long = made(), "x" * 1_000_000
    dearest.record(asked(long + "1"), 0.0)
    dearest.record(asked(long + "2"), 0.0)
    found = queries(dearest)
    assert len(found) == 2
    assert all(len(str(query["query"])) <= TEXT_MAX for query in found)
    assert not any(long[:5000] in repr(entry) for entry in dearest._entries.values())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('up{api_token="s3cr\\"et", job="a"}', 'up{api_token="<redacted>", job="a"}'),
        ("up{PASSWORD =~ 's3cret'}", 'up{PASSWORD =~ "<redacted>"}'),
        ("up{secret!=`s3cret`} + on() b", 'up{secret!="<redacted>"} + on() b'),
        ('up{client_secret="s3cret', 'up{client_secret="<redacted>"'),
        ("sum by (token) (up)\n/\tcount(up)", "sum by (token) (up) /?count(up)"),
        ("\x1b[2J\u202eup", "?[2J?up"),
    ],
)
def test_text_is_printable_and_without_secrets(text: str, shown: str) -> None:
    assert shown_text(text) == shown


def test_secret_is_hidden_at_the_edge_of_what_is_shown() -> None:
    for blanks in range(TEXT_MAX - 20, 2 * TEXT_MAX + 5):
        assert "s3cret" not in shown_text(" " * blanks + 'token="s3cret"')


def test_source_is_what_grafana_sends() -> None:
    headers = CIMultiDict(
        {
            "x-dashboard-uid": "abc",
            "X-Dashboard-Title": "Nodes%20%2F%20CPU%20%C3%A9",
            "X-Panel-Id": "7",
            "X-Panel-Title": "CPU%0A",
            "X-Rule-Uid": "r1",
            "X-Grafana-Org-Id": "1",
        }
    )
    assert source_of(headers) == Source("abc", "Nodes / CPU é", "7", "CPU?", "r1", "1")
    assert source_of(CIMultiDict()) == Source()


def test_claims_of_a_caller_are_short_and_printable() -> None:
    evil = source_of(CIMultiDict({"X-Dashboard-Uid": "\x1b]0;x\x07" * 1000, "X-Dashboard-Title": "%FF%1B" * 1000}))
    for text in (evil.dashboard_uid, evil.dashboard_title):
        assert len(text) <= 100
        assert text.isprintable()


def test_dear_requests_get_a_line_in_the_log_and_floods_do_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    dearest = Dearest(DearestConfig(log_cost=1000))
    dearest.record(asked("cheap", 999), 0.0)
    for n in range(25):
        dearest.record(asked(f'up{{token="s3cret"}} > {n}\nforged line', 1000, outcome="refused"), 5.5)
    dearest.record(asked("later", 5000), 6.0)
    lines = [json.loads(record.message.removeprefix("dear request: ")) for record in caplog.records]
    assert len(lines) == LINES_MAX + 1
    assert lines[0]["query"] == 'up{token="<redacted>"} > 0 forged line'
    assert (lines[0]["caller"], lines[0]["dashboardUid"], lines[0]["outcome"]) == ("grafana/alice", "uid-1", "refused")
    assert (lines[-1]["query"], lines[-1]["leftOut"]) == ("later", 25 - LINES_MAX)
    dearest.replace(DearestConfig(log_cost=None))
    dearest.record(asked("unlogged", 1e12), 7.0)
    assert len(caplog.records) == LINES_MAX + 1
