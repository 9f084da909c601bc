"""Decides which requests may begin: pure state without a loop, a clock or I/O.

Callers share fairly by cost: the next request is from the caller that had the least lately (weighted fair queueing with
equal weights). A request that waits for a shared budget blocks later requests from that budget, so that small requests
cannot overtake a large one for ever. A request that waits for its caller's own budget blocks nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from math import ceil, inf, isfinite
from typing import Final

from muster.telemetry.guard.budgets.account import Account
from muster.telemetry.guard.budgets.config import Budget, QueueConfig
from muster.telemetry.guard.budgets.verdict import OverBudget, Whose

CALLERS_MAX: Final = 20_000
"""Accounts of callers that are kept. Beyond it, those without running requests are forgotten."""
COST_MAX: Final = 10**18
"""A greater cost counts as this one."""


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """All budgets.

    Attributes:
        in_all: of all callers.
        each_caller: returns the budget of one caller of a group.
        together: returns the budget of a group.
        queue: how requests wait.
    """

    in_all: Budget
    each_caller: Callable[[str], Budget]
    together: Callable[[str], Budget]
    queue: QueueConfig


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that waits, runs or has ended.

    Attributes:
        caller: name of its caller.
        cost: with which it is counted.
        order: number of its arrival.
        accounts: of its caller, its group and all callers.
        began_at: when it began; None while it waits.
        ended: whether it no longer waits or runs.
    """

    caller: str
    cost: int
    order: int
    accounts: tuple[Account, Account, Account] = field(repr=False)
    began_at: float | None = None
    ended: bool = False

    def refusal(self, now: float) -> OverBudget | None:
        """Return why it does not fit now: the first account without room."""
        for account in self.accounts:
            refusal = account.refusal(self.cost, now)
            if refusal is not None:
                return refusal
        return None

    def fits_at(self, now: float) -> float | None:
        """Return the first time at which all minutes have room; None if one never has."""
        times = [account.fits_at(self.cost, now) for account in self.accounts]
        return None if None in times else max(each for each in times if each is not None)


@dataclass(slots=True, eq=False)
class _Caller:
    """A caller that has used something lately.

    Attributes:
        account: what it uses.
        group: its group.
        waiting: its requests that wait, oldest first.
        served: virtual time at which its next request is due: it grows with each request by the cost.
    """

    account: Account
    group: str
    waiting: deque[Ticket] = field(default_factory=deque)
    served: float = 0.0


class Ledger:
    """The state of all budgets.

    Args:
        limits: the budgets.

    Attributes:
        all: what all callers use.
        groups: what each group uses.
        waiting_requests: how many requests wait.
    """

    def __init__(self, limits: BudgetLimits) -> None:
        self._limits = limits
        self.all = Account("all", limits.in_all)
        self.groups: dict[str, Account] = {}
        self.waiting_requests = 0
        self._callers: dict[str, _Caller] = {}
        self._waiting: dict[str, _Caller] = {}
        self._virtual = 0.0
        self._order = 0

    def __len__(self) -> int:
        """Return how many callers have an account."""
        return len(self._callers)

    def replace(self, limits: BudgetLimits, now: float) -> list[tuple[Ticket, OverBudget]]:
        """Use other limits; returns requests that waited and never fit now. Call `serve` next."""
        self._limits = limits
        self.all.budget = limits.in_all
        for group, account in self.groups.items():
            account.budget = limits.together(group)
        for own in self._callers.values():
            own.account.budget = limits.each_caller(own.group)
        hopeless: list[tuple[Ticket, OverBudget]] = []
        for own in list(self._waiting.values()):
            for ticket in list(own.waiting):
                refusal = self._hopeless(ticket, now)
                if refusal is not None:
                    self._leave(ticket)
                    ticket.ended = True
                    hopeless.append((ticket, refusal))
        return hopeless

    def ask(self, caller: str, group: str, cost: float, now: float) -> Ticket | OverBudget:
        """Enter a request in the queue; then call `serve`, which may grant it at once.

        Returns:
            the ticket, or the refusal if the request cannot be granted before it would time out.
        """
        ticket = self._ticket(caller, group, cost, now)
        refusal = self._hopeless(ticket, now)
        if refusal is not None:
            return refusal
        own, queue = self._callers[caller], self._limits.queue
        if len(own.waiting) >= queue.per_caller:
            return self._full(ticket, "caller", len(own.waiting))
        if self.waiting_requests >= queue.in_all:
            return self._full(ticket, "all", self.waiting_requests)
        if not own.waiting:
            own.served = max(own.served, self._virtual)
        own.waiting.append(ticket)
        self._waiting[caller] = own
        self.waiting_requests += 1
        return ticket

    def begin_now(self, caller: str, group: str, cost: float, now: float) -> Ticket | None:
        """Begin a request that fits while no other waits; None if it does not fit, or others wait."""
        if self.waiting_requests:
            return None
        ticket = self._ticket(caller, group, cost, now)
        if ticket.refusal(now) is not None:
            return None
        own = self._callers[caller]
        own.served = max(own.served, self._virtual)
        self._begin(ticket, now)
        return ticket

    def force(self, caller: str, group: str, cost: float, now: float) -> tuple[Ticket, OverBudget | None]:
        """Begin a request in any case, for a dry run; also returns the refusal that is due."""
        ticket = self._ticket(caller, group, cost, now)
        refusal = ticket.refusal(now)
        own = self._callers[caller]
        own.served = max(own.served, self._virtual)
        self._begin(ticket, now)
        return ticket, refusal

    def serve(self, now: float) -> tuple[list[Ticket], float | None]:
        """Grant the requests that fit.

        Returns:
            the granted requests, and when to call again even if no request ends; None if time alone frees nothing.
        """
        granted: list[Ticket] = []
        blocked: set[Account] = set()
        again_at = inf
        turns = [(own.served, own.waiting[0].order, name) for name, own in self._waiting.items()]
        heapify(turns)
        while turns and self.all not in blocked:
            own = self._waiting[heappop(turns)[2]]
            ticket = own.waiting[0]
            short = next((each for each in ticket.accounts if each in blocked or each.refusal(ticket.cost, now)), None)
            if short is None:
                self._leave(ticket)
                self._begin(ticket, now)
                granted.append(ticket)
                if own.waiting:
                    heappush(turns, (own.served, own.waiting[0].order, ticket.caller))
                continue
            if short is not own.account:
                blocked.add(short)
            fits_at = ticket.fits_at(now)
            if fits_at is not None and fits_at > now:
                again_at = min(again_at, fits_at)
        return granted, None if again_at == inf else again_at

    def give_up(self, ticket: Ticket, now: float) -> OverBudget:
        """Take a request that waits out of the queue; returns the refusal if it waited too long."""
        refusal = ticket.refusal(now) or self._full(ticket, "all", self.waiting_requests)
        if not ticket.ended and ticket.began_at is None:
            self._leave(ticket)
            ticket.ended = True
        return refusal

    def release(self, ticket: Ticket, real_cost: float | None, now: float) -> None:
        """End a request that began. A second call has no effect. Call `serve` next."""
        if ticket.ended or ticket.began_at is None:
            return
        ticket.ended = True
        real_cost = ticket.cost if real_cost is None else _counted(real_cost)
        for account in ticket.accounts:
            account.end(ticket.cost, real_cost, ticket.began_at, now)

    def _ticket(self, caller: str, group: str, cost: float, now: float) -> Ticket:
        together = self.groups.get(group)
        if together is None:
            together = self.groups[group] = Account("group", self._limits.together(group))
        own = self._callers.get(caller)
        if own is None:
            self._make_room(now)
            own = self._callers[caller] = _Caller(Account("caller", self._limits.each_caller(group)), group)
        elif own.group != group:
            own.group, own.account.budget = group, self._limits.each_caller(group)
        self._order += 1
        return Ticket(caller, _counted(cost), self._order, (own.account, together, self.all))

    def _begin(self, ticket: Ticket, now: float) -> None:
        ticket.began_at = now
        for account in ticket.accounts:
            account.begin(ticket.cost, now)
        own = self._callers[ticket.caller]
        due_at, active = own.served, len(self._waiting) + (ticket.caller not in self._waiting)
        own.served = due_at + ticket.cost
        self._virtual = max(self._virtual + ticket.cost / active, due_at)

    def _leave(self, ticket: Ticket) -> None:
        """Take a request out of the queue."""
        own = self._waiting[ticket.caller]
        own.waiting.remove(ticket)
        if not own.waiting:
            del self._waiting[ticket.caller]
        self.waiting_requests -= 1

    def _hopeless(self, ticket: Ticket, now: float) -> OverBudget | None:
        """Return the refusal of a request that cannot begin before it would time out."""
        deadline = now + self._limits.queue.wait_s
        for account in ticket.accounts:
            refusal = account.refusal(ticket.cost, now)
            if refusal is None:
                continue
            fits_at = account.fits_at(ticket.cost, now)
            if refusal.retry_after_s is None or fits_at is None or fits_at > deadline:
                return refusal
        return None

    def _full(self, ticket: Ticket, whose: Whose, waiting: int) -> OverBudget:
        queue = self._limits.queue
        limit = queue.per_caller if whose == "caller" else queue.in_all
        return OverBudget(whose, "queue", ticket.cost, limit, waiting, max(1, ceil(queue.wait_s)))

    def _make_room(self, now: float) -> None:
        """Forget callers that use nothing, and if there are still too many, also what idle ones used."""
        if len(self._callers) < CALLERS_MAX:
            return
        idle = [name for name, own in self._callers.items() if not own.waiting and own.account.idle(now)]
        if len(idle) < CALLERS_MAX // 10:
            quiet = (
                name for name, own in self._callers.items() if not own.waiting and not own.account.running_requests
            )
            idle = list(islice(quiet, CALLERS_MAX // 10))
        for name in idle:
            del self._callers[name]


def _counted(cost: float) -> int:
    """Return a whole cost, so that sums are exact. An estimate that is not a number counts as the greatest cost."""
    return max(1, ceil(min(cost, COST_MAX))) if isfinite(cost) else COST_MAX
