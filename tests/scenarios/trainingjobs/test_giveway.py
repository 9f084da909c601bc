"""A job gives its nodes to one of higher priority, waits, and continues as its next attempt."""

from __future__ import annotations

import pytest

from tests.scenarios.trainingjobs.conftest import Arena
from tests.scenarios.trainingjobs.test_jobs import QUICK, train
from tests.support.anyserver import BY_SCHEDULER
from tests.support.priorityclasses import make_priority_class

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@BY_SCHEDULER
async def test_job_yields_to_higher_priority_and_continues_afterwards(arena: Arena) -> None:
    await make_priority_class(arena.client, "muster-test-urgent", 1000)
    await arena.submit("low", train(arena), replicas=3, backoffLimit=0, infrastructureLimit=0, unknownLimit=0)
    await arena.phase("low", "Running", 1)
    await arena.submit("high", QUICK, replicas=2, priorityClassName="muster-test-urgent")
    waiting = await arena.reaches("low", lambda status: status.preemptions == 1)
    assert waiting.attempt == 2
    assert waiting.restarts is None or waiting.restarts.total == 0
    assert waiting.faults == ()
    await arena.phase("high", "Succeeded")
    again = await arena.phase("low", "Running", 2)
    assert (again.preemptions, again.slots_kept) == (1, None)
    (arena.folder / "done").touch()
    await arena.phase("low", "Succeeded", 2)
