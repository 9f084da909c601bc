"""Waits for budgets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from types import TracebackType

from muster.telemetry.guard.budgets.account import Account
from muster.telemetry.guard.budgets.ledger import BudgetLimits, Ledger, Ticket
from muster.telemetry.guard.budgets.verdict import OverBudget
from muster.telemetry.guard.callers.caller import Caller
from muster.telemetry.guard.config import GuardConfig


class Grant:
    """The right to send one request. It is a context manager that releases itself.

    Attributes:
        waited_s: how long the request waited.
        over: in a dry run, the refusal that is due; None otherwise.
    """

    __slots__ = ("_budgets", "_ticket", "over", "waited_s")

    def __init__(self, budgets: Budgets, ticket: Ticket, waited_s: float = 0.0, over: OverBudget | None = None) -> None:
        self._budgets = budgets
        self._ticket = ticket
        self.waited_s = waited_s
        self.over = over

    def release(self, real_cost: float | None = None) -> None:
        """End the request. A second call has no effect.

        Args:
            real_cost: its cost as it turned out, which corrects the cost per minute; None if it is not known.
        """
        self._budgets.release(self._ticket, real_cost)

    def __enter__(self) -> Grant:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Budgets:
    """The budgets of all callers. Create and use it on one event loop, whose clock it uses.

    Args:
        config: groups and their budgets.

    Attributes:
        refused: how many requests were refused, by group, whose budget and which limit; in a dry run, those that
            would have been.
    """

    def __init__(self, config: GuardConfig) -> None:
        self._loop = asyncio.get_running_loop()
        self._wait_s = config.queue.wait_s
        self._ledger = Ledger(_limits(config))
        self._futures: dict[Ticket, asyncio.Future[OverBudget | None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.refused: Counter[tuple[str, str, str]] = Counter()

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self._ledger.waiting_requests

    @property
    def callers(self) -> int:
        """How many callers have an account."""
        return len(self._ledger)

    @property
    def all(self) -> Account:
        """What all callers together use."""
        return self._ledger.all

    def used(self) -> Mapping[str, Account]:
        """Return what each group uses now."""
        now = self._loop.time()
        for account in self._ledger.groups.values():
            account.forget(now)
        return self._ledger.groups

    def replace(self, config: GuardConfig) -> None:
        """Use other limits. Requests that run are still counted; those that wait and never fit now are refused."""
        self._wait_s = config.queue.wait_s
        for ticket, refusal in self._ledger.replace(_limits(config), self._loop.time()):
            self._futures.pop(ticket).set_result(refusal)
        self._serve()

    async def take(self, caller: Caller, cost: float, *, dry_run: bool = False) -> Grant | OverBudget:
        """Wait until the request fits in the budgets of its caller, its group and in all.

        If the client goes away, cancel this call: its place in the queue is then free. Use the grant in
        `with grant: ...`, or call its `release` in any case.

        Args:
            caller: who asks.
            cost: estimate, in units of `Price.cost`.
            dry_run: never wait and never refuse; the grant says what is due.
        """
        asked_at = self._loop.time()
        if dry_run:
            return self.force(caller, cost)
        ticket = self._ledger.ask(caller.name, caller.group, cost, asked_at)
        if isinstance(ticket, Ticket):
            refusal = await self._granted(ticket)
            if refusal is None:
                return Grant(self, ticket, self._loop.time() - asked_at)
        else:
            refusal = ticket
        self._count(caller, refusal)
        return refusal

    def take_now(self, caller: Caller, cost: float, *, dry_run: bool = False) -> Grant | OverBudget | None:
        """Return what `take` would return without waiting; None if it would wait. The arguments are those of `take`."""
        if dry_run:
            return self.force(caller, cost)
        if self._futures:
            return None  # requests that wait come first
        now = self._loop.time()
        fitting = self._ledger.begin_now(caller.name, caller.group, cost, now)
        if fitting is not None:
            return Grant(self, fitting)
        ticket = self._ledger.ask(caller.name, caller.group, cost, now)
        if isinstance(ticket, OverBudget):
            self._count(caller, ticket)
            return ticket
        self._ledger.give_up(ticket, now)
        return None

    def force(self, caller: Caller, cost: float) -> Grant:
        """Count a request and grant it in any case, for a dry run and for a guard that fails open."""
        ticket, over = self._ledger.force(caller.name, caller.group, cost, self._loop.time())
        if over is not None:
            self._count(caller, over)
        return Grant(self, ticket, over=over)

    def release(self, ticket: Ticket, real_cost: float | None) -> None:
        """End the request of a ticket; see `Grant.release`."""
        self._ledger.release(ticket, real_cost, self._loop.time())
        self._serve()

    async def _granted(self, ticket: Ticket) -> OverBudget | None:
        """Wait for a ticket in the queue; returns the refusal if it was not granted in time."""
        future = self._loop.create_future()
        self._futures[ticket] = future
        self._serve()
        try:
            if self._wait_s <= 0 and not future.done():
                return self._ledger.give_up(ticket, self._loop.time())
            async with asyncio.timeout(self._wait_s):
                refusal: OverBudget | None = await future
        except TimeoutError:
            if ticket.began_at is None:
                return self._ledger.give_up(ticket, self._loop.time())
            return None  # it was granted in the last moment
        except BaseException:
            self._ledger.give_up(ticket, self._loop.time())
            self.release(ticket, 0.0)
            raise
        finally:
            self._futures.pop(ticket, None)
            self._serve()
        return refusal

    def _serve(self) -> None:
        """Grant what fits, and set the timer for the next time at which a minute has room."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._ledger.waiting_requests:
            return
        granted, again_at = self._ledger.serve(self._loop.time())
        for ticket in granted:
            future = self._futures.pop(ticket)
            if not future.done():
                future.set_result(None)
        if again_at is not None:
            self._timer = self._loop.call_at(again_at, self._serve)

    def _count(self, caller: Caller, refusal: OverBudget) -> None:
        self.refused[caller.group, refusal.whose, refusal.which] += 1


def _limits(config: GuardConfig) -> BudgetLimits:
    return BudgetLimits(
        in_all=config.budget_in_all,
        each_caller=lambda group: config.group(group).caller_budget,
        together=lambda group: config.group(group).together,
        queue=config.queue,
    )
