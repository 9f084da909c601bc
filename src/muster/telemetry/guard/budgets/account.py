"""What one caller, one group or all callers use of a budget."""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import Final

from muster.telemetry.guard.budgets.config import Budget
from muster.telemetry.guard.budgets.verdict import OverBudget, Whose

WINDOW_S: Final = 60


class Account:
    """Costs of the requests that run, and of those that began within the last minute.

    The minute is a sliding window of whole seconds: no 60 seconds exceed the limit by estimates. Real costs that are
    higher than estimates can exceed it; then the account is blocked until they leave the window.

    Args:
        whose: for refusals.
        budget: the limits.
    """

    __slots__ = ("_seconds", "budget", "recent", "running", "running_requests", "whose")

    def __init__(self, whose: Whose, budget: Budget) -> None:
        self.whose = whose
        self.budget = budget
        self.running = 0
        self.running_requests = 0
        self.recent = 0
        self._seconds: deque[list[int]] = deque()  # [second, cost], ascending

    def refusal(self, cost: int, now: float) -> OverBudget | None:
        """Return why a request of this cost does not fit now, None if it fits."""
        self.forget(now)
        limit = self.budget.concurrent_cost
        if limit is not None and self.running + cost > limit:
            retry_s = None if cost > limit else 1
            return OverBudget(self.whose, "concurrentCost", cost, limit, self.running, retry_s)
        limit = self.budget.cost_per_minute
        if limit is not None and self.recent + cost > limit:
            fits_at = self.fits_at(cost, now)
            retry_s = None if fits_at is None else max(1, ceil(fits_at - now))
            return OverBudget(self.whose, "costPerMinute", cost, limit, self.recent, retry_s)
        return None

    def fits_at(self, cost: int, now: float) -> float | None:
        """Return the first time at which the minute has room, if nothing else begins; None if it never has."""
        limit = self.budget.cost_per_minute
        if limit is None:
            return now
        if cost > limit:
            return None
        self.forget(now)
        left = self.recent
        if left + cost <= limit:
            return now
        for second, spent in self._seconds:
            left -= spent
            if left + cost <= limit:
                return second + WINDOW_S + 1.0
        raise AssertionError("a cost within the limit fits into an empty minute")

    def begin(self, cost: int, now: float) -> None:
        """Count a request that begins."""
        self.running += cost
        self.running_requests += 1
        self._spend(cost, now)

    def end(self, cost: int, real_cost: int, began_at: float, now: float) -> None:
        """Stop counting a request that ends, and correct its cost in the minute.

        Args:
            cost: with which it began.
            real_cost: what it turned out to be.
            began_at: when it began.
            now: the time.
        """
        self.running_requests -= 1
        self.running -= cost
        if real_cost > cost:
            self._spend(real_cost - cost, now)
        else:
            self._return(cost - real_cost, began_at)

    def idle(self, now: float) -> bool:
        """Return whether the account can be forgotten."""
        self.forget(now)
        return not self.running_requests and not self._seconds

    def _spend(self, cost: int, now: float) -> None:
        second = int(now)
        if self._seconds and self._seconds[-1][0] >= second:
            self._seconds[-1][1] += cost
        else:
            self._seconds.append([second, cost])
        self.recent += cost

    def _return(self, cost: int, began_at: float) -> None:
        if not cost:
            return
        for entry in self._seconds:
            if entry[0] >= int(began_at):
                given = min(cost, entry[1])
                entry[1] -= given
                self.recent -= given
                return

    def forget(self, now: float) -> None:
        """Forget what began more than a minute ago. All other methods do it themselves."""
        while self._seconds and self._seconds[0][0] + WINDOW_S + 1 <= now:
            self.recent -= self._seconds.popleft()[1]
