"""The endpoints that the guard can price: paths, methods and parameters.

Source: https://prometheus.io/docs/prometheus/latest/querying/api/. Thanos, Mimir and VictoriaMetrics add parameters;
those that do not make a request dearer are sent on.
"""

from __future__ import annotations

from typing import Final

import msgspec

from muster.telemetry.guard.query.operation import Kind

REPEATED: Final = frozenset(
    {
        "match[]",
        "rule_name[]",
        "rule_group[]",
        "file[]",
        "storeMatch[]",
        "replicaLabels[]",
        "extra_label",
        "extra_filters[]",
    }
)
"""Parameters that may occur more than once."""
_OTHERS: Final = frozenset(
    {"dedup", "partial_response", "max_source_resolution", "storeMatch[]", "replicaLabels[]"}
    | {"extra_label", "extra_filters[]", "nocache"}
)
"""Parameters of Thanos and VictoriaMetrics that choose replicas, resolutions, or fewer series."""


class Endpoint(msgspec.Struct, frozen=True):
    """An endpoint.

    Attributes:
        kind: of its operations.
        parameters: that it knows.
        methods: that it accepts.
    """

    kind: Kind
    parameters: frozenset[str]
    methods: frozenset[str] = frozenset({"GET", "POST"})


_GET: Final = frozenset({"GET"})
_POST: Final = frozenset({"POST"})
_SERIES: Final = frozenset({"match[]", "start", "end", "limit"}) | _OTHERS
_QUERY: Final = frozenset({"query", "timeout", "limit", "stats", "lookback_delta"}) | _OTHERS

ENDPOINTS: Final = {
    "/api/v1/query": Endpoint("query", _QUERY | {"time"}),
    "/api/v1/query_range": Endpoint("query_range", _QUERY | {"start", "end", "step"}),
    "/api/v1/query_exemplars": Endpoint("exemplars", frozenset({"query", "start", "end"})),
    "/api/v1/series": Endpoint("series", _SERIES),
    "/api/v1/labels": Endpoint("labels", _SERIES),
    "/api/v1/metadata": Endpoint("metadata", frozenset({"limit", "limit_per_metric", "metric"}), _GET),
    "/federate": Endpoint("federate", frozenset({"match[]"}), _GET),
    "/api/v1/read": Endpoint("remote_read", frozenset(), _POST),
    "/api/v1/status/buildinfo": Endpoint("buildinfo", frozenset(), _GET),
    "/api/v1/rules": Endpoint(
        "rules",
        frozenset({"type", "rule_name[]", "rule_group[]", "file[]", "exclude_alerts", "match[]", "group_limit",
                   "group_next_token"}),
        _GET,
    ),
    "/api/v1/alerts": Endpoint("alerts", frozenset(), _GET),
    "/api/v1/targets": Endpoint("targets", frozenset({"state", "scrapePool"}), _GET),
    "/api/v1/format_query": Endpoint("format_query", frozenset({"query"})),
}  # fmt: skip
LABEL_VALUES: Final = Endpoint("label_values", _SERIES, _GET)
