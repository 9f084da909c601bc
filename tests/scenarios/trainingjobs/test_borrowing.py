"""A job runs on another team's nodes until they need them: it saves, leaves whole, and continues when there is room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from muster.api.names import BORROWER_CLASS, LABEL_TEAM
from muster.api.training_job_status import TrainingJobStatus
from muster.kube.errors import Conflict
from muster.kube.objects.node import Node
from tests.scenarios.trainingjobs.conftest import Arena
from tests.scenarios.trainingjobs.test_jobs import QUICK
from tests.scenarios.trainingjobs.test_shrinking import ELASTIC, ran
from tests.support.anyserver import BY_SCHEDULER
from tests.support.priorityclasses import make_priority_class
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

URGENT = "muster-test-urgent"
BLUE = {
    "metadata": {"labels": {LABEL_TEAM: "blue"}},
    "spec": {
        "nodeSelector": {LABEL_TEAM: "blue"},
        "tolerations": [{"key": LABEL_TEAM, "operator": "Equal", "value": "blue", "effect": "NoSchedule"}],
    },
}
"""What admission gives the pods of a team that owns nodes."""


@pytest.fixture
async def arena(arena: Arena) -> AsyncIterator[Arena]:
    """Nodes that were given away have no owner afterwards."""
    yield arena
    for node in arena.nodes:
        node.lose()


async def give(arena: Arena, name: str, team: str) -> None:
    """The node is the team's from now on; other taints stay."""

    async def given() -> bool:
        node = await arena.client.get(Node, name)
        taints: list[Any] = [{"key": each.key, "value": each.value, "effect": each.effect} for each in node.spec.taints]
        patch = {
            "metadata": {"resourceVersion": node.metadata.resource_version, "labels": {LABEL_TEAM: team}},
            "spec": {"taints": [*taints, {"key": LABEL_TEAM, "value": team, "effect": "NoSchedule"}]},
        }
        await arena.client.patch(Node, name, patch)
        return True

    await until("the node is the team's", given, ignoring=(Conflict,))


def went_on(status: TrainingJobStatus) -> bool:
    """Whether it has worked for seconds since its last checkpoint: one of this very second would do as the last."""
    saved, reported = status.last_checkpoint, status.progress
    if saved is None or saved.time is None or reported is None or reported.time is None:
        return False
    return reported.step > saved.step and reported.time > saved.time + timedelta(seconds=2)


@pytest.mark.parametrize(
    "priority_class",
    [pytest.param("", id="as the chart has it"), pytest.param(URGENT, marks=BY_SCHEDULER, id="of higher priority")],
)
async def test_borrower_saves_leaves_for_the_owner_and_continues_afterwards(arena: Arena, priority_class: str) -> None:
    for name, value in ((BORROWER_CLASS, -1), (URGENT, 1000)):
        await make_priority_class(arena.client, name, value)
    for node in arena.nodes[:2]:
        await give(arena, node.name, "blue")
    folder = str(arena.folder)
    await arena.submit(
        "guest",
        ELASTIC.format(folder=folder),
        replicas=3,
        borrow=True,
        priorityClassName=priority_class,
        template={"metadata": {"labels": {LABEL_TEAM: "red"}}},
        checkpoint={"path": f"{folder}/checkpoints"},
        stopGraceSeconds=10,
        backoffLimit=0,
        infrastructureLimit=0,
        unknownLimit=0,
    )
    await arena.phase("guest", "Running", 1)
    await arena.reaches("guest", went_on)
    await arena.submit("home", QUICK, replicas=2, template=BLUE)
    left = await arena.reaches("guest", lambda status: status.preemptions == 1)
    assert left.last_checkpoint is not None
    assert left.last_checkpoint.step > 5, "it was asked to save, and had the time to"
    assert (left.attempt, left.faults) == (2, ())
    assert left.restarts is None or left.restarts.total == 0
    await arena.phase("home", "Succeeded")
    on = {pod.spec.node_name for pod in await arena.pods("home")}
    assert on == {node.name for node in arena.nodes[:2]}
    again = await arena.phase("guest", "Running", 2)
    assert again.preemptions == 1
    assert {step for *_, step in await ran(arena, 2, 3)} == {left.last_checkpoint.step}
    (arena.folder / "done").touch()
    await arena.phase("guest", "Succeeded", 2)
