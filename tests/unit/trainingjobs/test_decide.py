"""Snapshot in, plan out: the life of a job, step by step."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from muster.api.names import WORKER_CONTAINER
from muster.kube.objects.container import ContainerState, ContainerStateTerminated, ContainerStatus
from muster.kube.objects.pod import PodCondition, PodStatus
from muster.trainingjobs.plan import (
    CreatePod,
    DeletePod,
    Direct,
    Directive,
    RecordEvent,
    WriteStatus,
)
from muster.trainingjobs.pods.pod import build_pod
from muster.trainingjobs.snapshot import HardwareEvidence
from tests.unit.trainingjobs.world import PODS, World, make_job, moment

API_WRITES_PER_FAULT = 5
"""Most status writes from a fault to useful work: Restarting, stopped, placed, Running, useful, and one for late
evidence. In addition, each broken slot costs a deletion and a creation. Healthy slots cost nothing."""
SETTLING = "backoffLimit {} is used up: the job fails unless another cause shows soon"


def test_first_the_attempt_is_written_then_pods_are_made_for_it() -> None:
    world = World(make_job(2))
    first = world.plan()
    assert [type(action) for action in first.actions] == [WriteStatus]
    world.act(first.actions[0])
    assert (world.status.attempt, world.status.phase) == (1, "Pending")
    assert world.plan().actions == (
        Direct(Directive(attempt=1, desired="hold", slots=("", ""))),
        CreatePod(0, 1, (), "SlotEmpty"),
        CreatePod(1, 1, (), "SlotEmpty"),
    )


def test_a_job_runs_and_succeeds() -> None:
    world = World(make_job(2)).started()
    phases = [status.phase for status in world.history]
    assert phases == ["Pending", "Starting", "Running"]
    assert world.status.ready_slots == 2
    assert world.directed_run == {1}
    run = world.directive
    assert run is not None
    assert run.run is not None
    assert [host.slot for host in run.run.hosts] == [0, 1]
    world.exit_rank(0, 0)
    world.until("Succeeded")
    world.step()
    assert {pod.status.phase for pod in world.pods.values()} == {"Succeeded"}
    assert world.status.restarts is None


def test_success_of_torchrun_needs_every_node() -> None:
    world = World(make_job(2, launcher="torchrun")).started()
    world.exit_rank(0, 0)
    world.control()
    assert world.status.phase == "Running"
    world.exit_rank(1, 0)
    world.control()
    assert world.status.phase == "Succeeded"


def test_a_failing_rank_restarts_in_the_same_pods() -> None:
    world = World(make_job(2)).started()
    before = {pod.uid for pod in world.pods.values()}
    world.exit_rank(1, 1, tail="ValueError")
    world.until("Running", attempt=2)
    assert {pod.uid for pod in world.pods.values()} == before
    assert world.actions(DeletePod) == []
    assert world.status.restarts is not None
    assert (world.status.restarts.user, world.status.restarts.total) == (1, 1)
    fault = world.status.faults[-1]
    assert (fault.attempt, fault.slot, fault.cause, fault.rule) == (1, 1, "user", "rank-failed")
    assert "ValueError" in fault.message
    assert world.status.slots_kept == 2


def test_supervisors_report_on_a_killed_rank_is_shown() -> None:
    world = World(make_job(2, backoffLimit=0)).started()
    world.exit_rank(1, 137, signal=9, how="OutOfMemory")
    world.until("Failed")
    assert world.status.faults[-1].rule == "rank-out-of-memory"
    assert "ended with signal 9 (out of memory, killed by the kernel)" in world.status.message


def test_the_last_line_of_a_killed_rank_is_named_as_such() -> None:
    """Issue 11: "ended with signal 9: step 40" reads as if the step were the reason."""
    world = World(make_job(2, backoffLimit=0)).started()
    world.exit_rank(1, 137, signal=9, tail="step 40")
    world.until("Running", attempt=2)
    head, *lines = world.status.faults[-1].message.splitlines()
    assert head.endswith("ended with signal 9")
    assert lines == ["its last line:", "step 40"]


def test_a_lost_node_costs_one_pod_and_is_kept_away_from() -> None:
    world = World(make_job(2), nodes=3).started()
    lost = world.holder(1).spec.node_name
    kept = world.holder(0).uid
    world.log.clear()
    world.kill_node(lost)
    world.until("Running", attempt=2)
    assert [(a.slot, a.attempt, a.excluded_nodes) for a in world.actions(CreatePod)] == [(1, 2, (lost,))]
    assert len(world.actions(DeletePod)) == 1
    assert world.holder(0).uid == kept
    assert world.holder(1).spec.node_name not in (lost, "")
    assert world.status.restarts is not None
    assert (world.status.restarts.infrastructure, world.status.restarts.user) == (1, 0)
    assert world.status.slots_kept == 1


def test_several_nodes_at_once_are_one_incident() -> None:
    world = World(make_job(6), nodes=9).started()
    for slot in (1, 4):
        world.kill_node(world.holder(slot).spec.node_name)
    world.until("Running", attempt=2)
    assert world.status.restarts is not None
    assert world.status.restarts.total == 1
    assert world.status.faults[-1].slots == 2
    assert len(world.status.excluded_nodes) == 2


def test_ranks_that_lost_their_peer_are_not_charged_once_the_lost_node_is_known() -> None:
    world = World(make_job(3, backoffLimit=0, unknownLimit=0), nodes=4).started()
    world.exit_rank(0, 1, tail="Connection reset by peer")
    world.exit_rank(2, 1, tail="RuntimeError")
    world.control()
    assert world.status.attempt == 2  # the restart continues while the cause is looked for
    assert world.status.faults[-1].cause == "user"
    world.kill_node(world.holder(1).spec.node_name)
    world.until("Running", attempt=2)
    restarts = world.status.restarts
    assert restarts is not None
    assert (restarts.user, restarts.unknown, restarts.infrastructure, restarts.total) == (0, 0, 1, 1)
    assert world.status.faults[-1].rule == "lost-contact"
    said = [status.message for status in world.history if status.phase == "Restarting"]
    assert said[0].endswith(SETTLING.format(0))
    assert "attempt 1 ended (lost-contact, slot 1); restarting as attempt 2" in said[1:]


def test_late_hardware_evidence_gives_the_charge_back() -> None:
    world = World(make_job(2)).started()
    node = world.holder(1).spec.node_name
    world.exit_rank(1, 139, signal=11)
    world.until("Running", attempt=2)
    assert world.status.restarts is not None
    assert world.status.restarts.user == 1
    world.step(90)
    world.hardware.append(HardwareEvidence(node, world.now - 5, "XidError: 79"))
    world.control()
    restarts, fault = world.status.restarts, world.status.faults[-1]
    assert restarts is not None
    assert (restarts.user, restarts.infrastructure, fault.cause, fault.rule) == (0, 1, "infrastructure", "hardware")
    assert node in world.status.excluded_nodes
    assert world.status.phase == "Running"  # what runs is left alone


def test_the_user_budget_ends_the_job_with_the_last_lines() -> None:
    world = World(make_job(2, backoffLimit=1)).started()
    world.exit_rank(0, 3, tail="first")
    world.until("Running", attempt=2)
    world.step()
    world.exit_rank(1, 3, tail="KeyError: 'x'")
    world.until("Failed")
    assert "backoffLimit 1" in world.status.message
    assert "KeyError: 'x'" in world.status.message
    assert world.status.completion_time is not None
    said = [status.message for status in world.history if status.phase == "Restarting" and status.attempt == 3]
    assert said == [f"attempt 2 ended (rank-failed, slot 1); {SETTLING.format(1)}"]
    assert [event.reason for event in world.actions(RecordEvent)] == [
        "Running", "Restarting", "Running", "AttemptEnded", "Failed",
    ]  # fmt: skip
    world.step()
    assert {pod.status.phase for pod in world.pods.values()} == {"Failed"}


@pytest.mark.parametrize(
    ("reason", "cause"), [("OutOfnvidia.com/gpu", "infrastructure"), ("Evicted", "infrastructure")]
)
def test_a_pod_the_kubelet_gave_up_is_replaced(reason: str, cause: str) -> None:
    world = World(make_job(2)).started()
    world.fail_pod(1, reason)
    world.until("Running", attempt=2)
    assert world.status.faults[-1].cause == cause
    assert world.status.slots_kept == 1


def test_an_evicted_pod_is_replaced_without_waiting_for_its_end() -> None:
    world = World(make_job(2)).started()
    world.evict(0)
    world.control()
    assert [(action.slot, action.attempt) for action in world.actions(CreatePod)][2:] == [(0, 2)]
    assert world.status.faults[-1].rule == "evicted"


@pytest.mark.parametrize(
    ("ended_after_s", "code", "rule"),
    [
        (5, 143, "gang-not-bound"),  # the release ended the container
        (None, 143, "gang-not-bound"),
        (-5, 1, "container-exit"),  # it had ended before
    ],
)
def test_a_container_that_ended_because_its_pod_was_released_is_not_at_fault(
    ended_after_s: int | None, code: int, rule: str
) -> None:
    world = World(make_job(2)).started()
    began, pod = world.now, world.holder(0)
    ended = None if ended_after_s is None else moment(began + ended_after_s)
    condition = PodCondition(
        type="DisruptionTarget", status="True", reason="GangNotBound", last_transition_time=moment(began)
    )
    state = ContainerState(terminated=ContainerStateTerminated(exit_code=code, reason="Error", finished_at=ended))
    container = ContainerStatus(name=WORKER_CONTAINER, state=state)
    status = PodStatus(phase="Failed", conditions=(condition,), container_statuses=(container,))
    world.pods[pod.name] = replace(pod, status=status)
    world.members.pop(pod.uid, None)
    world.step(10)
    world.control()
    assert world.status.faults[-1].rule == rule


@pytest.mark.parametrize("size", [3, 48])
def test_however_many_nodes_break_at_once_each_pod_is_replaced_once(size: int) -> None:
    world = World(make_job(size), nodes=3 * size).started()
    for slot in range(size):
        world.hardware.append(HardwareEvidence(world.holder(slot).spec.node_name, world.now, "XidError: 79"))
        world.evict(slot)
        world.control()
    world.until("Running", attempt=2)
    assert [action.slot for action in world.actions(CreatePod)][size:] == list(range(size))
    assert len([each for each in world.log if isinstance(each, RecordEvent) and each.reason == "Reattributed"]) <= 1


def test_an_attempt_does_not_begin_while_more_of_its_pods_are_about_to_be_evicted() -> None:
    world = World(make_job(2)).started()
    world.leaving = True
    world.evict(0)
    world.control()
    for _ in range(20):
        world.step()
        world.control()
    assert world.status.phase == "Restarting"
    world.evict(1)
    world.control()
    world.leaving = False
    world.until("Running", attempt=2)
    assert [fault.rule for fault in world.status.faults] == ["evicted"]


def test_evictions_that_never_end_do_not_keep_an_attempt_from_beginning_for_ever() -> None:
    world = World(make_job(2)).started()
    world.leaving = True
    world.evict(0)
    world.until("Running", 90, attempt=2)


def test_a_node_that_is_not_ready_but_talks_is_left_alone() -> None:
    world = World(make_job(2)).started()
    world.node_ready(world.holder(0).spec.node_name, False)
    for _ in range(60):
        world.step()
        world.control()
    assert (world.status.phase, world.status.attempt) == ("Running", 1)


def test_when_most_supervisors_fall_silent_the_api_is_asked_first() -> None:
    world = World(make_job(4)).started()
    for pod in list(world.pods.values()):
        world.members[pod.uid] = replace(world.members[pod.uid], silent_since=world.now, cut=True)
    world.trusted = False
    world.now += 30
    assert not [action for action in world.plan().actions if isinstance(action, WriteStatus)]


def test_a_restarted_controller_does_not_restart_what_runs() -> None:
    world = World(make_job(3)).started()
    writes = len(world.history)
    world.restart_controller()
    for _ in range(60):
        world.control()
        world.step()
    assert (world.status.phase, world.status.attempt) == ("Running", 1)
    assert len(world.history) == writes
    assert all(member.state == "running" for member in world.members.values())


def test_a_supervisor_that_does_not_come_back_after_a_controller_restart_is_replaced() -> None:
    world = World(make_job(3)).started()
    world.restart_controller()
    world.dead.add(world.holder(2).spec.node_name)
    world.until("Running", 120, attempt=2)
    assert world.status.slots_kept == 2


def test_steady_state_writes_nothing() -> None:
    world = World(make_job(3)).started()
    world.control()
    log = len(world.history)
    for _ in range(50):
        world.step()
        world.control()
    assert len(world.history) == log


def test_a_refused_pod_is_explained_and_tried_again() -> None:
    world = World(make_job(4))
    world.quota = 2
    for _ in range(4):
        world.control()
        world.step()
    condition = next(each for each in world.status.conditions if each.type == "Admitted")
    assert (condition.status, condition.reason) == ("False", "PodsRefused")
    assert "exceeded quota" in condition.message
    assert all(not pod.spec.node_name for pod in world.pods.values())  # nothing holds a node
    world.quota = None
    world.until("Running")
    condition = next(each for each in world.status.conditions if each.type == "Admitted")
    assert condition.status == "True"


def test_resumed_job_does_not_count_slots_kept_before_it_was_suspended() -> None:
    """Issue 11: after a fault, a stop and a resume, all pods are new, and "2 of 2 slots kept their pods" was shown."""
    world = World(make_job(2)).started()
    world.exit_rank(1, 1)
    world.until("Running", attempt=2)
    assert world.status.slots_kept == 2
    world.job = replace(world.job, spec=replace(world.job.spec, suspend=True))
    world.until("Suspended")
    world.job = replace(world.job, spec=replace(world.job.spec, suspend=False))
    world.until("Running", attempt=3)
    assert world.status.slots_kept is None


def test_suspend_frees_the_nodes_and_resume_is_a_new_attempt() -> None:
    world = World(make_job(2)).started()
    assert world.job is not None
    world.job = replace(world.job, spec=replace(world.job.spec, suspend=True))
    world.until("Suspended")
    assert world.pods == {}
    world.job = replace(world.job, spec=replace(world.job.spec, suspend=False))
    world.until("Running", attempt=2)
    assert world.status.restarts is None


def test_messages_follow_the_phase_and_count_one_pod_as_one() -> None:
    world = World(make_job(1)).started()
    assert world.job is not None
    world.job = replace(world.job, spec=replace(world.job.spec, suspend=True))
    world.until("Suspended")
    said = [f"{status.phase}: {status.message}" for status in world.history]
    assert said[0] == "Pending: creating 1 pod"
    assert said[-2:] == ["Stopping: its pods are stopping", "Suspended: it holds no nodes"]
    assert "Running: attempt 1 runs on 1 node" in said


def test_an_excluded_node_is_used_again_when_it_is_ready_and_nothing_else_is_free() -> None:
    world = World(make_job(2), nodes=2).started()
    lost = world.holder(1).spec.node_name
    world.kill_node(lost)
    for _ in range(20):
        world.control()
        world.step()
    assert (world.status.phase, world.status.attempt) == ("Restarting", 2)
    world.node_ready(lost, True)
    world.until("Running", 120, attempt=2)
    assert world.holder(1).spec.node_name == lost
    assert world.status.excluded_nodes == ()


def test_a_rank_that_its_node_took_along_is_not_the_cause() -> None:
    world = World(make_job(2, unknownLimit=0), nodes=3).started()
    node = world.holder(1).spec.node_name
    world.exit_rank(1, 137, signal=9)
    world.control()
    assert world.status.faults[-1].rule == "rank-killed"
    del world.nodes[node]
    world.gone(world.holder(1).name)
    world.until("Running", attempt=2)
    assert [(fault.slot, fault.node, fault.rule) for fault in world.status.faults] == [(1, node, "node-deleted")]


def test_a_node_that_refused_a_pod_is_used_again_when_nothing_else_is_free() -> None:
    world = World(make_job(2), nodes=2).started()
    refusing = world.holder(1).spec.node_name
    world.fail_pod(1, "OutOfcpu")
    world.control()
    world.until("Running", 120, attempt=2)
    assert world.holder(1).spec.node_name == refusing


def test_the_time_limit_ends_the_job() -> None:
    world = World(make_job(2, timeLimitSeconds=100)).started()
    assert world.plan().wake_at is not None
    world.now += 101
    world.control()
    assert world.status.phase == "Failed"
    assert "timeLimitSeconds" in world.status.message


def test_an_ended_job_is_deleted_after_its_time_to_live() -> None:
    world = World(make_job(2, ttlSecondsAfterFinished=10)).started()
    world.exit_rank(0, 0)
    world.until("Succeeded")
    assert world.plan().wake_at is not None
    world.now += 11
    world.control()
    assert world.job is None


def test_an_invalid_job_says_what_to_change_and_makes_nothing() -> None:
    world = World(make_job(2, command=[]))
    world.control()
    assert world.pods == {}
    assert "spec.command" in world.status.message
    assert world.plan().actions == ()


def test_supervisors_of_pods_without_slot_are_directed_to_exit() -> None:
    world = World(make_job(2)).started()
    old = world.holder(1)
    world.fail_pod(1, "Evicted")
    world.until("Running", attempt=2)
    assert world.directive is not None
    assert old.uid not in world.directive.slots


@pytest.mark.parametrize("size", [2, 40])
def test_every_fault_is_an_event_and_a_few_status_writes_whatever_the_size(size: int) -> None:
    world = World(make_job(size), nodes=size + 1).started()
    writes = len(world.history)
    world.log.clear()
    world.kill_node(world.holder(1).spec.node_name)
    world.until("Running", attempt=2)
    assert len(world.history) - writes <= API_WRITES_PER_FAULT - 1  # and one more for the first useful step
    assert [action.reason for action in world.actions(RecordEvent)] == ["Restarting", "Running"]
    assert (len(world.actions(DeletePod)), len(world.actions(CreatePod))) == (1, 1)


def test_rank_order_follows_the_network_then_slots() -> None:
    world = World(make_job(4))
    for index, name in enumerate(world.nodes):
        node = world.nodes[name]
        labels = {"topology.kubernetes.io/zone": "b" if index % 2 == 0 else "a"}
        world.nodes[name] = replace(node, metadata=replace(node.metadata, labels=labels))
    world.started()
    assert world.directive is not None
    assert world.directive.run is not None
    assert [host.slot for host in world.directive.run.hosts] == [1, 3, 0, 2]


def test_the_pod_is_what_the_api_server_should_store() -> None:
    job = make_job(1, gpusPerNode=8, rdma={"resource": "rdma/hca", "count": 2}, hostNetwork=True)
    body = build_pod(job, 0, 1, (), PODS)
    worker = body["spec"]["containers"][0]
    assert worker["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/hca": "2"}
    assert worker["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert body["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert body["metadata"]["name"] == "job-0-1"
    assert {each["key"] for each in body["spec"]["tolerations"]} >= {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }


def test_a_report_that_comes_late_of_what_happened_first_decides() -> None:
    world = World(make_job(3)).started()
    world.exit_rank(2, 1, tail="RuntimeError")  # heard of first
    world.control()
    assert world.status.faults[-1].slot == 2
    world.exit_rank(1, 137, signal=9, happened_s_ago=0.3)
    world.control()
    fault, restarts = world.status.faults[-1], world.status.restarts
    assert (fault.slot, fault.node, fault.rule) == (1, world.holder(1).spec.node_name, "rank-killed")
    assert restarts is not None
    assert (restarts.user, restarts.unknown) == (0, 1)


def test_a_report_with_another_machines_wrong_clock_decides_nothing() -> None:
    world = World(make_job(3)).started()
    world.exit_rank(2, 1, tail="RuntimeError")
    world.control()
    world.exit_rank(1, 137, signal=9, happened_s_ago=3600.0)
    world.control()
    assert (world.status.faults[-1].slot, world.status.faults[-1].rule) == (2, "rank-failed")


def test_while_only_the_launcher_has_failed_the_slot_that_was_cut_off_is_named() -> None:
    world = World(make_job(3), nodes=4).started()
    lost = world.holder(2).spec.node_name
    world.kill_node(lost)
    world.now += 0.7
    world.exit_rank(0, 255, rank=-1)
    world.control()
    fault = world.status.faults[-1]
    assert (fault.slot, fault.node, fault.rule) == (2, lost, "launcher-failed")
    assert f"the connection to slot 2 on {lost} broke" in fault.message
    world.until("Running", attempt=2)
    fault = world.status.faults[-1]
    assert (fault.slot, fault.node, fault.rule, fault.slots) == (2, lost, "lost-contact", 1)
    assert world.status.slots_kept == 2


@pytest.mark.parametrize(("mpi", "shell"), [(None, "supervisor"), ({"remoteShell": "sshd"}, "sshd")])
def test_the_plan_names_the_remote_shell(mpi: dict[str, str] | None, shell: str) -> None:
    run = World(make_job(2, mpi=mpi)).started().directive.run
    assert run is not None
    assert run.remote_shell == shell
