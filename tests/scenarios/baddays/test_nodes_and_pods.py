"""Bad days of nodes and pods: lost, recreated, deleted, evicted, refused, standing still."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import pytest

from muster.api.training_job import TrainingJob
from muster.kube.errors import NotFound
from muster.kube.objects.node import Node
from tests.scenarios.baddays.conftest import BEGIN, BadDay, Job, lives, stopped, supervisor_of
from tests.scenarios.trainingjobs.conftest import processes_of
from tests.support.anyserver import BY_QUOTA, BY_RANKS, BY_SCHEDULER
from tests.support.controlgroups import need_control_groups
from tests.support.kubectl import kubectl_program
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]


@BY_SCHEDULER
async def test_without_a_spare_it_waits_says_why_and_resumes_on_a_new_node(bad: BadDay) -> None:
    job = await bad.train(replicas=3)
    await job.runs(1, ranks=3)
    kept = await job.pods()
    lost = await job.node_of(2)
    lost.lose()
    status = await job.reaches(lambda status: status.message.startswith("waiting for 1 of 3 nodes: "))
    assert (status.phase, status.attempt, status.restarts.infrastructure) == ("Restarting", 2, 1)
    bad.arena.add_node()
    await job.runs(2, ranks=3)
    after = await job.pods()
    assert [after[slot].uid for slot in (0, 1)] == [kept[slot].uid for slot in (0, 1)]
    assert after[2].spec.node_name != lost.name
    status = await job.ends(2)
    assert (status.restarts.total, status.restarts.infrastructure, status.slots_kept) == (1, 1, 2)


async def lose_at_once(job: Job, *slots: int) -> set[str]:
    """The nodes of these slots lose power at the same moment; their names."""
    lost = [await job.node_of(slot) for slot in slots]
    await asyncio.gather(*(asyncio.to_thread(node.lose) for node in lost))
    return {node.name for node in lost}


@BY_SCHEDULER
async def test_two_nodes_lost_at_once_are_replaced_at_once_by_one_restart(bad: BadDay) -> None:
    await bad.arena.whole(nodes=6)
    job = await bad.train(replicas=4, backoffLimit=0, unknownLimit=0)
    await job.runs(1, ranks=4)
    kept = await job.pods()
    lost = await lose_at_once(job, 1, 3)
    await job.runs(2, ranks=4)
    after = await job.pods()
    assert [after[slot].uid for slot in (0, 2)] == [kept[slot].uid for slot in (0, 2)]
    assert [after[slot].name for slot in (1, 3)] == [f"{job.name}-1-2", f"{job.name}-3-2"]
    assert not {pod.spec.node_name for pod in after.values()} & lost
    status = await job.ends(2)
    assert (status.restarts.total, status.restarts.infrastructure, status.slots_kept) == (1, 1, 2)
    assert [(fault.cause, fault.slots) for fault in status.faults] == [("infrastructure", 2)], status.faults


WAITING = re.compile(r"waiting for [12] of 4 nodes: needs [12] nodes?, .*; would run with: \+1 node \[NotEnoughNodes\]")
"""Two where both slots had their new pods before one of these was placed."""


@BY_SCHEDULER
async def test_two_nodes_lost_at_once_with_one_spare_wait_say_why_and_go_on_with_a_new_node(bad: BadDay) -> None:
    await bad.arena.whole(nodes=5)
    job = await bad.train(replicas=4, backoffLimit=0, unknownLimit=0)
    await job.runs(1, ranks=4)
    kept = await job.pods()
    lost = await lose_at_once(job, 1, 3)
    status = await job.reaches(lambda status: WAITING.fullmatch(status.message))
    assert (status.phase, status.attempt, status.restarts.infrastructure) == ("Restarting", 2, 1)
    bad.arena.add_node()
    await job.runs(2, ranks=4)
    after = await job.pods()
    assert [after[slot].uid for slot in (0, 2)] == [kept[slot].uid for slot in (0, 2)]
    assert not {pod.spec.node_name for pod in after.values()} & lost
    status = await job.ends(2)
    assert (status.restarts.total, status.restarts.infrastructure, status.slots_kept) == (1, 1, 2)


@BY_SCHEDULER
async def test_recreated_node_of_the_same_name_is_another_node(bad: BadDay) -> None:
    job = await bad.train()
    await job.runs(1)
    node = await job.node_of(1)
    before = (await job.pods())[1]
    uid = (await bad.arena.client.get(Node, node.name)).uid
    node.lose()
    await bad.arena.remove(node)
    bad.arena.add_node(node.name)
    await job.runs(2)

    async def recreated() -> bool:
        return (await bad.arena.client.get(Node, node.name)).uid != uid

    await until("the node is there again", recreated, ignoring=(NotFound,))
    assert (await job.pods())[1].uid != before.uid
    status = await job.ends(2)
    assert [(fault.slot, fault.cause) for fault in status.faults] == [(1, "infrastructure")], status.faults


@BY_SCHEDULER
async def test_a_kubelet_that_restarts_costs_its_slots_pod_and_not_the_user(bad: BadDay) -> None:
    """A process kubelet takes its containers with it, as a machine that restarts does."""
    job = await bad.train(backoffLimit=0)
    await job.runs(1)
    (await job.node_of(1)).restart()
    await job.runs(2)
    status = await job.ends(2)
    assert [(fault.slot, fault.cause) for fault in status.faults] == [(1, "infrastructure")], status.faults


ASKED = f"""{BEGIN}
        muster.report(step=step)
        if muster.should_checkpoint() and not (folder / ("saved-" + mine)).exists():
            muster.save_checkpoint(step, save)
            (folder / ("saved-" + mine)).write_text(str(step))
        time.sleep(0.05)
"""


@BY_RANKS
async def test_a_pod_that_a_person_deletes_saves_first_and_is_replaced_on_its_node(bad: BadDay) -> None:
    job = await bad.train(ASKED, stopGraceSeconds=30)
    await job.runs(1)
    await job.reaches(lambda status: status.progress)
    before = await job.pods()
    kubectl = [kubectl_program(), f"--kubeconfig={bad.server.kubeconfig}", f"--namespace={bad.arena.namespace}"]
    command = [*kubectl, "delete", "pod", before[1].name, "--wait=false"]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=30)
    await job.runs(2)
    saved = await job.saved(1)
    assert [int((job.folder / f"began-2-{rank}").read_text()) for rank in (0, 1)] == [saved, saved]
    after = await job.pods()
    assert after[0].uid == before[0].uid
    assert after[1].spec.node_name == before[1].spec.node_name
    status = await job.ends(2)
    assert [(fault.slot, fault.rule) for fault in status.faults] == [(1, "pod-deleted")]
    assert (status.restarts.user, status.slots_kept) == (0, 1)


@BY_RANKS
async def test_a_suspended_job_saves_first_and_resumes_from_there(bad: BadDay) -> None:
    job = await bad.train(ASKED, stopGraceSeconds=30)
    await job.runs(1)
    await job.reaches(lambda status: status.progress)
    pods = await job.pods()
    for suspend, phase in ((True, "Suspended"), (False, "Running")):
        await bad.arena.client.patch(
            TrainingJob, job.name, {"spec": {"suspend": suspend}}, namespace=bad.arena.namespace
        )
        status = await bad.arena.phase(job.name, phase)
        if suspend:
            assert not any(processes_of(pod.uid) for pod in pods.values())
            assert status.last_checkpoint is not None
    await job.runs(2)
    saved = await job.saved(1)
    assert int((job.folder / "began-2-0").read_text()) == saved
    status = await job.ends(2)
    assert status.restarts is None


@BY_RANKS
async def test_the_budget_ends_a_job_with_the_last_lines_of_its_first_failing_rank(bad: BadDay) -> None:
    program = """
        import os, sys, time
        if os.environ["RANK"] == "1":
            sys.exit("layer 7 has no weights")
        time.sleep(60)
    """
    job = await bad.train(program, backoffLimit=1)
    status = await bad.arena.phase(job.name, "Failed")
    assert status.message.startswith("backoffLimit 1 is used up; rank 1 (slot 1 on ")
    assert "exit code 1: layer 7 has no weights" in status.message
    assert (status.restarts.user, status.restarts.total) == (2, 2)


STALE = """
    import os, pathlib, time
    import muster
    folder = pathlib.Path({folder!r})
    mine = "%d-%d" % (muster.attempt(), muster.rank())
    (folder / ("pid-" + mine)).write_text(str(os.getpid()))
    step = 0
    while not (folder / "done").exists():
        step += 1
        try:
            muster.report(step=step, checkpoint="/" + mine)
        except muster.StaleAttempt as error:
            (folder / "refused").write_text(str(error))
            time.sleep(600)
        time.sleep(0.2)
"""


@BY_SCHEDULER
async def test_a_node_that_vanished_and_still_runs_its_ranks_commits_nothing(bad: BadDay) -> None:
    job = await bad.train(STALE, stopGraceSeconds=2)
    await job.runs(1)
    await job.reaches(lambda status: status.last_checkpoint)
    pod, node, rank = (await job.pods())[0], await job.node_of(0), job.pid(1, 0)
    with stopped(supervisor_of(pod.uid), node.process.popen.pid):
        await job.runs(2)
        refused = job.folder / "refused"

        async def was_refused() -> bool:
            return refused.exists() and bool(refused.read_text())

        await until("the old attempt is refused", was_refused)
        assert "attempt 1 is over, the job is at attempt 2" in refused.read_text()
        assert lives(rank)
        assert (await job.pods())[0].spec.node_name != node.name
        status = await job.reaches(lambda status: status.last_checkpoint and status.last_checkpoint.path == "/2-0")
        assert (status.faults[-1].slot, status.restarts.user, status.restarts.total) == (0, 0, 1)

    async def over() -> bool:
        return not lives(rank)

    await until("the returned node's rank is ended", over)
    await job.ends(2)


@BY_QUOTA
async def test_a_quota_for_three_of_four_pods_holds_no_node_until_it_is_raised(bad: BadDay) -> None:
    await bad.arena.whole(nodes=4)
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "three", "namespace": bad.arena.namespace},
        "spec": {"hard": {"requests.nvidia.com/gpu": "12"}},
    }
    await bad.arena.client.create(quota)
    path = f"/api/v1/namespaces/{bad.arena.namespace}/resourcequotas/three"
    try:

        async def counted() -> bool:
            return b'"used"' in await bad.arena.client.request("GET", path)

        await until("the quota is in force", counted)
        job = await bad.train(replicas=4)
        status = await job.reaches(lambda status: "3/4 pods created" in status.message)
        assert "exceeded quota: three" in status.message
        assert "used: requests.nvidia.com/gpu=12" in status.message
        assert all(not pod.spec.node_name for pod in (await job.pods()).values())
    finally:
        await bad.arena.client.request("DELETE", path)
    await job.runs(1, ranks=4)
    await job.ends(1)


GREEDY = """
    import os, pathlib, time
    import muster
    folder = pathlib.Path({folder!r})
    mine = "%d-%d" % (muster.attempt(), muster.rank())
    (folder / ("pid-" + mine)).write_text(str(os.getpid()))
    while not (folder / ("more-" + mine)).exists():
        if (folder / "done").exists():
            raise SystemExit(0)
        time.sleep(0.05)
    everything = []
    while True:
        everything.append(b"x" * (8 << 20))
"""
LITTLE = {"spec": {"containers": [{"name": "worker", "resources": {"limits": {"memory": "96Mi"}}}]}}


def prefer_for_memory(pid: int) -> None:
    """Of all that the kernel may kill for memory it shall take this one."""
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


@BY_RANKS
async def test_a_rank_that_takes_more_memory_than_its_pod_may_is_the_users_until_the_budget_is_used_up(
    bad: BadDay,
) -> None:
    need_control_groups()
    job = await bad.train(GREEDY, template=LITTLE, backoffLimit=1, unknownLimit=0)
    await job.runs(1)
    uids = {slot: pod.uid for slot, pod in (await job.pods()).items()}
    (job.folder / "more-1-1").touch()
    await job.runs(2)
    status = await job.status()
    assert (status.restarts.user, status.restarts.total) == (1, 1)
    assert [(fault.slot, fault.rule, fault.cause) for fault in status.faults] == [(1, "rank-out-of-memory", "user")]
    assert {slot: pod.uid for slot, pod in (await job.pods()).items()} == uids  # only the rank died
    (job.folder / "more-2-1").touch()
    status = await bad.arena.phase(job.name, "Failed")
    assert (status.restarts.user, status.restarts.total) == (2, 2)
    assert status.message.startswith("backoffLimit 1 is used up; rank 1 (slot 1 on ")
    assert "out of memory" in status.message


@BY_RANKS
async def test_a_worker_whose_process_1_the_kernel_kills_for_memory_is_the_users_and_replaced(bad: BadDay) -> None:
    """As on nodes where the kernel ends a container as a whole: the kubelet says OOMKilled."""
    need_control_groups()
    job = await bad.train(GREEDY, template=LITTLE, backoffLimit=1, unknownLimit=0)
    await job.runs(1)
    before = await job.pods()
    prefer_for_memory(supervisor_of(before[1].uid))
    (job.folder / "more-1-1").touch()
    await job.runs(2)
    after = await job.pods()
    assert after[0].uid == before[0].uid
    assert after[1].uid != before[1].uid
    status = await job.ends(2)
    assert (status.restarts.user, status.restarts.total) == (1, 1)
    assert [(fault.slot, fault.rule, fault.cause) for fault in status.faults] == [(1, "out-of-memory", "user")]
    assert "OOMKilled" in status.faults[0].message
