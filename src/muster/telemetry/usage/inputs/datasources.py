"""Data sources of Grafana: which queries certainly go to something else than Prometheus."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Final

from muster.telemetry.usage.variables import variable_name

_OTHER_TYPES: Final = frozenset(
    {
        "alertmanager",
        "camptocamp-prometheus-alertmanager-datasource",
        "cloudwatch",
        "elasticsearch",
        "grafana-athena-datasource",
        "grafana-azure-monitor-datasource",
        "grafana-bigquery-datasource",
        "grafana-clickhouse-datasource",
        "grafana-googlesheets-datasource",
        "grafana-opensearch-datasource",
        "grafana-postgresql-datasource",
        "grafana-pyroscope-datasource",
        "grafana-testdata-datasource",
        "graphite",
        "influxdb",
        "jaeger",
        "loki",
        "mssql",
        "mysql",
        "opentsdb",
        "parca",
        "postgres",
        "stackdriver",
        "tempo",
        "testdata",
        "vertamedia-clickhouse-datasource",
        "victoriametrics-logs-datasource",
        "yesoreyeram-infinity-datasource",
        "zipkin",
        "__expr__",
    }
)
"""Types of data sources that are not Prometheus. Any other type could be compatible with it, so its queries count."""

_MIXED: Final = frozenset({"-- Mixed --", "mixed"})


class DataSources:
    """Data sources of one dashboard.

    Args:
        types: type of each data source that the dashboard names by an input or a variable.
        others: names and UIDs of data sources that the user says are not this server.
    """

    def __init__(self, types: Mapping[str, str], others: Set[str]) -> None:
        self._types = types
        self._others = others

    def is_other(self, source: Any) -> bool:
        """Returns whether a data source is certainly not this server. `source` is as the dashboard has it."""
        if isinstance(source, str):
            return source in self._others or source == "__expr__" or self._type_of(source) in _OTHER_TYPES
        if not isinstance(source, dict):
            return False
        names = [text for key in ("uid", "name") if isinstance(text := source.get(key), str)]
        if any(each in self._others for each in names):
            return True
        kind = source.get("type") or source.get("group")
        if isinstance(kind, str) and kind and not variable_name(kind):
            return kind in _OTHER_TYPES
        return any(self.is_other(each) for each in names)

    def certain(self, source: Any) -> Any:
        """Return the data source that a panel gives to all its queries; None if each query has its own, or may have."""
        if not source or self.is_other(source):
            return None
        names = [source] if isinstance(source, str) else [source.get(key) for key in ("uid", "name", "type")]
        return None if _MIXED & {each for each in names if isinstance(each, str)} else source

    def _type_of(self, text: str) -> str:
        return self._types.get(variable_name(text), "")


def is_other_type(kind: str) -> bool:
    """Returns whether a type of data source is certainly not Prometheus."""
    return kind in _OTHER_TYPES
