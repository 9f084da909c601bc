"""What is known of a request while it is served, for metrics and logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from muster.telemetry.guard.callers.caller import Caller
from muster.telemetry.guard.dearest.asked import Asked
from muster.telemetry.guard.dearest.dearest import SENT
from muster.telemetry.guard.dearest.source import source_of
from muster.telemetry.guard.pricing.price import Price
from muster.telemetry.guard.serving.assessment import Assessment
from muster.telemetry.guard.serving.failure import Outcome
from muster.telemetry.guard.serving.revocation import Underway

UNKNOWN: Final = "unknown"
REFUSALS: Final = ("refused", "no_price", "over_budget")
"""Outcomes of requests that were refused for their cost."""


@dataclass(slots=True)
class Record:
    """A request while it is served.

    Attributes:
        started_s: on the monotonic clock.
        headers: of the request.
        caller: who asks, once that is known.
        assessed: what was found about it; None until then.
        outcome: what became of it.
        status: of HTTP; 0 if none was sent.
        reason: which limit it exceeds, also if that is not enforced.
        bytes: of the body of the answer that were sent.
        shared: the answer is that of an equal request in flight.
        added_s: time until it was sent to Prometheus, without waiting for a budget.
        waited_s: in the queue of a budget.
        underway: the same request, for its revocation.
    """

    started_s: float
    headers: Mapping[str, str]
    caller: Caller | None = None
    assessed: Assessment | None = None
    outcome: Outcome = "error"
    status: int = 0
    reason: str = ""
    bytes: int = 0
    shared: bool = False
    added_s: float | None = None
    waited_s: float | None = None
    underway: Underway | None = None

    @property
    def endpoint(self) -> str:
        """Kind of the operation, for metrics."""
        return self.assessed.endpoint if self.assessed is not None else UNKNOWN

    def asked(self, duration_s: float) -> Asked | None:
        """Return what the log of the dearest queries keeps; None for requests without an operation."""
        if self.caller is None or self.assessed is None or self.assessed.operation is None:
            return None
        operation, price = self.assessed.operation, self.assessed.price or Price()
        outcome = SENT if self.status and self.outcome not in REFUSALS else self.reason or self.outcome
        return Asked(
            caller=self.caller,
            kind=operation.kind,
            text=operation.expression.text if operation.expression is not None else _selectors(operation.parameters),
            range_s=_range_s(operation.start_s, operation.end_s),
            step_s=operation.step_s,
            cost=0.0 if self.shared else self.assessed.cost,
            source=source_of(self.headers),
            outcome="gone" if self.outcome == "client_gone" else outcome,
            duration_s=duration_s if outcome == SENT else 0.0,
            answer_bytes=self.bytes,
            series=price.series,
            samples=price.samples,
            exceeds=self.reason if outcome == SENT else "",
        )


def _selectors(parameters: tuple[tuple[str, str], ...]) -> str:
    return " ".join(value for name, value in parameters if name == "match[]")


def _range_s(start_s: float | None, end_s: float | None) -> float:
    return max(0.0, end_s - start_s) if start_s is not None and end_s is not None else 0.0
