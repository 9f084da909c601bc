"""What the guard found about a request, and what it sends for it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol

import msgspec

from muster.telemetry.guard.callers.caller import Caller
from muster.telemetry.guard.pricing.price import Price
from muster.telemetry.guard.query.operation import Operation


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may be sent, within the budgets.

    Attributes:
        endpoint: kind of the operation, for metrics.
        parameters: to send, in order.
        body: to send as it is; None sends the parameters of a POST as a form.
        asked: what the client asked, and its limits. Equal ones in flight are sent once. Without it, nothing is shared.
        operation: as it was parsed; None if it was not.
        price: of the operation; None without one.
        cost: for the budgets.
        timeout_s: for Prometheus.
        max_bytes: greatest answer; None for no limit.
        reason: why it would be refused, in a dry run.
        headers: for the client: what was changed.
    """

    endpoint: str
    parameters: tuple[tuple[str, str], ...]
    body: bytes | None = None
    asked: Hashable = None
    operation: Operation | None = None
    price: Price | None = None
    cost: float
    timeout_s: float
    max_bytes: int | None
    reason: str = ""
    headers: Mapping[str, str] = {}


class Assess(Protocol):
    """Prices a request and decides about it."""

    async def __call__(
        self,
        method: str,
        path: str,
        parameters: tuple[tuple[str, str], ...],
        content_type: str,
        body: bytes,
        caller: Caller,
    ) -> Assessment:
        """Return what may be sent.

        Raises:
            Failure: the request is not valid, its path is denied, or Prometheus is away.
            Refusal: the request is too dear, or has no price.
        """
        ...
