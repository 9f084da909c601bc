"""Errors of a request, as they are answered to the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

Outcome = Literal[
    "answered",
    "bad_request",
    "unauthenticated",
    "forbidden",
    "denied_path",
    "refused",
    "over_budget",
    "no_price",
    "unreachable",
    "timeout",
    "broken",
    "too_large",
    "slow_client",
    "client_gone",
    "stopping",
    "error",
]
"""What became of a request. It labels metrics."""

_TYPES: Final[Mapping[int, str]] = {
    400: "bad_data",
    404: "not_found",
    405: "bad_data",
    413: "bad_data",
    415: "bad_data",
    422: "execution",
    429: "too_many_requests",
    500: "internal",
    502: "unavailable",
    503: "unavailable",
    504: "timeout",
}


class Failure(Exception):
    """A request that gets no answer of Prometheus.

    Attributes:
        outcome: for metrics.
        status: of HTTP.
        message: for people.
        reason: for programs; the outcome, unless the failure has one of its own.
        retry_after_s: when to try again.
        details: typed fields for programs: price, limit and a cheaper form.
        headers: further ones, such as Allow.
    """

    def __init__(
        self,
        outcome: Outcome,
        status: int,
        message: str,
        *,
        retry_after_s: float | None = None,
        reason: str = "",
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s
        self.reason = reason or outcome
        self.details = details or {}
        self.headers = headers or {}

    def body(self) -> bytes:
        """The JSON of an error, in the form of Prometheus' API, so that Grafana shows the message.

        https://prometheus.io/docs/prometheus/latest/querying/api/#format-overview
        """
        error = {
            "status": "error",
            "errorType": _TYPES.get(self.status, "execution"),
            "error": self.message,
            "guard": {"reason": self.reason, **self.details},
        }
        return msgspec.json.encode(error) + b"\n"
