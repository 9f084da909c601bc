"""A server of metrics in memory, which answers the guard's probes as Prometheus, Mimir or VictoriaMetrics do."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from muster.telemetry.guard.pricing.prober import ProbeFailed
from muster.telemetry.promql.expression import parse_expression, parse_selector

BUILD: Final = {"version": "2.42.0", "revision": "r"}
NEWEST_MS: Final = 1_800_000_000_000
OPEN_SERIES_A_SECOND: Final = 200_000


@dataclass
class FakeMetrics:
    """A server.

    Attributes:
        series: labels of each series, with a sample each `interval_s`.
        copies: how many series each set of labels stands for; they differ in their `pod`.
        ended: series that are in the head, and have no recent sample.
        since_s: Unix time of the first sample of every series.
        build: data of its buildinfo.
        honours_limit: `limit` of labels and of the TSDB status.
        has_status: it has a TSDB status.
        has_stats: its answers have statistics.
        down: it does not answer.
        retention: as it reports it.
        interval_s: between samples.
        point: value of every series in an answer.
        samples_each: that one series counts at one instant.
        asked: path and parameters of each probe.
    """

    series: list[dict[str, str]] = field(default_factory=list)
    copies: int = 1
    ended: list[dict[str, str]] = field(default_factory=list)
    since_s: float = 0.0
    build: Mapping[str, str] = field(default_factory=lambda: BUILD)
    honours_limit: bool = False
    has_status: bool = True
    has_stats: bool = True
    down: bool = False
    retention: str = "15d"
    interval_s: float = 15.0
    point: Mapping[str, Any] = field(default_factory=lambda: {"value": [0, "1"]})
    samples_each: int = 1
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    async def get(
        self, path: str, parameters: Sequence[tuple[str, str]], tenant: str, timeout_s: float, max_bytes: int
    ) -> bytes:
        """Answer a probe. Raises ProbeFailed where the real server would fail or take too long."""
        given = dict(parameters)
        self.asked.append((path, given))
        if self.down:
            raise ProbeFailed("connection refused")
        match path:
            case "/api/v1/status/buildinfo":
                data: Any = self.build
            case "/api/v1/status/runtimeinfo":
                data = {"storageRetention": self.retention}
            case "/api/v1/labels":
                names = sorted({name for each in self._matched(parameters) for name in each})
                return self._listed(names, given)
            case values if values.endswith("/values"):
                label = path.split("/")[-2]
                found = {each[label] for each in self._matched(parameters) if each.get(label)}
                return self._listed(sorted(found), given)
            case "/api/v1/status/tsdb" if self.has_status:
                data = self._status(int(given["limit"]) if self.honours_limit else 10)
            case "/api/v1/query":
                data = self._query(given)
            case _:
                raise ProbeFailed(f"{path} is not found")
        body = json.dumps({"status": "success", "data": data}).encode()
        if len(body) > max_bytes:
            raise ProbeFailed("too large")
        return body

    @property
    def queries(self) -> list[str]:
        """Expressions of all probes that were queries."""
        return [given["query"] for path, given in self.asked if path == "/api/v1/query"]

    @property
    def counts(self) -> list[str]:
        """Expressions of the probes that counted the series of a selector."""
        return [each for each in self.queries if each.startswith("count(last_over_time(")]

    def _matched(self, parameters: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
        selectors = [parse_selector(value) for name, value in parameters if name == "match[]"]
        return [each for each in self.series if not selectors or any(selector.matches(each) for selector in selectors)]

    def _listed(self, items: list[str], given: Mapping[str, str]) -> bytes:
        limit = int(given.get("limit", 0)) if self.honours_limit else 0
        if limit and limit < len(items):
            return json.dumps({"data": items[:limit], "warnings": ["results truncated due to limit"]}).encode()
        return json.dumps({"data": items}).encode()

    def _status(self, limit: int) -> dict[str, Any]:
        names: Counter[str] = Counter()
        pairs: Counter[str] = Counter()
        memory: Counter[str] = Counter()
        counted: set[tuple[str, str]] = set()
        different: dict[str, set[str]] = {}
        for each in [*self.series, *self.ended]:
            names[each["__name__"]] += self.copies
            for name, value in each.items():
                pairs[f"{name}={value}"] += self.copies if name != "pod" else 1
                different.setdefault(name, set()).add(value)
                if self.honours_limit:
                    memory[name] += self.copies * (len(name) + len(value.encode()) + 2)
                elif (name, value) not in counted:  # old servers count each value once
                    memory[name] += len(value.encode())
                counted.add((name, value))
        values = Counter({name: len(each) * (self.copies if name == "pod" else 1) for name, each in different.items()})
        return {
            "headStats": {"numSeries": sum(names.values()), "minTime": int(self.since_s * 1000), "maxTime": NEWEST_MS},
            "seriesCountByMetricName": _entries(names, limit),
            "seriesCountByLabelValuePair": _entries(pairs, limit),
            "labelValueCountByLabelName": _entries(values, limit),
            "memoryInBytesByLabelName": _entries(memory, limit),
        }

    def _query(self, given: Mapping[str, str]) -> dict[str, Any]:
        text = given["query"]
        (selector,) = parse_expression(text).selectors
        past = float(given["time"]) < self.since_s
        matched = [] if past else [each for each in self.series if selector.matches(each)]
        found = len(matched) * self.copies
        if found > float(given["timeout"]) * OPEN_SERIES_A_SECOND:
            raise ProbeFailed("query timed out")
        if not text.startswith("count("):
            return self._series_of(matched, text, given)
        number = self._distinct(matched, text) if text.startswith("count(count ") else found
        data: dict[str, Any] = {
            "resultType": "vector",
            "result": [{"metric": {}, "value": [0, str(number)]}] if found else [],
        }
        if self.has_stats:
            samples = int(found * selector.range_s / self.interval_s)
            data["stats"] = {"samples": {"totalQueryableSamples": samples, "peakSamples": found}}
        return data

    def _distinct(self, matched: Sequence[Mapping[str, str]], text: str) -> int:
        """Count the label sets that the aggregation within `count(...)` makes."""
        (part,) = parse_expression(text.removeprefix("count(").removesuffix(")")).parts
        sets = {tuple(sorted((name, value) for name, value in each.items() if name in part.kept)) for each in matched}
        return len(sets) * (self.copies if "pod" in part.kept else 1)

    def _series_of(self, matched: Sequence[Mapping[str, str]], text: str, given: Mapping[str, str]) -> dict[str, Any]:
        """Answer with some of the series: as many as `topk` or `limit` ask for, if the server has that."""
        asked = re.match(r"topk\((\d+),", text)
        limit = int(asked.group(1)) if asked else int(given["limit"]) if self.honours_limit else len(matched)
        result = [{"metric": each, **self.point} for each in matched[:limit]]
        samples = len(matched) * self.copies * self.samples_each
        return {"resultType": "vector", "result": result, "stats": {"samples": {"totalQueryableSamples": samples}}}


def _entries(counts: Counter[str], limit: int) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in counts.most_common(limit)]
