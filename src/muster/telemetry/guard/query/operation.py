"""What one request to a Prometheus API asks."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from muster.telemetry.promql.expression import Expression
from muster.telemetry.promql.selector import Selector

Kind = Literal[
    "query", "query_range", "exemplars", "series", "labels", "label_values", "federate", "remote_read", "metadata",
    "buildinfo", "rules", "alerts", "targets", "format_query",
]  # fmt: skip
TIMED: Final = frozenset[Kind]({"query", "query_range", "exemplars", "series", "labels", "label_values"})
"""Endpoints that have a time or a range."""
LOOKBACK_S: Final = 300.0
"""How far an instant selector looks back: the default of `--query.lookback-delta`."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A request, parsed.

    Attributes:
        kind: the endpoint.
        method: GET or POST.
        path: below the prefix of the API, such as `/api/v1/query`.
        parameters: those that the endpoint knows, in the order sent. `query` and so on occur once.
        ignored: names of parameters that the endpoint does not know. They are not sent on.
        body: bytes of a remote read, as sent; None for other kinds.
        expression: of queries.
        selectors: of the expression, of `match[]` or of the remote read. Empty matches everything
            for labels, label_values and metadata. For targets: the series that each of them has.
        start_s: Unix time of the start, or None if the request has none. For an instant query its time.
        end_s: Unix time of the end, or None.
        step_s: seconds between the points of a range query, else 0.
        limit: greatest number of results that the request asks for, or None.
        timeout_s: of the request, or None.
        lookback_s: how far instant selectors look back.
        label: whose values are asked for, else "".
        now_s: Unix time at which the request was parsed.
    """

    kind: Kind
    method: str
    path: str
    now_s: float
    parameters: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    body: bytes | None = None
    expression: Expression | None = None
    selectors: tuple[Selector, ...] = ()
    start_s: float | None = None
    end_s: float | None = None
    step_s: float = 0.0
    limit: int | None = None
    timeout_s: float | None = None
    lookback_s: float = LOOKBACK_S
    label: str = ""
