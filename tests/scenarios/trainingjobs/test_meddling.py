"""What people change by hand while a job runs: status, Placement, spec and pods.

Issue 11.10: a status that is wiped leads to another attempt; a deleted Placement is there again at once. A phase that
is edited to Succeeded is corrected, and the ranks run on.
"""

from __future__ import annotations

import pytest

from muster.api.names import LABEL_SLOT
from muster.api.placement import Placement
from muster.api.training_job import TrainingJob
from muster.kube.errors import Invalid, NotFound
from muster.kube.objects.core import Event
from muster.kube.objects.pod import Pod
from tests.scenarios.trainingjobs.conftest import Arena, processes_of
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

UNTIL_DONE = """
    import pathlib, time
    folder = pathlib.Path({folder!r})
    while not (folder / "done").exists():
        time.sleep(0.05)
"""


async def test_a_wiped_status_restarts_the_job_and_a_deleted_placement_comes_back(arena: Arena) -> None:
    await arena.submit("train", UNTIL_DONE.format(folder=str(arena.folder)), launcher="mpi")
    await arena.phase("train", "Running", 1)
    placement = await arena.client.get(Placement, "train", arena.namespace)
    await arena.client.delete(Placement, "train", namespace=arena.namespace)

    async def back() -> bool:
        new = await arena.client.get(Placement, "train", arena.namespace)
        return new.uid != placement.uid and new.spec.slots == placement.spec.slots and new.status.phase == "Bound"

    await until("the Placement is there again", back, ignoring=(NotFound,))
    assert (await arena.status("train")).attempt == 1

    ended = {"status": {"phase": "Succeeded"}}
    await arena.client.patch(TrainingJob, "train", ended, namespace=arena.namespace, subresource="status")
    assert (await arena.phase("train", "Running")).attempt == 1, "an edited phase stops no ranks"

    job = await arena.job("train")
    wiped = dict.fromkeys(("phase", "attempt", "conditions", "run", "fixedSpec", "size", "ranAttempt"))
    await arena.client.patch(TrainingJob, "train", {"status": wiped}, namespace=arena.namespace, subresource="status")
    status = await arena.phase("train", "Running", 2)
    assert status.restarts == job.status.restarts
    assert status.run is not None
    (arena.folder / "done").touch()
    await arena.phase("train", "Succeeded", 2)


ENDS = """
    import pathlib, time
    folder = pathlib.Path({folder!r})
    while not (folder / "end").exists():
        time.sleep(0.05)
"""


async def test_a_pod_that_is_deleted_after_its_good_end_and_before_a_controller_looks_costs_no_restart(
    arena: Arena,
) -> None:
    """Issue 11.1: its supervisor waits for a controller for half of the grace."""
    program = ENDS.format(folder=str(arena.folder))
    await arena.submit("train", program, replicas=1, launcher="mpi", stopGraceSeconds=60)
    await arena.phase("train", "Running", 1)
    arena.controllers.pop().terminate()
    (arena.folder / "end").touch()
    (pod,) = await arena.pods("train")
    logs = [node.state / "pods" / pod.uid / "logs" / "worker" / "0.log" for node in arena.nodes]

    async def has_ended() -> bool:
        return any("attempt 1: over on this node" in log.read_text() for log in logs if log.exists())

    await until("rank and mpiexec have ended, and the supervisor knows it", has_ended)
    await arena.client.delete(Pod, pod.name, namespace=arena.namespace)
    arena.control()
    status = await arena.phase("train", "Succeeded", 1)
    assert (status.restarts, status.faults) == (None, ())


async def test_a_deleted_job_leaves_no_process(arena: Arena) -> None:
    await arena.submit("train", UNTIL_DONE.format(folder=str(arena.folder)), stopGraceSeconds=240)
    await arena.phase("train", "Running", 1)
    pods = await arena.pods("train")
    assert all(processes_of(pod.uid) for pod in pods)
    await arena.client.delete(TrainingJob, "train", namespace=arena.namespace)

    def gone() -> bool:
        return not any(processes_of(pod.uid) for pod in pods)

    await until("no process is left", gone)  # sooner than half of the grace, after which supervisors wait no more


async def test_a_force_deleted_pod_of_a_whole_node_job_costs_one_restart(arena: Arena) -> None:
    """Its replacement returns to the same node, where the old pod's processes may still hold the GPUs."""
    await arena.submit("train", UNTIL_DONE.format(folder=str(arena.folder)))
    await arena.phase("train", "Running", 1)
    before = {pod.metadata.labels[LABEL_SLOT]: pod for pod in await arena.pods("train")}
    await arena.client.delete(Pod, before["1"].name, namespace=arena.namespace, grace_s=0)
    await arena.reaches("train", lambda status: status.phase == "Running" and status.attempt > 1)
    after = {pod.metadata.labels[LABEL_SLOT]: pod for pod in await arena.pods("train")}
    assert after["1"].spec.node_name == before["1"].spec.node_name
    (arena.folder / "done").touch()
    status = await arena.phase("train", "Succeeded")
    assert [fault.rule for fault in status.faults] == ["pod-deleted"]
    assert status.attempt == 2


async def test_a_slot_is_not_kept_on_a_node_that_was_deleted_and_came_back_with_other_gpus(arena: Arena) -> None:
    """Issue 11.5: a gang never mixes counts. The running attempt continues."""
    await arena.whole(4)
    await arena.submit("train", UNTIL_DONE.format(folder=str(arena.folder)))
    await arena.phase("train", "Running", 1)
    pods = {pod.metadata.labels[LABEL_SLOT]: pod for pod in await arena.pods("train")}
    (node,) = [each for each in arena.nodes if each.name == pods["0"].spec.node_name]
    try:
        await node.come_back_with(arena.client, gpus=7)
        there = {"spec": {"nodeSelector": {"gpus": "7"}}}
        await arena.submit("knows", "", replicas=1, gpusPerNode=None, ranksPerNode=None, template=there)
        await arena.reaches("knows", lambda status: status.node_use and status.node_use.node_gpus == 7)
        assert (await arena.status("train")).attempt == 1
        assert {pod.uid for pod in await arena.pods("train")} == {pod.uid for pod in pods.values()}
        assert all(processes_of(pod.uid) for pod in pods.values())
        await arena.client.delete(Pod, pods["1"].name, namespace=arena.namespace, grace_s=0)
        status = await arena.phase("train", "Running", 2)
        nodes = [pod.spec.node_name for pod in await arena.pods("train") if not pod.terminating]
        assert node.name not in nodes
        assert [fault.rule for fault in status.faults] == ["pod-deleted"]
        (arena.folder / "done").touch()
        await arena.phase("train", "Succeeded", 2)
    finally:
        node.lose()  # so that the next test gets one with four GPUs


async def test_an_edit_that_got_through_is_ignored_with_a_condition(arena: Arena) -> None:
    """Issue 11.9: the API server allows edits of a suspended job, and no controller sees that it was suspended."""
    program = UNTIL_DONE.format(folder=str(arena.folder))
    await arena.submit("train", program, replicas=1, launcher="mpi")
    await arena.phase("train", "Running", 1)
    pods = [pod.uid for pod in await arena.pods("train")]

    async def edit(**spec: object) -> None:
        await arena.client.patch(TrainingJob, "train", {"spec": spec}, namespace=arena.namespace)

    arena.controllers.pop().terminate()
    with pytest.raises(Invalid, match="cannot change while the job is active"):
        await edit(replicas=2)
    await edit(suspend=True, replicas=2, command=["false"])
    await edit(suspend=False)
    arena.control()
    status = await arena.reaches(
        "train", lambda status: any(each.type == "SpecIgnored" and each.status == "True" for each in status.conditions)
    )
    (condition,) = [each for each in status.conditions if each.type == "SpecIgnored"]
    assert condition.reason == "FieldsFixed"
    assert condition.message.startswith("the change of spec.replicas, spec.command is ignored")

    async def said() -> bool:
        events = (await arena.client.list(Event, arena.namespace)).items
        return any(each.reason == "SpecIgnored" and each.type == "Warning" for each in events)

    await until("an Event says so", said)
    (arena.folder / "done").touch()
    status = await arena.phase("train", "Succeeded", 1)
    assert status.restarts is None
    assert status.run is not None
    assert (status.run.attempt, status.run.nodes) == (1, 1)
    assert {pod.uid for pod in await arena.pods("train")} <= set(pods)


async def test_a_foreign_pod_with_the_name_of_a_slot_is_named_and_waited_for(
    arena: Arena,
) -> None:
    """Issue 11.10: the job was Pending without a reason, and for ever: the end of that pod woke nothing."""
    other = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "taken-0-1", "namespace": arena.namespace},
        "spec": {"schedulerName": "none", "containers": [{"name": "c", "image": "i"}]},
    }
    await arena.client.create(other)
    await arena.submit("taken", "", replicas=1)
    reported = await arena.reaches("taken", lambda status: "already exists" in status.message)
    assert 'pods "taken-0-1" already exists, and it does not belong to this job: delete it' in reported.message
    await arena.client.delete(Pod, "taken-0-1", namespace=arena.namespace, grace_s=0)
    await arena.phase("taken", "Succeeded")
