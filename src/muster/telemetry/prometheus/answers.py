"""Answers of the HTTP API of Prometheus ("HTTP API" in its documentation).

Fields that another server leaves out (Mimir, Thanos, VictoriaMetrics) have defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec

Labels = Mapping[str, str]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A number of a server in Go. msgspec reads longer ones, which overflow in calculations."""


class Sample(NamedTuple):
    """A value of a series at a time. `at_s` is in Unix seconds."""

    labels: Labels
    at_s: float
    value: float


class Line(NamedTuple):
    """Values of a series over time: pairs of Unix seconds and value."""

    labels: Labels
    points: tuple[tuple[float, float], ...]


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    """Part of an answer; unknown fields are ignored."""


class Count(_Answer, frozen=True):
    """A number that belongs to a name: a metric, a label, or a pair `label=value`."""

    name: str
    value: Int64


class HeadStats(_Answer, frozen=True):
    """Size of the head. Times are in Unix milliseconds; without samples they have extreme values."""

    num_series: Int64 = 0
    num_label_pairs: Int64 = 0
    chunk_count: Int64 = 0
    min_time: Int64 = 0
    max_time: Int64 = 0


class TsdbStatus(_Answer, frozen=True):
    """Statistics of the head (`/api/v1/status/tsdb`). Each list has the largest entries first.

    Attributes:
        head_stats: size of the head; zeros from servers that do not send it.
        series_count_by_metric_name: series of each metric.
        label_value_count_by_label_name: different values of each label.
        memory_in_bytes_by_label_name: bytes of the values of each label.
        series_count_by_label_value_pair: series that have a pair `label=value`.
        total_series: sent by VictoriaMetrics instead of `head_stats`.
    """

    head_stats: HeadStats = HeadStats()
    series_count_by_metric_name: tuple[Count, ...] = ()
    label_value_count_by_label_name: tuple[Count, ...] = ()
    memory_in_bytes_by_label_name: tuple[Count, ...] = ()
    series_count_by_label_value_pair: tuple[Count, ...] = ()
    total_series: Int64 = 0


class ValueSeries(msgspec.Struct, frozen=True):
    """Series that have a value of a label."""

    label_value: str
    series_count: Int64


class LabelSeries(msgspec.Struct, frozen=True):
    """Values of a label with most series."""

    label_name: str
    cardinality: tuple[ValueSeries, ...] = ()


class Cardinality(msgspec.Struct, frozen=True):
    """Answer of Mimir about a label. Its field names have underscores."""

    series_count_total: Int64 = 0
    labels: tuple[LabelSeries, ...] = ()

    @property
    def counts(self) -> list[Count]:
        """Values of the label with their series."""
        return [Count(each.label_value, each.series_count) for label in self.labels for each in label.cardinality]


class Target(_Answer, frozen=True):
    """A target that is scraped."""

    labels: dict[str, str] = {}
    discovered_labels: dict[str, str] = {}
    scrape_pool: str = ""
    scrape_url: str = ""
    health: str = ""
    last_error: str = ""
    last_scrape_duration: float = 0.0
    scrape_interval: str = ""


class Targets(_Answer, frozen=True):
    """Targets of the server."""

    active_targets: tuple[Target, ...] = ()


class Metadata(_Answer, frozen=True):
    """Type, help text and unit that a target exported with a metric."""

    type: str = ""
    help: str = ""
    unit: str = ""


class Rule(_Answer, frozen=True):
    """A recording rule (`recording`) or an alert (`alerting`)."""

    type: str
    name: str
    query: str
    duration: float = 0.0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    health: str = ""
    last_error: str = ""


class RuleGroup(_Answer, frozen=True):
    """Rules that are evaluated together. `interval` is in seconds."""

    name: str
    file: str = ""
    interval: float = 0.0
    rules: tuple[Rule, ...] = ()


class RuleGroups(_Answer, frozen=True):
    """Groups of rules of the server."""

    groups: tuple[RuleGroup, ...] = ()


class BuildInfo(_Answer, frozen=True):
    """Version of the server. Mimir and Thanos answer with versions of their own."""

    version: str = ""
    revision: str = ""
    go_version: str = ""
    application: str = ""
    features: dict[str, str | bool] = {}


class RuntimeInfo(_Answer, frozen=True):
    """Properties of the server's process."""

    start_time: str = ""
    goroutine_count: Int64 = 0
    gomaxprocs: Int64 = msgspec.field(default=0, name="GOMAXPROCS")
    gomemlimit: Int64 = msgspec.field(default=0, name="GOMEMLIMIT")
    gogc: str = msgspec.field(default="", name="GOGC")
    storage_retention: str = ""
    corruption_count: Int64 = 0


class LoadedConfig(_Answer, frozen=True):
    """Configuration that the server uses. Secrets in it are hidden by the server."""

    yaml: str = ""


class QueryResult(_Answer, frozen=True):
    """Answer to a query before its values are decoded."""

    result_type: str
    result: msgspec.Raw = msgspec.Raw(b"[]")


class Envelope(_Answer, frozen=True):
    """Outer part of every answer."""

    status: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    error_type: str = ""
    error: str = ""
    warnings: tuple[str, ...] = ()
