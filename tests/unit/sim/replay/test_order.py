"""Issue 13.5: in a replay, the order `fair` keeps one user's many jobs from delaying all others."""

from __future__ import annotations

import pytest

from muster.api.scheduling import QueueOrder
from muster.sim.replay.job import Job, Shape, Workload, uniform_nodes
from muster.sim.replay.replay import Conditions, Replay
from muster.sim.replay.report import Report, summarise

HOUR_S = 3600.0


def job(user: str, number: int, submit_s: float) -> Job:
    return Job(
        name=f"{user}-{number}",
        submit_s=submit_s,
        run_s=HOUR_S,
        members=1,
        shape=Shape(gpus=8),
        gang=True,
        training_job=True,
        restartable=True,
        user=user,
    )


def replayed(order: QueueOrder) -> Report:
    """On 4 nodes, one user submits 60 jobs of an hour at once; another submits one each hour."""
    jobs = [job("heavy", at, float(at)) for at in range(60)] + [job("light", at, at * HOUR_S + 600) for at in range(8)]
    jobs.sort(key=lambda each: each.submit_s)
    nodes = uniform_nodes(4, 8)
    conditions = Conditions(order=order)
    outcome = Replay(nodes, jobs, conditions).run()
    return summarise(Workload("made up", jobs, {}), len(nodes), conditions, outcome)


@pytest.mark.slow
def test_other_users_wait_for_one_end_instead_of_the_whole_queue() -> None:
    arrival, fair = replayed("arrival"), replayed("fair")
    assert arrival.other_users_p90_s is not None
    assert fair.other_users_p90_s is not None
    assert arrival.other_users_p90_s > 7 * HOUR_S
    assert fair.other_users_p90_s <= HOUR_S
    assert (fair.order, fair.done, fair.utilisation) == ("fair", arrival.done, arrival.utilisation)
