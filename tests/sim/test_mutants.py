"""Each way to break the scheduler is caught by a simulation: else its invariants are worth nothing."""

from __future__ import annotations

import gc

import pytest

from fuzz.run import run
from fuzz.scenario import scenario
from tests.sim.caught import is_caught
from tests.sim.mutants import MUTANTS

CATCHES = {
    "charge_the_user": 3,
    "start_over": 3,
    "drop_the_reservation": 27,
    "ask_todays_labels_for_the_launcher": 2,
    "forget_the_fence": 3,
    "forget_the_deadline": 13,
    "release_without_removing": 13,
    "newest_first": 2,
    "repeat_what_was_said": 45,
    "forget_rules_about_pods": 8,
    "let_anybody_backfill": 215,
    "ask_before_the_gang_fits": 27,
    "never_take_back": 41,
    "forget_for_whom_nodes_are_reserved": 27,
    "charge_who_was_asked": 118,
    "leave_without_saving": 428,
    "backfill_whatever_it_says": 56,
    "backfill_while_due": 1617,
    "never_backfill": 27,
    "lose_the_place_in_the_queue": 181,
}
"""The seed that catches a mutant soonest, where it is not the first. Where the scheduler changed, it may be another."""


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str) -> None:
    with MUTANTS[name]():
        for seed in [CATCHES.get(name, 0), *range(25)]:
            violation = run(scenario(seed)).violation
            gc.collect()
            if is_caught(violation):
                return
    pytest.fail(f"no seed catches {name}")
