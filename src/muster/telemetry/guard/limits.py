"""Limits of one request."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from muster.api.configschema import Positive, Seconds, schema
from muster.telemetry.guard.pricing.price import cost_of

_DAY_S = 86400.0


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What one request of a group may ask for. The defaults suit dashboards.

    Attributes:
        max_series: series that its selectors match.
        max_samples: samples that the server reads; overlapping windows of `rate` and the like count again.
        max_steps: points per series of the answer.
        max_range_s: seconds between start and end, with the ranges of the selectors.
        max_answer_bytes: bytes of the answer; a longer answer is cut.
        max_memory_bytes: that the server allocates for it, estimated.
        max_label_values: values, names or series that one metadata request returns.
        timeout_s: `timeout` of a query, and deadline of a request.
        default_range_s: seconds of series and labels requests that name no start; at most `max_range_s` is added.
    """

    max_series: Positive = 100_000
    max_samples: Positive = 200_000_000
    max_steps: Positive = 11_000
    max_range_s: Seconds = msgspec.field(default=32 * _DAY_S, name="maxRangeSeconds")
    max_answer_bytes: Positive = 100 << 20
    max_memory_bytes: Positive = 1 << 30
    max_label_values: Positive = 10_000
    timeout_s: Annotated[float, schema(exclusiveMinimum=0, maximum=3600)] = msgspec.field(
        default=60.0, name="timeoutSeconds"
    )
    default_range_s: Seconds = msgspec.field(default=6 * 3600.0, name="defaultRangeSeconds")

    @property
    def added_range_s(self) -> float:
        """Range that the guard adds where a request names no start: never one that it would refuse itself."""
        return min(self.default_range_s, self.max_range_s)

    @property
    def greatest_cost(self) -> float:
        """Cost of the dearest request that these limits allow, in units of `Price.cost`."""
        return math.ceil(cost_of(self.max_samples, self.max_series, self.max_memory_bytes))
