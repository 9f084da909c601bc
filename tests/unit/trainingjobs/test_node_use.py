"""Issue 11.5: a job takes whole nodes by default; how many GPUs that is, is decided once and recorded."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from muster.api.placement import PlacedSlot, Placement, PlacementSpec, PlacementStatus
from muster.api.training_job_status import NodeUse, TrainingJobStatus
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.struct import from_dict
from muster.trainingjobs.plan import DeletePod
from muster.trainingjobs.pods.node_use import NodeCounts, gpu_counts, node_use
from muster.trainingjobs.pods.pod import build_pod
from muster.trainingjobs.snapshot import Wait
from tests.unit.trainingjobs.world import PODS, World, make_job

GPU = "nvidia.com/gpu"
WHOLE = "muster.dev/whole-node"


def node(name: str, gpus: int = 8, *, broken: int = 0, taints: Any = (), **labels: str) -> Node:
    have = {GPU: str(gpus)} if gpus else {}
    left = {GPU: str(gpus - broken)} if gpus else {}
    return from_dict(
        {
            "metadata": {"name": name, "uid": name, "labels": {key.replace("_", "/"): v for key, v in labels.items()}},
            "spec": {"taints": list(taints)},
            "status": {"capacity": have, "allocatable": left, "conditions": [{"type": "Ready", "status": "True"}]},
        },
        Node,
    )


def test_one_gpu_count_is_taken_as_a_whole_and_recorded() -> None:
    assert node_use(make_job(), {8: 4}) == NodeUse(sharing="Exclusive", gpus_per_node=8, node_gpus=8)


def test_nodes_without_gpus_are_taken_as_a_whole() -> None:
    assert node_use(make_job(), {0: 4}) == NodeUse(sharing="Exclusive", gpus_per_node=0, node_gpus=0)


def test_several_gpu_counts_make_the_job_ask_for_one() -> None:
    wait = node_use(make_job(), {4: 2, 8: 6})
    assert isinstance(wait, Wait)
    assert wait.reason == "GpusPerNodeMissing"
    assert "4 GPUs (2 nodes) or 8 GPUs (6 nodes)" in wait.message
    assert "--gpus 8 (spec.gpusPerNode: 8)" in wait.message


def test_without_nodes_the_number_is_not_known() -> None:
    wait = node_use(make_job(), {})
    assert isinstance(wait, Wait)
    assert wait.reason == "NoNodes"


@pytest.mark.parametrize(
    ("asked", "counts", "expected"),
    [
        (4, {8: 9}, 8),  # the other four stay idle
        (4, {4: 2, 8: 9}, 4),
        (4, {4: 1, 8: 9}, 8),  # not enough nodes of the smaller kind
        (4, {4: 1}, 4),
        (8, {4: 9}, None),  # the scheduler says that no node is large enough
        (0, {4: 2, 8: 9}, None),
        (8, {}, None),
    ],
)
def test_a_gang_that_names_its_gpus_uses_nodes_of_one_count(
    asked: int, counts: dict[int, int], expected: int | None
) -> None:
    found = node_use(make_job(2, gpusPerNode=asked), counts)
    assert found == NodeUse(sharing="Exclusive", gpus_per_node=asked, node_gpus=expected)


def test_sharing_is_asked_for() -> None:
    assert node_use(make_job(nodeSharing="Shared"), {4: 1, 8: 1}) == NodeUse(sharing="Shared")
    assert node_use(make_job(nodeSharing="Shared", gpusPerNode=4), {8: 1}) == NodeUse(sharing="Shared", gpus_per_node=4)


def test_gpus_in_the_template_count_as_asked_for() -> None:
    worker = {"name": "worker", "resources": {"limits": {GPU: "2"}}}
    found = node_use(make_job(template={"spec": {"containers": [worker]}}), {4: 1, 8: 3})
    assert isinstance(found, NodeUse)
    assert found.gpus_per_node == 2


def test_a_job_that_began_before_this_was_recorded_keeps_sharing() -> None:
    job = replace(make_job(gpusPerNode=4), status=TrainingJobStatus(attempt=3))
    assert not job.exclusive
    assert WHOLE not in build_pod(job, 0, 4, (), PODS)["metadata"]["annotations"]
    assert node_use(job, {8: 4}) == NodeUse(sharing="Shared", gpus_per_node=4)


def test_decided_node_use_stays_when_the_nodes_change() -> None:
    use = NodeUse(sharing="Exclusive", gpus_per_node=8, node_gpus=8)
    job = replace(make_job(), status=TrainingJobStatus(attempt=1, node_use=use))
    assert node_use(job, {4: 2, 16: 2}) == use


def test_a_suspended_job_whose_spec_was_changed_is_decided_again() -> None:
    use = NodeUse(sharing="Exclusive", gpus_per_node=8, node_gpus=8)
    job = replace(make_job(gpusPerNode=4), status=TrainingJobStatus(attempt=1, node_use=use))
    assert node_use(job, {8: 2}) == NodeUse(sharing="Exclusive", gpus_per_node=4, node_gpus=8)


def test_pods_and_ranks_follow_what_was_recorded() -> None:
    use = NodeUse(sharing="Exclusive", gpus_per_node=8, node_gpus=8)
    job = replace(make_job(), status=TrainingJobStatus(attempt=1, node_use=use))
    pod = build_pod(job, 0, 1, (), PODS)
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {GPU: "8"}
    assert pod["metadata"]["annotations"][WHOLE] == f"{GPU}=8"
    assert job.ranks == 8


def test_a_template_cannot_claim_a_whole_node_for_a_job_that_shares() -> None:
    job = make_job(nodeSharing="Shared", template={"metadata": {"annotations": {WHOLE: "any"}}})
    assert WHOLE not in build_pod(job, 0, 1, (), PODS)["metadata"]["annotations"]


CONTROL_PLANE = ({"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},)
OTHER_TEAM = ({"key": "muster.dev/team", "value": "b", "effect": "NoSchedule"},)
UNREADY = ({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},)


def test_nodes_that_the_job_cannot_use_for_good_do_not_count() -> None:
    nodes = [node("gpu"), node("main", 0, taints=CONTROL_PLANE), node("sick", broken=1, taints=UNREADY)]
    assert gpu_counts(make_job(), nodes) == {8: 2}
    assert gpu_counts(
        make_job(template={"spec": {"nodeSelector": {"kind": "a"}}}), [*nodes, node("a", 4, kind="a")]
    ) == {4: 1}
    team = {"metadata": {"labels": {"muster.dev/team": "a"}}}
    mixed = [node("ours"), node("theirs", 4, taints=OTHER_TEAM)]
    assert gpu_counts(make_job(template=team), mixed) == {8: 1}
    assert gpu_counts(make_job(template=team, borrow=True), mixed) == {8: 1, 4: 1}


def test_where_there_are_pools_only_their_nodes_count() -> None:
    assert gpu_counts(make_job(), [node("gpu", muster_x="", **{"muster.dev_pool": "a"}), node("cpu", 0)]) == {8: 1}


def test_a_heartbeat_does_not_count_the_nodes_again() -> None:
    nodes = {"a": node("a")}
    counts = NodeCounts(lambda: nodes.values())
    assert counts.of(make_job()) == {8: 1}
    assert not counts.changed(nodes["a"], node("a"))
    nodes["b"] = node("b", 4)
    assert counts.changed(None, nodes["b"])
    assert counts.of(make_job()) == {8: 1, 4: 1}


def test_a_job_that_waits_for_its_gpu_count_says_so_once_and_starts_when_it_is_known() -> None:
    world = World(make_job(2), nodes=0)
    world.nodes = {"n0": node("n0"), "n1": node("n1", 4)}
    for _ in range(3):
        world.control()
        world.step()
    assert world.status.phase == "Pending"
    assert world.status.attempt == 0
    (condition,) = world.status.conditions
    assert (condition.type, condition.status, condition.reason) == ("Admitted", "False", "GpusPerNodeMissing")
    assert len(world.history) == 1
    assert not world.pods
    world.nodes = {"n0": node("n0"), "n1": node("n1")}
    world.until("Running")
    assert world.status.node_use == NodeUse(sharing="Exclusive", gpus_per_node=8, node_gpus=8)


def test_a_wiped_status_does_not_make_a_running_job_share_its_nodes() -> None:
    world = World(make_job(2), nodes=0)
    world.nodes = {name: node(name) for name in ("n0", "n1", "n2")}
    world.started()
    use = world.status.node_use
    assert world.job is not None
    world.job = replace(world.job, status=TrainingJobStatus())
    world.until("Running", 120.0)
    assert world.status.node_use == use


def gang_of_two() -> World:
    """It runs on n0 and n1, which have 2 GPUs each, as do the spare nodes n2 and n3."""
    world = World(make_job(2), nodes=0)
    world.nodes = {f"n{number}": node(f"n{number}", 2) for number in range(4)}
    return world.started()


def slots_replaced_when_the_pod_of_slot_1_is_deleted(world: World) -> set[str]:
    """The pods that the controller deletes."""
    world.gone(world.holder(1).name)
    world.control()
    assert world.status.attempt == 2
    return {action.name for action in world.actions(DeletePod)}


def test_a_slot_on_a_node_that_came_back_with_other_gpus_is_not_kept() -> None:
    world = gang_of_two()
    world.nodes["n0"] = node("n0", 7)
    world.control()
    assert world.status.attempt == 1, "the running attempt continues"
    assert slots_replaced_when_the_pod_of_slot_1_is_deleted(world) == {"job-0-1"}
    restarts = world.status.restarts
    world.until("Running", attempt=2)
    assert world.status.slots_kept == 0
    assert world.status.restarts == restarts
    assert len(world.status.faults) == 1


def test_a_slot_on_a_node_whose_gpus_are_not_reported_for_a_while_is_kept() -> None:
    world = gang_of_two()
    world.nodes["n0"] = node("n0", 0)
    assert slots_replaced_when_the_pod_of_slot_1_is_deleted(world) == set()
    world.until("Running", attempt=2)
    assert world.status.slots_kept == 1


@pytest.mark.parametrize(("uid", "deleted"), [("n0", set()), ("another", {"job-0-1"})])
def test_a_slot_is_kept_on_the_node_that_was_chosen_and_on_no_other_of_its_name(uid: str, deleted: set[str]) -> None:
    world = gang_of_two()
    slots = tuple(PlacedSlot(slot=number, node=f"n{number}", node_uid=f"n{number}") for number in range(2))
    world.placement = Placement(
        metadata=ObjectMeta(name="job", namespace="ns"),
        spec=PlacementSpec(gang="job", gang_uid="job-uid", size=2, slots=slots),
        status=PlacementStatus(phase="Bound"),
    )
    world.nodes["n0"] = replace(world.nodes["n0"], metadata=ObjectMeta(name="n0", uid=uid))
    assert slots_replaced_when_the_pod_of_slot_1_is_deleted(world) == deleted
    assert world.status.excluded_nodes == ()
