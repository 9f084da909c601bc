"""Issue 14.5: in simulations with damaged checkpoints, each attempt trains from one good checkpoint."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from fuzz.modes import Mode
from muster.trainingjobs.attempts import restoring
from muster.trainingjobs.rendezvous.agreement import Agreement
from tests.sim.caught import is_caught

RESTORING = Mode("python -m fuzz --restoring", restoring=True)
SEED = 14
"""It has 18 writes of a quarantine, and leaders that are replaced."""


def ignore_failures() -> AbstractContextManager[Any]:
    """Let all nodes train, although one of them found the checkpoint damaged."""
    seen = Agreement.seen

    def good(self: Agreement, job_uid: str) -> Any:
        found = seen(self, job_uid)
        return replace(found, nodes=10**6, failure=None) if found is not None else None

    return patch.object(Agreement, "seen", good)


def end_the_attempt_instead() -> AbstractContextManager[Any]:
    """Let ranks fail that find a damaged checkpoint."""
    return patch.object(restoring, "is_damage", lambda failure, seen: False)


def test_every_attempt_trains_from_one_good_checkpoint() -> None:
    outcome = RESTORING.run(SEED)
    gc.collect()
    assert not outcome.violation, f"{outcome.violation}\nagain: {RESTORING.command} --seed {SEED} --trace"


@pytest.mark.parametrize("mutant", [ignore_failures, end_the_attempt_instead])
def test_mutant_is_caught(mutant: Callable[[], AbstractContextManager[Any]]) -> None:
    with mutant():
        violation = RESTORING.run(SEED).violation
    gc.collect()
    assert is_caught(violation), violation
