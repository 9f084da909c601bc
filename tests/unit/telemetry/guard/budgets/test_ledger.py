"""Issue 17 A2 and A3: budgets are never exceeded, are fair, and leak nothing."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.telemetry.guard.budgets.config import Budget, QueueConfig
from muster.telemetry.guard.budgets.ledger import CALLERS_MAX, BudgetLimits, Ledger, Ticket
from muster.telemetry.guard.budgets.verdict import OverBudget

NONE = Budget()


def limits(
    in_all: Budget = NONE,
    each: Budget = NONE,
    together: Budget = NONE,
    wait_s: float = 30.0,
    per_caller: int = 50,
    waiting: int = 1000,
) -> BudgetLimits:
    queue = QueueConfig(wait_s=wait_s, per_caller=per_caller, in_all=waiting)
    return BudgetLimits(in_all=in_all, each_caller=lambda _: each, together=lambda _: together, queue=queue)


def enter(ledger: Ledger, caller: str, cost: float, now: float = 0.0, group: str = "g") -> Ticket:
    ticket = ledger.ask(caller, group, cost, now)
    assert isinstance(ticket, Ticket), ticket
    return ticket


def begun(ledger: Ledger, now: float = 0.0) -> list[tuple[str, int]]:
    return [(ticket.caller, ticket.cost) for ticket in ledger.serve(now)[0]]


class Model:
    """Random callers that ask, finish, give up and vanish, on a clock that advances."""

    def __init__(self, seed: int, made: BudgetLimits, corrected: bool = True) -> None:
        self.corrected = corrected
        self.rng, self.limits, self.ledger = random.Random(seed), made, Ledger(made)
        self.waiting: list[tuple[Ticket, float]] = []
        self.running: list[Ticket] = []
        self.started: list[tuple[float, str, str, int]] = []
        self.now = 0.0

    def step(self) -> None:
        self.now += self.rng.choice([0, 0.1, 1, 7.5])
        action = self.rng.random()
        if action < 0.5:
            caller = self.rng.choice("abcdef")
            cost = self.rng.choice([1, 3, 10, 40, 99])
            asked = self.ledger.ask(caller, "even" if caller in "bdf" else "odd", cost, self.now)
            if isinstance(asked, Ticket):
                self.waiting.append((asked, self.now + self.limits.queue.wait_s))
        elif action < 0.8 and self.running:
            ended = self.running.pop(self.rng.randrange(len(self.running)))
            real = self.rng.choice([ended.cost, ended.cost / 2, 1.5 * ended.cost]) if self.corrected else None
            self.ledger.release(ended, real, self.now)
            self.ledger.release(ended, None, self.now)
        elif self.waiting:
            ticket, _ = self.waiting.pop(self.rng.randrange(len(self.waiting)))
            self.ledger.give_up(ticket, self.now)
        for ticket, deadline in [each for each in self.waiting if each[1] <= self.now]:
            self.ledger.give_up(ticket, self.now)
            self.waiting.remove((ticket, deadline))
        self.serve()

    def serve(self) -> None:
        for ticket in self.ledger.serve(self.now)[0]:
            self.waiting = [each for each in self.waiting if each[0] is not ticket]
            self.running.append(ticket)
            group = "even" if ticket.caller in "bdf" else "odd"
            self.started.append((self.now, ticket.caller, group, ticket.cost))


@given(seed=st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_no_limit_is_ever_exceeded_and_nothing_leaks(seed: int) -> None:
    made = limits(Budget(150, 400), Budget(60, 150), Budget(100, 300), wait_s=20)
    model = Model(seed, made)
    for _ in range(150):
        model.step()
        by_caller: dict[str, int] = defaultdict(int)
        by_group: dict[str, int] = defaultdict(int)
        for ticket in model.running:
            by_caller[ticket.caller] += ticket.cost
            by_group["even" if ticket.caller in "bdf" else "odd"] += ticket.cost
        assert sum(by_caller.values()) <= 150
        assert max(by_group.values(), default=0) <= 100
        assert max(by_caller.values(), default=0) <= 60
        assert model.ledger.all.running == sum(by_caller.values())
    for ticket, _ in model.waiting:
        model.ledger.give_up(ticket, model.now)
    for ticket in model.running:
        model.ledger.release(ticket, None, model.now)
    model.now += 120
    assert model.ledger.serve(model.now) == ([], None)
    assert model.ledger.waiting_requests == 0
    accounts = (model.ledger.all, *model.ledger.groups.values())
    assert all(account.idle(model.now) and account.running == account.recent == 0 for account in accounts)


@given(seed=st.integers(0, 10**9))
@settings(max_examples=30, deadline=None)
def test_no_sixty_seconds_cost_more_than_the_minute_allows(seed: int) -> None:
    model = Model(seed, limits(Budget(None, 400), Budget(None, 150), Budget(None, 300), wait_s=20), corrected=False)
    for _ in range(200):
        model.step()
    for since, _, _, _ in model.started:
        window = [each for each in model.started if since <= each[0] < since + 60]
        assert sum(cost for _, _, _, cost in window) <= 400
        for group in ("odd", "even"):
            assert sum(cost for _, _, of, cost in window if of == group) <= 300
        for caller in "abcdef":
            assert sum(cost for _, by, _, cost in window if by == caller) <= 150


def test_large_request_is_not_overtaken_for_ever() -> None:
    """Small requests of ever new callers keep the shared budget busy; the large one still begins."""
    ledger = Ledger(limits(Budget(100)))
    running = [enter(ledger, f"small-{n}", 10) for n in range(10)]
    assert len(begun(ledger)) == 10
    large = enter(ledger, "large", 90)
    for n in range(10, 100):
        enter(ledger, f"small-{n}", 10)
        ledger.release(running.pop(0), None, 0.0)
        running += ledger.serve(0.0)[0]
        if large.began_at is not None:
            break
    assert large.began_at is not None
    assert n < 25


def test_caller_with_many_requests_does_not_delay_another() -> None:
    ledger = Ledger(limits(Budget(10)))
    running = [enter(ledger, "greedy", 10)]
    begun(ledger)
    for _ in range(40):
        enter(ledger, "greedy", 10)
    modest = enter(ledger, "modest", 10)
    order = []
    while running:
        ledger.release(running.pop(), None, 0.0)
        running = ledger.serve(0.0)[0]
        order += [ticket.caller for ticket in running]
    assert "modest" in order[:2]
    assert modest.began_at is not None


def test_caller_that_asks_again_at_once_does_not_starve_one_that_queues() -> None:
    """Its queue is empty each time it asks: that must not erase what it had."""
    ledger = Ledger(limits(Budget(10)))
    running = [enter(ledger, "again", 10)]
    begun(ledger)
    for _ in range(30):
        enter(ledger, "queues", 10)
    enter(ledger, "again", 10)
    order = []
    for _ in range(20):
        ledger.release(running.pop(), None, 0.0)
        running = ledger.serve(0.0)[0]
        order.append(running[0].caller)
        if order[-1] == "again":
            enter(ledger, "again", 10)
    assert order.count("queues") >= 9


def test_callers_share_by_cost_and_not_by_requests() -> None:
    ledger = Ledger(limits(Budget(40), per_caller=500))
    running = [enter(ledger, "first", 40)]
    begun(ledger)
    for _ in range(20):
        enter(ledger, "dear", 40)
    for _ in range(400):
        enter(ledger, "cheap", 4)
    spent = {"dear": 0, "cheap": 0}
    while sum(spent.values()) < 800:
        ledger.release(running.pop(0), None, 0.0)
        granted = ledger.serve(0.0)[0]
        running += granted
        for ticket in granted:
            spent[ticket.caller] += ticket.cost
    assert abs(spent["dear"] - spent["cheap"]) <= 80


def test_caller_over_its_own_budget_blocks_no_other() -> None:
    ledger = Ledger(limits(Budget(100), Budget(20)))
    enter(ledger, "a", 20)
    begun(ledger)
    enter(ledger, "a", 20)
    enter(ledger, "b", 20)
    assert begun(ledger) == [("b", 20)]


def test_full_group_blocks_only_its_own_callers() -> None:
    ledger = Ledger(limits(Budget(100), NONE, Budget(50)))
    enter(ledger, "a", 40, group="one")
    begun(ledger)
    enter(ledger, "b", 40, group="one")
    enter(ledger, "c", 5, group="one")
    enter(ledger, "d", 40, group="two")
    assert begun(ledger) == [("d", 40)]


@pytest.mark.parametrize("budget", [Budget(concurrent_cost=10), Budget(cost_per_minute=10)])
def test_request_that_never_fits_is_refused_at_once(budget: Budget) -> None:
    for made in (limits(budget), limits(each=budget), limits(together=budget)):
        for cost in (11.0, float("inf"), float("nan")):
            refusal = Ledger(made).ask("a", "g", cost, 0.0)
            assert isinstance(refusal, OverBudget)
            assert (refusal.limit, refusal.retry_after_s) == (10, None)


def test_request_is_refused_at_once_if_the_minute_has_no_room_before_its_deadline() -> None:
    ledger = Ledger(limits(each=Budget(cost_per_minute=100), wait_s=10))
    ledger.release(enter(ledger, "a", 90, 5.0), None, 5.0)
    ticket = enter(ledger, "a", 10, 5.0)
    assert len(begun(ledger, 5.0)) == 2
    ledger.release(ticket, None, 5.0)
    refusal = ledger.ask("a", "g", 20, 30.0)
    assert isinstance(refusal, OverBudget)
    assert (refusal.whose, refusal.which, refusal.used, refusal.retry_after_s) == ("caller", "costPerMinute", 100, 36)
    waits = enter(ledger, "a", 20, 60.0)
    granted, again_at = ledger.serve(60.0)
    assert (granted, again_at) == ([], 66.0)
    assert ledger.serve(66.0)[0] == [waits]


def test_real_cost_corrects_the_minute_in_both_directions() -> None:
    ledger = Ledger(limits(each=Budget(cost_per_minute=100)))
    cheap = enter(ledger, "a", 100, 0.0)
    begun(ledger)
    ledger.release(cheap, 10.0, 1.0)
    dear = enter(ledger, "a", 90, 1.0)
    assert begun(ledger, 1.0) == [("a", 90)]
    ledger.release(dear, 5000.0, 2.0)
    assert isinstance(ledger.ask("a", "g", 1, 3.0), OverBudget)
    enter(ledger, "a", 100, 64.0)
    assert begun(ledger, 64.0) == [("a", 100)]


def test_queues_are_bounded() -> None:
    ledger = Ledger(limits(Budget(10), per_caller=3, waiting=5))
    enter(ledger, "a", 10)
    begun(ledger)
    for _ in range(3):
        enter(ledger, "a", 10)
    full = ledger.ask("a", "g", 10, 0.0)
    assert isinstance(full, OverBudget)
    assert (full.whose, full.which, full.limit, full.used) == ("caller", "queue", 3, 3)
    enter(ledger, "b", 10)
    enter(ledger, "c", 10)
    full = ledger.ask("d", "g", 10, 0.0)
    assert isinstance(full, OverBudget)
    assert (full.whose, full.which, full.limit) == ("all", "queue", 5)


def test_new_limits_apply_to_requests_that_wait() -> None:
    ledger = Ledger(limits(Budget(100)))
    enter(ledger, "a", 90)
    begun(ledger)
    large, small = enter(ledger, "b", 80), enter(ledger, "c", 40)
    [(hopeless, refusal)] = ledger.replace(limits(Budget(50)), 0.0)
    assert (hopeless, refusal.limit) == (large, 50)
    ledger.replace(limits(Budget(200)), 0.0)
    assert ledger.serve(0.0)[0] == [small]


def test_dry_run_counts_what_it_does_not_refuse() -> None:
    ledger = Ledger(limits(each=Budget(concurrent_cost=10)))
    first, over = ledger.force("a", "g", 8, 0.0)
    assert over is None
    second, over = ledger.force("a", "g", 8, 0.0)
    assert over is not None
    assert (over.whose, over.used) == ("caller", 8)
    for ticket in (first, second):
        ledger.release(ticket, None, 0.0)
    assert ledger.force("a", "g", 8, 0.0)[1] is None


@pytest.mark.slow
def test_callers_without_use_are_forgotten() -> None:
    """A user's name comes from a header: many names must not fill the memory."""
    ledger = Ledger(limits())
    busy = enter(ledger, "busy", 1)
    begun(ledger)
    for n in range(CALLERS_MAX + 100):
        ledger.release(ledger.force(f"user-{n}", "g", 1, 0.0)[0], None, 0.0)
    assert len(ledger) <= CALLERS_MAX
    ledger.release(busy, None, 0.0)
    assert ledger.all.running == 0
