"""A fixed set of seeds, in which every invariant holds; `make fuzz` runs others."""

from __future__ import annotations

import gc

import pytest

from fuzz.run import run
from fuzz.scenario import scenario

CHANGED_LATER = 3000192
"""A user makes a job smaller that has been resumed and waits again."""
SEEDS = (*range(25), CHANGED_LATER)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_invariant_holds(seed: int) -> None:
    outcome = run(scenario(seed))
    gc.collect()
    assert not outcome.violation, f"{outcome.violation}\nagain: python -m fuzz --seed {seed} --trace"
