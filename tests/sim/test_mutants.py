"""Each way to break the scheduler is caught by a simulation: else its invariants are worth nothing."""

from __future__ import annotations

import gc

import pytest

from fuzz.run import run
from fuzz.scenario import scenario
from tests.sim.caught import is_caught
from tests.sim.mutants import MUTANTS

CATCHES = {
    "drop_the_reservation": 27,
    "forget_the_fence": 66,
    "forget_the_deadline": 13,
    "release_without_removing": 13,
    "newest_first": 2,
    "repeat_what_was_said": 52,
    "forget_rules_about_pods": 8,
    "let_anybody_backfill": 215,
}
"""The seed that catches a mutant, where it is not the first. Where the scheduler has changed, it may be another."""


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str) -> None:
    with MUTANTS[name]():
        for seed in [CATCHES.get(name, 0), *range(25)]:
            violation = run(scenario(seed)).violation
            gc.collect()
            if is_caught(violation):
                return
    pytest.fail(f"no seed catches {name}")
