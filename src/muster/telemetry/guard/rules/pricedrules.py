"""The cost of rules: what each evaluation reads, and how often it is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from muster.telemetry.guard.decide import Refuse, decide
from muster.telemetry.guard.limits import Limits
from muster.telemetry.guard.pricing.pricer import Pricer
from muster.telemetry.guard.query.errors import BadRequest
from muster.telemetry.guard.query.parsing import parse

QUERY: Final = "/api/v1/query"
DAY_S: Final = 86400.0


class TimedRule(msgspec.Struct, frozen=True, rename="camel"):
    """A rule to price.

    Attributes:
        name: of the alert, or of the metric that it records.
        group: name of its group.
        source: where it is, for people.
        expr: its query.
        interval_s: seconds between its evaluations.
    """

    name: str
    group: str
    source: str
    expr: str
    interval_s: float = msgspec.field(name="intervalSeconds")


class PricedRule(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A rule with its price.

    Attributes:
        rule: the rule.
        series: that one evaluation matches.
        samples: that one evaluation reads.
        cost: of one evaluation, as the guard counts it.
        cost_per_day: of all evaluations of a day.
        known: how well the price is known: `exact`, `bounded`, `guess`, or `unknown` without a price.
        problem: why the guard would refuse the query, and what to change; "" if it would not.
    """

    rule: TimedRule
    series: int = 0
    samples: int = 0
    cost: float = 0.0
    cost_per_day: float = 0.0
    known: str = "unknown"
    problem: str = ""


async def price_rules(
    rules: Iterable[TimedRule],
    pricer: Pricer,
    limits: Limits,
    now: float,
    progress: Callable[[int], None] = lambda done: None,
) -> list[PricedRule]:
    """Price rules one after the other, so that the server has little work; returns the dearest first.

    Args:
        rules: to price.
        pricer: asks the server.
        limits: what one evaluation may read.
        now: Unix time of the evaluations.
        progress: is called with the number of rules that were priced.
    """
    found: list[PricedRule] = []
    for rule in rules:
        found.append(await _priced(rule, pricer, limits, now))
        progress(len(found))
    return sorted(found, key=lambda each: (-each.cost_per_day, each.rule.source, each.rule.name))


async def _priced(rule: TimedRule, pricer: Pricer, limits: Limits, now: float) -> PricedRule:
    try:
        operation = parse("GET", QUERY, (("query", rule.expr),), "", b"", now)
    except BadRequest as error:
        return PricedRule(rule=rule, problem=error.message)
    price = await pricer.price(operation, "")
    verdict = decide(operation, price, limits, await pricer.capabilities(""))
    problem = verdict.message if isinstance(verdict, Refuse) else ""
    if price is None:
        return PricedRule(rule=rule, problem=problem)
    return PricedRule(
        rule=rule,
        series=price.series,
        samples=price.samples,
        cost=price.cost,
        cost_per_day=price.cost * DAY_S / rule.interval_s,
        known=price.known,
        problem=problem,
    )
