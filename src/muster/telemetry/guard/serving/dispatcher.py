"""Sends a request once its budget allows, or joins an equal one in flight."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from muster.telemetry.guard.budgets.budgets import Budgets, Grant
from muster.telemetry.guard.budgets.verdict import OverBudget
from muster.telemetry.guard.callers.caller import Caller
from muster.telemetry.guard.serving.failure import Failure
from muster.telemetry.guard.serving.flight import Flight, Reader
from muster.telemetry.guard.serving.flights import Flights
from muster.telemetry.guard.serving.upstream import Upstream, UpstreamRequest

_CANCELLED: Final = frozenset({"client_gone", "timeout", "too_large"})
"""Prometheus continues such requests for a while: it looks for the end of a client between series."""


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may be sent.

    Attributes:
        request: what is sent.
        upstream: sends it.
        caller: whose budget pays.
        cost: what it costs.
        shareable: it may join an equal request, and be joined.
        dry_run: never wait for a budget.
        open_when_overloaded: send it also if the guard has no room for it.
    """

    request: UpstreamRequest
    upstream: Upstream
    caller: Caller
    cost: float
    shareable: bool
    dry_run: bool
    open_when_overloaded: bool


class Dispatched(msgspec.Struct, frozen=True):
    """A request on its way.

    Attributes:
        reader: of the answer.
        shared: the answer is that of an earlier request, which pays.
        waited_s: in the queue of a budget.
        over: the refusal that was not enforced.
    """

    reader: Reader
    shared: bool = False
    waited_s: float = 0.0
    over: OverBudget | None = None


class Dispatcher:
    """Sends requests.

    Equal requests of one caller wait in the queue of its budget once. A request that waits joins an equal one that
    another caller's budget has paid for.

    Args:
        flights: the requests in flight.
        budgets: what callers may cost.
        after_cancel_s: how long a request that was cancelled still counts.
    """

    def __init__(self, flights: Flights, budgets: Budgets, after_cancel_s: float) -> None:
        self._flights = flights
        self._after_cancel_s = after_cancel_s
        self._budgets = budgets
        self._taking: dict[tuple[UpstreamRequest, str], asyncio.Future[OverBudget | None]] = {}

    async def dispatch(self, asked: Dispatch) -> Dispatched:
        """Send a request, or join an equal one.

        Raises:
            Failure: it does not fit in a budget.
        """
        if not asked.shareable:
            return self._start(asked, *self._allowed(asked, self._take_now(asked) or await self._take(asked)))
        key = (asked.request, asked.caller.name)
        while True:
            reader = self._flights.join(asked.request)
            if reader is not None:
                return Dispatched(reader, shared=True)
            first = self._taking.get(key)
            if first is None:
                found = self._take_now(asked)
                return self._start(asked, *self._allowed(asked, found)) if found else await self._first(asked, key)
            over = await asyncio.shield(first)
            if over is not None:
                raise over_budget(over)

    async def _first(self, asked: Dispatch, key: tuple[UpstreamRequest, str]) -> Dispatched:
        """Wait for the budget, or until an equal request is in flight."""
        turn = self._taking[key] = asyncio.get_running_loop().create_future()
        found: Grant | OverBudget | None = None
        try:
            found = await self._take_or_join(asked)
            if found is None:
                reader = self._flights.join(asked.request)
                if reader is not None:
                    return Dispatched(reader, shared=True)
                found = await self._take(asked)
            return self._start(asked, *self._allowed(asked, found))
        finally:
            del self._taking[key]
            turn.set_result(found if isinstance(found, OverBudget) else None)

    async def _take_or_join(self, asked: Dispatch) -> Grant | OverBudget | None:
        """Return what the budget says; None if an equal request is in flight before that."""
        taking = asyncio.create_task(self._take(asked))
        started = self._flights.started(asked.request)
        try:
            await asyncio.wait((taking, started), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            _give_back(taking)
            raise
        finally:
            self._flights.forget(asked.request, started)
        if taking.done():
            return taking.result()
        _give_back(taking)
        await asyncio.wait((taking,))
        return None

    def _take_now(self, asked: Dispatch) -> Grant | OverBudget | None:
        return self._budgets.take_now(asked.caller, asked.cost, dry_run=asked.dry_run)

    async def _take(self, asked: Dispatch) -> Grant | OverBudget:
        return await self._budgets.take(asked.caller, asked.cost, dry_run=asked.dry_run)

    def _allowed(self, asked: Dispatch, found: Grant | OverBudget) -> tuple[Grant, OverBudget | None]:
        """Return the grant, and the refusal that is not enforced. Raises Failure."""
        if not isinstance(found, OverBudget):
            return found, found.over
        if asked.open_when_overloaded and (found.whose == "all" or found.which == "queue"):
            return self._budgets.force(asked.caller, asked.cost), found
        raise over_budget(found)

    def _start(self, asked: Dispatch, grant: Grant, over: OverBudget | None) -> Dispatched:
        def ended(flight: Flight) -> None:
            outcome = flight.failure.outcome if flight.failure is not None else "answered"
            if outcome == "unreachable":
                grant.release(0.0)
            elif outcome in _CANCELLED:
                # Else a client that comes and goes could keep Prometheus busier than the budget allows.
                asyncio.get_running_loop().call_later(self._after_cancel_s, grant.release)
            else:
                grant.release()

        reader = self._flights.start(asked.request, asked.upstream, ended, shareable=asked.shareable)
        return Dispatched(reader, waited_s=grant.waited_s, over=over)


def _give_back(taking: asyncio.Task[Grant | OverBudget]) -> None:
    """End a wait for a budget. A grant that comes at the same moment is given back."""
    taking.cancel()
    taking.add_done_callback(_release)


def _release(taking: asyncio.Task[Grant | OverBudget]) -> None:
    if not taking.cancelled() and not isinstance(found := taking.result(), OverBudget):
        found.release(0.0)


def over_budget(over: OverBudget) -> Failure:
    """Return the refusal for people and programs."""
    whose = {"caller": "this caller", "group": "the caller's group", "all": "all callers"}[over.whose]
    if over.which == "queue":
        message = f"too many requests of {whose} wait for their budget ({over.used:g} of {over.limit:g})"
    else:
        message = (
            f"the budget of {whose} is used up: {over.which} is {over.limit:g}, {over.used:g} is used, "
            f"and this request costs {over.cost:g}"
        )
    return Failure(
        "over_budget",
        429,
        f"{message}; try again later, or ask for less",
        retry_after_s=over.retry_after_s,
        details={
            "whose": over.whose,
            "which": over.which,
            "cost": over.cost,
            "limit": over.limit,
            "used": over.used,
        },
    )
