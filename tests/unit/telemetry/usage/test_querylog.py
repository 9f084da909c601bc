"""Query logs of Prometheus and Mimir: window, rotated files, broken lines, rules."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Mapping, Set
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from muster.kube.loglines import LogFileError
from muster.telemetry.usage.inputs.querylog import LogReading, read_query_logs, selections_of_groups
from muster.telemetry.usage.inputs.rules import Rule
from muster.telemetry.usage.selection import Selection, named

START_S = 1_790_000_000.0
END_S = START_S + 100
NO_GROUPS: Mapping[str, Set[Selection]] = {}


def moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "123Z" if at_s % 1 else "Z")


def line(query: str, at_s: float, key: str = "ts", **more: Any) -> str:
    return json.dumps({"params": {"query": query, "step": 0}, "stats": {}, key: moment(at_s), **more}) + "\n"


def read(*paths: Path, groups: Mapping[str, Set[Selection]] = NO_GROUPS) -> tuple[LogReading, list[str]]:
    texts: list[str] = []
    result = read_query_logs(paths, (START_S, END_S), groups, lambda question: texts.append(question.text))
    return result, texts


def test_queries_of_old_and_new_versions_are_read_once_each(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(
        line("a", START_S + 1)
        + line("b", START_S + 2.5, "time", msg="promql query logged", level="INFO")
        + "\n"
        + line("a", START_S + 3)
    )
    result, texts = read(tmp_path / "a")
    assert (texts, result.queries, result.files[0].reading.lines) == (["a", "b"], 3, 3)


def test_queries_outside_of_the_window_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(
        line("old", START_S - 1000) + line("a", START_S) + line("b", END_S) + line("c", END_S + 1)
    )
    result, texts = read(tmp_path / "a")
    assert (texts, result.outside, result.queries) == (["a", "b"], 2, 2)
    assert (result.gap_s, result.gap_start_s) == (100, START_S)
    assert result.covered_s(START_S, END_S) == 100


def test_rotated_files_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    (tmp_path / "query.log").write_text(line("c", START_S + 90))
    (tmp_path / "query.log.1").write_text(line("b", START_S + 50))
    (tmp_path / "query.log.2.gz").write_bytes(gzip.compress(line("a", START_S + 20).encode()))
    result, texts = read(*sorted(tmp_path.iterdir()))
    assert texts == ["a", "b", "c"]
    assert (result.gap_s, result.gap_start_s) == (40, START_S + 50)
    assert result.covered_s(START_S, END_S) == 70


def test_broken_lines_are_counted_and_named(tmp_path: Path) -> None:
    broken = ["text\n", "{}\n", '{"params": {"query": "b"}}\n', line("b", START_S).replace("Z", ""), '{"params"']
    (tmp_path / "a").write_text(line("a", START_S) + "".join(broken[:4]) + line("c", START_S + 1) + broken[4])
    result, texts = read(tmp_path / "a")
    assert result.files[0].reading.broken_at == [2, 3, 4, 5, 7]
    assert [each for each in texts if each != "(a broken line)"] == ["a", "c"]


@pytest.mark.parametrize("more", [{}, {"level": "INFO", "msg": "promql query logged"}])
def test_words_of_a_broken_line_count_as_used(more: dict[str, str], tmp_path: Path) -> None:
    text = json.dumps({**more, **json.loads(line("sum(\na_total)", START_S))})
    (tmp_path / "a").write_text(text[:-20])
    selections: set[Selection] = set()
    read_query_logs(
        [tmp_path / "a"], (START_S, END_S), NO_GROUPS, lambda question: selections.update(question.query.selections)
    )
    assert named("a_total") in selections


def test_file_that_is_not_a_query_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text\n" * 1001)
    with pytest.raises(LogFileError, match="is not a query log"):
        read(tmp_path / "a")


def test_cut_gzip_file_gives_its_first_lines(tmp_path: Path) -> None:
    whole = gzip.compress("".join(line(f"a{n}", START_S + n % 100) for n in range(5000)).encode())
    (tmp_path / "a.gz").write_bytes(whole[: len(whole) // 2])
    result, texts = read(tmp_path / "a.gz")
    assert 0 < len(texts) < 5000
    assert result.files[0].reading.broken == 1


def test_rules_of_known_groups_are_left_out(tmp_path: Path) -> None:
    known, gone = ({"file": "f", "name": name} for name in ("known", "gone"))
    (tmp_path / "a").write_text(
        line("sum(a)", START_S, ruleGroup=known)
        + line("b", START_S, ruleGroup=gone)
        + line("c", START_S)
        + line("a + d", START_S, ruleGroup=known)
    )
    rules = [Rule("r", "a", True, "known", "f"), Rule("A", "b", False, "known", "f", ("c",))]
    result, texts = read(tmp_path / "a", groups=selections_of_groups(rules))
    assert (texts, result.of_rules) == (["b", "c", "a + d"], 2)


def test_lines_of_mimir_are_read(tmp_path: Path) -> None:
    at = moment(START_S + 1)
    (tmp_path / "a").write_text(
        f'ts={at} caller=handler.go:1 msg="query stats" path=/api/v1/query param_query="sum(a{{x=\\"1\\"}})"\n'
        f'ts={at} msg="query stats" param_query=up response_time=1s\n'
        f'ts={at} msg="query stats" path=/prometheus/api/v1/series param_match[]="{{__name__=\\"c\\"}}"\n'
        f'ts={at} msg="query stats" path=/prometheus/api/v1/labels\n'
        f'ts={at} msg="starting"\n' + json.dumps({"ts": at, "msg": "query stats", "param_query": "d", "n": 1}) + "\n"
    )
    result, texts = read(tmp_path / "a")
    assert texts == ['sum(a{x="1"})', "up", '{__name__="c"}', "d"]
    assert result.files[0].reading.broken == 0


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w") as file:
        for n in range(6_000):
            file.write(line("x" * 200, START_S + n / 80, stats={"text": "y" * 800}))
    tracemalloc.start()
    try:
        result, texts = read(tmp_path / "a")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(texts), result.queries) == (1, 6_000)
    assert peak_bytes < 1 << 20


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LogFileError, match="No such file"):
        read(tmp_path / "a")


def test_empty_log_covers_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    assert read(tmp_path / "a")[0].covered_s(START_S, END_S) == 0
