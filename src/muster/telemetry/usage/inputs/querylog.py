"""Reads query logs: those of Prometheus (`query_log_file`), and Mimir's lines "query stats".

Logs contain only queries that the engine evaluates. Requests for series and label values, federation and remote read
are in none of Prometheus' logs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from muster.kube.loglines import LogFileError, Reading, log_lines, opened_log
from muster.telemetry.usage.inputs.question import Question
from muster.telemetry.usage.inputs.rules import Rule
from muster.telemetry.usage.lexical import words_of_text
from muster.telemetry.usage.query import Query, read_query
from muster.telemetry.usage.selection import Selection

_SEEN_MAX: Final = 1_000_000
_TEXT_MAX: Final = 200
_FIRST_LINES: Final = 100
_STATS: Final = b"query stats"
_LOGFMT: Final = re.compile(r'\b(ts|time|t|param_query|param_match\[\])=("(?:\\.|[^"\\])*"|\S+)')
_PROGRESS_LINES: Final = 50_000
_BROKEN_MAX: Final = 1000
_OTHER_LINE: Final = re.compile(rb'\blevel=|\bmsg=|"(level|msg)":')
"""A line of a program's log that is not about a query."""
_QUERY_LINE: Final = re.compile(rb'"params":|promql query logged|query stats')


class _Params(msgspec.Struct):
    query: str


class _RuleGroup(msgspec.Struct):
    name: str = ""


class _Line(msgspec.Struct):
    """A line of Prometheus' query log: `ts` until 2.x, `time` since 3.0."""

    params: _Params
    ts: datetime | None = None
    time: datetime | None = None
    rule_group: _RuleGroup | None = msgspec.field(default=None, name="ruleGroup")


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass
class LogFile:
    """A log file that was read.

    Attributes:
        path: of the file.
        reading: its lines, and those that are broken.
    """

    path: Path
    reading: Reading = field(default_factory=Reading)


@dataclass
class LogReading:
    """What logs contained. Times are Unix seconds.

    Attributes:
        files: that were read, in order.
        queries: number of lines that are queries in the window.
        of_rules: number of those that a rule of a known group evaluated.
        outside: number of queries before or after the window.
        first_s: time of the first query; 0 without any.
        last_s: time of the last query.
        gap_s: longest time without a query in the window.
        gap_start_s: when that began.
    """

    files: list[LogFile] = field(default_factory=list)
    queries: int = 0
    of_rules: int = 0
    outside: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    gap_s: float = 0.0
    gap_start_s: float = 0.0

    def covered_s(self, start_s: float, end_s: float) -> float:
        """Return how much of a window lies between the first and the last query."""
        return max(min(self.last_s, end_s) - max(self.first_s, start_s), 0.0) if self.first_s else 0.0

    def add(self, at_s: float, start_s: float) -> None:
        """Record the time of a query."""
        self.first_s = min(self.first_s or at_s, at_s)
        gap = at_s - max(self.last_s, start_s)
        if self.last_s and gap > self.gap_s:
            self.gap_s, self.gap_start_s = gap, max(self.last_s, start_s)
        self.last_s = max(self.last_s, at_s)


def read_query_logs(
    paths: Sequence[Path],
    window: tuple[float, float],
    groups: Mapping[str, Set[Selection]],
    ask: Callable[[Question], None],
    progress: Callable[[str], None] = lambda stage: None,
) -> LogReading:
    """Read logs in the order of their first line, in bounded memory. Each text is asked about once.

    Args:
        paths: log files, also rotated and compressed ones.
        window: start and end, in Unix seconds; other queries are left out.
        groups: what the rules of each known group read. Their queries are left out, since rules are an input of
            their own. Other queries of such a group count: its name may stand for other rules.
        ask: is called with each query.
        progress: is called with the current stage.

    Raises:
        LogFileError: a file cannot be read, or is something else.
    """
    result, seen = LogReading(), set[int]()
    for path in sorted(dict.fromkeys(paths), key=_first_time):
        log = LogFile(path)
        result.files.append(log)
        with opened_log(path) as stream:
            for data in log_lines(stream, log.reading):
                if log.reading.number % _PROGRESS_LINES == 0:
                    progress(f"{path.name}: {log.reading.number} lines")
                try:
                    line = _parsed(data)
                except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
                    if _OTHER_LINE.search(data) is None or _QUERY_LINE.search(data) is not None:
                        _read_broken(data, log, ask)
                    continue
                if line is not None:
                    _read_line(line, path, window, groups, result, seen, ask)
    return result


def selections_of_groups(rules: Iterable[Rule]) -> dict[str, set[Selection]]:
    """Return what the rules of each group read, also in templates."""
    groups: dict[str, set[Selection]] = {}
    for rule in rules:
        found = groups.setdefault(rule.group, set())
        for text in (rule.expr, *rule.templates):
            found |= read_query(text).selections
    return groups


def _read_broken(data: bytes, log: LogFile, ask: Callable[[Question], None]) -> None:
    """Count a line that cannot be parsed. Its words may be metrics of its query."""
    log.reading.add_broken()
    if log.reading.broken > _BROKEN_MAX:
        raise LogFileError(f"{log.path} is not a query log: more than {_BROKEN_MAX} of its lines cannot be parsed")
    words = words_of_text(data.decode(errors="replace"))
    source = f"{log.path}: line {log.reading.number}"
    ask(Question("(a broken line)", source, Query(frozenset(words), "cannot be parsed")))


def _read_line(
    line: tuple[float, str, str],
    path: Path,
    window: tuple[float, float],
    groups: Mapping[str, Set[Selection]],
    result: LogReading,
    seen: set[int],
    ask: Callable[[Question], None],
) -> None:
    at_s, text, group = line
    result.add(at_s, window[0])
    if not window[0] <= at_s <= window[1]:
        result.outside += 1
        return
    result.queries += 1
    result.of_rules += group in groups
    key = hash((text, group in groups))
    if key in seen:
        return
    if len(seen) >= _SEEN_MAX:
        seen.clear()
    seen.add(key)
    query = read_query(text)
    if group in groups and query.selections <= groups[group]:
        return
    source = f"{path}: group {group}" if group else str(path)
    ask(Question(text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}...", source, query))


def _parsed(data: bytes) -> tuple[float, str, str] | None:
    """Return time, query and group of a line; None for a line of Mimir that has no query. Raises ValueError."""
    if _STATS in data:
        return _stats_line(data)
    line = _decode_line(data)
    at = line.ts or line.time
    if at is None or at.tzinfo is None:
        raise ValueError("the line has no time")
    return at.timestamp(), line.params.query, line.rule_group.name if line.rule_group else ""


def _stats_line(data: bytes) -> tuple[float, str, str] | None:
    """Read a line of Mimir's query-frontend, in JSON or logfmt."""
    if data.lstrip().startswith(b"{"):
        raw = _decode_fields(data)
        fields = {key: str(msgspec.json.decode(value)) for key, value in raw.items()}
    else:
        pairs = _LOGFMT.findall(data.decode())
        fields = {key: str(json.loads(value)) if value.startswith('"') else value for key, value in pairs}
    text = fields.get("param_query") or fields.get("param_match[]")
    if not text:
        return None
    at = datetime.fromisoformat(fields.get("ts") or fields.get("time") or fields.get("t") or "")
    if at.tzinfo is None:
        raise ValueError("the time has no zone")
    return at.timestamp(), text, ""


def _first_time(path: Path) -> float:
    """Return the time of the first good line of a file; infinity if it has none among the first hundred."""
    with opened_log(path) as stream:
        for number, data in enumerate(log_lines(stream, Reading())):
            try:
                line = _parsed(data)
            except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
                line = None
            if line is not None:
                return line[0]
            if number >= _FIRST_LINES:
                break
    return float("inf")
