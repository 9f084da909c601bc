"""Issue 12.3: deciding twice on one snapshot gives the same plan, and leaves the snapshot as it was.

The snapshots are those of simulated clusters where things go wrong: every domain's controller decides twice there.
"""

from __future__ import annotations

import gc
import importlib
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from fuzz.fleet.machines import own_source
from fuzz.modes import Mode
from muster.scheduler.memo import EMPTY
from tests.support.values import value_of

CONTROLLERS = {
    "balloons": "muster.fleet.balloons.controller",
    "joins": "muster.fleet.joins.controller",
    "preflight": "muster.fleet.preflight.controller",
    "remediation": "muster.fleet.remediation.controller",
    "scaling": "muster.fleet.scaling.controller",
    "scheduler": "muster.scheduler.controller",
    "teams": "muster.teams.allocation",
    "trainingjobs": "muster.trainingjobs.controller",
}
RUNS = {
    "base": (Mode(), 7, {"scheduler", "trainingjobs"}),
    "health": (Mode("python -m fuzz --health", health=True), 3, {"preflight", "remediation"}),
    "fleet": (Mode("python -m fuzz --fleet", own_source()), 5, {"balloons", "joins", "scaling", "teams"}),
}
EVERY = 7
"""One in so many calls is checked: comparing snapshots takes longer than deciding."""


def twice(domain: str, decide: Callable[..., Any], decided: Counter[str]) -> Callable[..., Any]:
    """The domain's decide, called twice; raises AssertionError where plans differ or the arguments changed."""

    def checked(*arguments: Any) -> Any:
        decided[domain] += 1
        if decided[domain] % EVERY:
            return decide(*arguments)
        given = [tuple(each) if isinstance(each, type({}.values())) else each for each in arguments]
        before = value_of(given)
        plan = decide(*given)
        assert value_of(given) == before, f"{domain}: decide changed what it was given"
        again = decide(*given)
        assert value_of(again) == value_of(plan), f"{domain}: the second plan differs"
        if domain == "scheduler":  # a lost memo changes no plan
            fresh = decide(*given[:3])
            assert value_of(replace(fresh, memo=EMPTY)) == value_of(replace(plan, memo=EMPTY)), "the memo is wrong"
        return plan

    return checked


@pytest.mark.parametrize("run", RUNS)
def test_the_same_snapshot_gives_the_same_plan_and_stays_as_it_was(run: str) -> None:
    mode, seed, domains = RUNS[run]
    decided: Counter[str] = Counter()
    with ExitStack() as stack:
        for domain in sorted(domains):
            module = importlib.import_module(CONTROLLERS[domain])
            stack.enter_context(patch.object(module, "decide", twice(domain, module.decide, decided)))
        outcome = mode.run(seed)
    gc.collect()
    assert not outcome.violation, f"{outcome.violation}\nwithout this check: {mode.command} --seed {seed}"
    assert domains == {domain for domain, count in decided.items() if count > 2 * EVERY}
