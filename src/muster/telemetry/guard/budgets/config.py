"""Budgets in the guard's configuration: of each caller, of a group together, and in all."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Annotated, Final

import msgspec

from muster.api.configschema import Positive, schema

WAIT_MAX_S: Final = 300.0
WAITING_MAX: Final = 100_000

Cost = Annotated[float, schema(exclusiveMinimum=0)]


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Limits of cost. Cost is counted as `Price.cost` does; docs/guard.md explains the unit.

    Attributes:
        concurrent_cost: sum of the costs of the requests that run at once; null: the default, see docs/guard.md.
        cost_per_minute: sum of the costs of the requests that begin within a minute; null: without a limit.
    """

    concurrent_cost: Cost | None = None
    cost_per_minute: Cost | None = None


class QueueConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How requests wait for a budget.

    Attributes:
        wait_s: longest wait; then the request is refused with 429. 0: no request waits.
        per_caller: requests of one caller that may wait.
        in_all: requests that may wait.
    """

    wait_s: Annotated[float, schema(minimum=0, maximum=WAIT_MAX_S)] = msgspec.field(default=10.0, name="waitSeconds")
    per_caller: Positive = 50
    in_all: Positive = 1000


def problems(budget: Budget) -> Iterator[tuple[str, str]]:
    """Yield (path, what to change) of limits that are not possible."""
    for path, limit in (("$.concurrentCost", budget.concurrent_cost), ("$.costPerMinute", budget.cost_per_minute)):
        if limit is not None and not 0 < limit < inf:
            yield path, f"{limit:g} is not possible; write a number above 0, or leave it out"


def queue_problems(queue: QueueConfig) -> Iterator[tuple[str, str]]:
    """Yield (path, what to change) of values that are not possible."""
    if not 0 <= queue.wait_s <= WAIT_MAX_S:
        yield "$.waitSeconds", f"{queue.wait_s:g} is not possible; write 0 to {WAIT_MAX_S:g}"
    for path, number in (("$.perCaller", queue.per_caller), ("$.inAll", queue.in_all)):
        if not 1 <= number <= WAITING_MAX:
            yield path, f"{number} is not possible; write 1 to {WAITING_MAX}"
