"""A known caller of the guard."""

from __future__ import annotations

from typing import Literal

import msgspec

NotIdentifiedReason = Literal[
    "no_credentials", "bad_credentials", "unknown_user", "forged_header", "repeated_header", "long_header",
    "other_tenant", "too_many_bad_tokens", "no_review",
]  # fmt: skip
How = Literal["token", "certificate", "header", "anonymous"]


class Caller(msgspec.Struct, frozen=True):
    """Who asks, and what follows from it.

    Attributes:
        name: identifies the caller in budgets and in the log: `grafana`, or `grafana/alice` for a user in a header.
        how: how the caller is known.
        group: name of the group in the configuration, which gives limits and budgets.
        label: value of the label `caller` of metrics. It is a name in the configuration, never one in a request.
        tenant: value of X-Scope-OrgID for the upstream; "" sends none. The caller cannot choose it.
        headers: headers to add to the request for the upstream: the tenant, and the caller's own Authorization if
            `upstream.passAuthorization` is set. All other credentials of the caller stay here.
        credentials_key: digest of `headers`. Requests with unequal keys must not share an answer.
    """

    name: str
    how: How
    group: str
    label: str
    tenant: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    credentials_key: bytes = b""

    def __repr__(self) -> str:
        """Leave out what may be secret."""
        return f"Caller({self.name!r}, {self.how!r}, {self.group!r}, {self.label!r}, {self.tenant!r})"


class Peer(msgspec.Struct, frozen=True):
    """The other end of a connection.

    Attributes:
        address: its IP address, from the socket. X-Forwarded-For is not used.
        certificate: its certificate in DER form, whose key the TLS layer has proven; None without one.
    """

    address: str
    certificate: bytes | None = None

    def __repr__(self) -> str:
        """Leave out the certificate, which is long."""
        return f"Peer({self.address!r})"


class NotIdentified(Exception):
    """The request has no caller that the guard accepts.

    Attributes:
        status: HTTP status of the answer: 401, 403, 429, or 503 if the API server did not review a token.
        reason: a value for metrics.
        retry_after_s: seconds for Retry-After; None without one.
    """

    def __init__(
        self, status: int, reason: NotIdentifiedReason, message: str, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s
