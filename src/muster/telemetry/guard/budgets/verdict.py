"""Refusals for want of budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Whose = Literal["caller", "group", "all"]
Which = Literal["concurrentCost", "costPerMinute", "queue"]


@dataclass(frozen=True, slots=True)
class OverBudget:
    """A refusal.

    Attributes:
        whose: whose budget is used up.
        which: the limit.
        cost: cost of the request.
        limit: value of the limit; for `queue`, how many requests may wait.
        used: how much of it is used.
        retry_after_s: seconds after which the request may succeed; None if it costs more than the whole budget.
    """

    whose: Whose
    which: Which
    cost: float
    limit: float
    used: float
    retry_after_s: int | None
