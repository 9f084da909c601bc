"""Errors of requests to a Prometheus server."""

from __future__ import annotations

from typing import Literal

Reason = Literal["refused", "unreachable", "untrusted", "timeout", "too-big", "not-prometheus"]


class PrometheusError(Exception):
    """A request got no usable answer.

    Attributes:
        status: HTTP status; 0 without an answer.
        message: what happened, with the address.
        reason: `refused`: the server answered with an error. `unreachable`: no connection. `untrusted`: its
            certificate, or no TLS. `timeout`: no complete answer before the deadline, or the server's own time limit
            for queries ended. `too-big`: the answer was
            longer than allowed. `not-prometheus`: the answer is not one of this API.
    """

    def __init__(self, status: int, message: str, reason: Reason = "refused") -> None:
        """Store the status, the message and the reason."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason: Reason = reason

    @property
    def not_offered(self) -> bool:
        """Whether the server has no such page, or a proxy keeps it closed. After other errors it may have one."""
        if self.reason == "refused":
            return self.status == 501 or (self.status // 100 == 4 and self.status not in (401, 408, 429))
        return self.reason == "not-prometheus"
