"""Remediation and preflight beside gangs: fixed seeds where every invariant holds, and mutants."""

from __future__ import annotations

import gc

import pytest

from fuzz.modes import Mode
from tests.sim.caught import is_caught
from tests.sim.healthmutants import HEALTH_MUTANTS

HEALTH = Mode("python -m fuzz --health", health=True)
SEEDS = (0, 3, 9, 10, 56)
CATCHES = {
    "breaker_counts_nothing": 2,
    "budget_of_teams_ignored": 16,
    "silence_is_health": 80,
    "a_boot_is_a_boot": 2089,
    "do_it_again": 7,
    "empty_before_it_is_closed": 3,
    "touch_without_looking": 7,
    "what_is_ill_is_replaced": 28,
    "any_machine_will_do": 4,
    "who_is_not_reached_is_dead": 4,
    "partitions_are_deaths": 1170,
    "a_word_is_kept_once": 23,
    "an_old_pass_is_what_people_ask_for": 14,
    "lose_what_is_under_way": 2,
}
"""The seed that catches a mutant soonest, where it is not the first. Other controllers may need another."""


@pytest.mark.parametrize("seed", SEEDS)
def test_every_invariant_holds(seed: int) -> None:
    outcome = HEALTH.run(seed)
    gc.collect()
    assert not outcome.violation, f"{outcome.violation}\nagain: {HEALTH.command} --seed {seed} --trace"


@pytest.mark.parametrize("name", HEALTH_MUTANTS)
def test_mutant_is_caught(name: str) -> None:
    with HEALTH_MUTANTS[name]():
        for seed in dict.fromkeys([CATCHES.get(name, 0), *range(4)]):
            violation = HEALTH.run(seed).violation
            gc.collect()
            if is_caught(violation):
                return
    pytest.fail(f"no seed catches {name}")
