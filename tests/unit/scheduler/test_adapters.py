"""Gangs from anywhere: what each adapter makes of pods and objects, and the plans that come of it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from muster.kube.struct import from_dict
from muster.scheduler.adapters import SOURCES, membership
from muster.scheduler.adapters.job import index_count
from muster.scheduler.adapters.membership import Membership, Role, Shape, Workload, WorkloadRef
from muster.scheduler.plan import Bind, DeletePlacement, MarkBound, Plan, Refuse, WritePlacement
from muster.scheduler.podwire import SchedulingPod
from muster.scheduler.reasons import Reason, Why
from muster.scheduler.state import ClusterState
from tests.unit.scheduler.world import World

JOB = "batch/v1", "Job"
STATEFULSET = "apps/v1", "StatefulSet"


class Foreign(World):
    """A world in which objects of others exist too, made and changed as their JSON."""

    def __init__(self, **settings: float) -> None:
        super().__init__(**settings)
        self.objects: dict[tuple[str, str], Workload] = {}
        self._uids = itertools.count(1)

    def set_object(self, source: str, name: str, spec: dict[str, Any], *, uid: str = "", **status: Any) -> Workload:
        old = self.objects.get((source, name))
        uid = uid or (old.ref.uid if old is not None else f"uid-{name}-{next(self._uids)}")
        workload = read(source, name, spec, uid, **status)
        self.objects[source, name] = workload
        self.state.set_workload(workload, self.now)
        return workload

    def remove_object(self, source: str, name: str) -> None:
        self.state.remove_workload(self.objects.pop((source, name)).ref)

    def owner(self, source: str, name: str) -> dict[str, Any]:
        workload = self.objects[source, name]
        return {
            "apiVersion": workload.owner.api_version,
            "kind": workload.owner.kind,
            "name": name,
            "uid": workload.ref.uid,
            "controller": True,
        }

    def listed(self) -> ClusterState:
        """What one knows who has just listed everything: pods first, objects last."""
        state = super().listed()
        for workload in self.objects.values():
            state.set_workload(workload, self.now)
        for source in SOURCES:
            state.workloads_listed(source)
        return state

    def ran_on(self, *pods: str) -> dict[str, str]:
        found = {pod.name: pod.spec.node_name for pod in self.pods.values() if pod.spec.node_name}
        return {name: found[name] for name in pods} if pods else found

    def waits(self, gang: str) -> Reason | None:
        return self.run().waiting.get(self.gang(gang).key)

    # Pods as the controllers of others make them

    def job_pod(self, job: str, index: int, suffix: str = "a", **meta: Any) -> SchedulingPod:
        labels = {"batch.kubernetes.io/job-completion-index": str(index), "batch.kubernetes.io/job-name": job}
        return self.add_pod(f"{job}-{index}-{suffix}", {}, labels=labels, owners=[self.owner("job", job)], **meta)

    def set_pod_of(self, name: str, index: int, **meta: Any) -> SchedulingPod:
        labels = {"apps.kubernetes.io/pod-index": str(index)}
        return self.add_pod(f"{name}-{index}", {}, labels=labels, owners=[self.owner("statefulset", name)], **meta)

    def grouped(self, group: str, name: str, **meta: Any) -> SchedulingPod:
        return self.add_pod(name, {}, labels={"scheduling.x-k8s.io/pod-group": group}, **meta)

    def mpi_pod(self, job: str, role: str, index: int = 0, suffix: str = "") -> SchedulingPod:
        prefix = "training.kubeflow.org/"
        labels = {f"{prefix}operator-name": "mpi-operator", f"{prefix}job-name": job, f"{prefix}job-role": role}
        if role == "launcher":
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": f"{job}-launcher", "uid": "j", "controller": True}
            return self.add_pod(f"{job}-launcher{suffix}", {"gpus": 0}, labels=labels, owners=[owner])
        labels[f"{prefix}replica-index"] = str(index)
        return self.add_pod(f"{job}-worker-{index}", {}, labels=labels, owners=[self.owner("mpijob", job)])

    def ray_pod(self, cluster: str, name: str, group: str = "") -> SchedulingPod:
        labels = {"ray.io/cluster": cluster, "ray.io/node-type": "worker" if group else "head", "ray.io/group": group}
        spec = {} if group else {"gpus": 0}
        return self.add_pod(name, spec, labels=labels, owners=[self.owner("raycluster", cluster)])


def read(source: str, name: str, spec: dict[str, Any], uid: str = "u", **status: Any) -> Workload:
    adapter = SOURCES[source]
    body = {"metadata": {"name": name, "namespace": "default", "uid": uid}, "spec": spec, "status": status}
    return adapter.workload(from_dict(body, adapter.kind))


def pod(labels: dict[str, str] | None = None, **changes: Any) -> SchedulingPod:
    meta = {"name": "p", "namespace": "default", "uid": "p-uid", "labels": labels or {}, **changes.pop("meta", {})}
    return from_dict({"metadata": meta, "spec": {"schedulerName": "muster", **changes}}, SchedulingPod)


def owned(api_version: str, kind: str, *, controller: bool = True) -> dict[str, Any]:
    owner = {"apiVersion": api_version, "kind": kind, "name": "o", "uid": "o-uid", "controller": controller}
    return {"ownerReferences": [owner]}


def placements(plan: Plan) -> list[dict[int, str]]:
    """Slot -> node of each placement that a plan writes."""
    writes = [action for action in plan.actions if isinstance(action, WritePlacement)]
    return [{slot.slot: slot.node for slot in action.placement.spec.slots} for action in writes]


# Pods


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(
            pod({"muster.dev/gang": "g", "muster.dev/slot": "1", "batch.kubernetes.io/job-completion-index": "4"},
                meta={**owned(*JOB), "annotations": {"muster.dev/gang-size": "2", "muster.dev/gang-uid": "u"}}),
            Membership("default/g/u", "g", "u", 2, 1),
            id="our label goes before everything",
        ),
        pytest.param(
            pod({"scheduling.x-k8s.io/pod-group": "other"}, schedulingGroup={"podGroupName": "pg"}),
            Membership("default/podgroup.pg/", "podgroup.pg", "", 0, -1,
                       workload=WorkloadRef("podgroup", "default", "pg")),
            id="the native group goes before the label",
        ),
        pytest.param(
            pod({"scheduling.x-k8s.io/pod-group": "pg"}, meta=owned(*STATEFULSET)),
            Membership("default/pod-group.pg/", "pod-group.pg", "", 0, -1,
                       workload=WorkloadRef("pod-group", "default", "pg")),
            id="a group goes before the shape",
        ),
        pytest.param(
            pod({"batch.kubernetes.io/job-completion-index": "4"}, meta=owned(*JOB)),
            Membership("default/job.o/o-uid", "job.o", "o-uid", 0, -1,
                       workload=WorkloadRef("job", "default", "o", "o-uid"), position=(4,)),
            id="indexed job",
        ),
        pytest.param(
            pod({"apps.kubernetes.io/pod-index": "2"}, meta=owned(*STATEFULSET)),
            Membership("default/statefulset.o/o-uid", "statefulset.o", "o-uid", 0, -1,
                       workload=WorkloadRef("statefulset", "default", "o", "o-uid"), position=(2,)),
            id="stateful set",
        ),
        pytest.param(
            pod({"jobset.sigs.k8s.io/jobset-name": "js", "jobset.sigs.k8s.io/replicatedjob-name": "workers",
                 "jobset.sigs.k8s.io/job-index": "1", "batch.kubernetes.io/job-completion-index": "3",
                 "jobset.sigs.k8s.io/jobset-uid": "js-uid", "jobset.sigs.k8s.io/restart-attempt": "2"},
                meta=owned(*JOB)),
            Membership("default/jobset.js/js-uid", "jobset.js", "js-uid", 0, -1, 2,
                       workload=WorkloadRef("jobset", "default", "js", "js-uid"), role="workers", position=(1, 3)),
            id="job set, before the job it made",
        ),
        pytest.param(
            pod({"training.kubeflow.org/operator-name": "mpi-operator", "training.kubeflow.org/job-name": "m",
                 "training.kubeflow.org/job-role": "launcher"}, meta=owned(*JOB)),
            Membership("default/mpijob.m/", "mpijob.m", "", 0, -1,
                       workload=WorkloadRef("mpijob", "default", "m"), role="launcher", position=(0,)),
            id="launcher",
        ),
        pytest.param(
            pod({"ray.io/cluster": "o", "ray.io/node-type": "worker", "ray.io/group": "big"},
                meta=owned("ray.io/v1", "RayCluster")),
            Membership("default/raycluster.o/o-uid", "raycluster.o", "o-uid", 0, -1,
                       workload=WorkloadRef("raycluster", "default", "o", "o-uid"), role="group/big"),
            id="ray worker",
        ),
    ],
)  # fmt: skip
def test_a_pod_says_where_it_belongs(made: SchedulingPod, expected: Membership) -> None:
    assert membership(made) == expected


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(pod(meta=owned(*JOB)), id="a job whose pods have no index"),
        pytest.param(pod({"batch.kubernetes.io/job-completion-index": "4"}), id="an index and no job"),
        pytest.param(pod(meta=owned("apps/v1", "ReplicaSet")), id="a replica set"),
        pytest.param(pod({"training.kubeflow.org/job-name": "m", "training.kubeflow.org/job-role": "worker",
                          "training.kubeflow.org/operator-name": "pytorchjob-controller"}), id="another operator"),
        pytest.param(pod({"apps.kubernetes.io/pod-index": "2"}, meta=owned(*STATEFULSET, controller=False)),
                     id="an owner that does not control it"),
    ],
)  # fmt: skip
def test_other_pods_are_single(made: SchedulingPod) -> None:
    found = membership(made)
    assert found is not None
    assert found.single


def test_pods_of_other_schedulers_are_none_of_ours() -> None:
    assert membership(pod({"scheduling.x-k8s.io/pod-group": "pg"}, schedulerName="default-scheduler")) is None


# Objects


@pytest.mark.parametrize(
    ("source", "spec", "roles"),
    [
        ("pod-group", {"minMember": 3}, {"": Role(3, 3, None)}),
        ("podgroup", {"schedulingPolicy": {"gang": {"minCount": 4}}}, {"": Role(4, 4, None)}),
        ("podgroup", {"schedulingPolicy": {"basic": {}}}, {"": Role(1, 1, None)}),
        ("job", {"parallelism": 4, "completions": 4}, {"": Role(4, 4, 4)}),
        ("job", {"parallelism": 4, "completions": 9}, {"": Role(4, 4, 4)}),
        ("job", {"parallelism": 9, "completions": 4}, {"": Role(4, 4, 4)}),
        ("statefulset", {"replicas": 3, "podManagementPolicy": "Parallel"}, {"": Role(3, 3, 3)}),
        ("statefulset", {"replicas": 3, "podManagementPolicy": "OrderedReady"}, {"": Role(1, 3, 3)}),
        (
            "jobset",
            {"replicatedJobs": [
                {"name": "driver", "template": {"spec": {"parallelism": 1, "completions": 1}}},
                {"name": "workers", "replicas": 2, "template": {"spec": {"parallelism": 4, "completions": 4}}}]},
            {"driver": Role(1, 1, 1), "workers": Role(8, 8, 8)},
        ),
        (
            "jobset",
            {"startupPolicy": {"startupPolicyOrder": "InOrder"},
             "replicatedJobs": [{"name": "driver"}, {"name": "workers", "replicas": 2}]},
            {"driver": Role(1, 1, 1), "workers": Role(0, 2, 2)},
        ),
        (
            "mpijob",
            {"mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": 4}}},
            {"launcher": Role(1, 1, 1), "worker": Role(4, 4, 4)},
        ),
        (
            "mpijob",
            {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 4}},
             "runPolicy": {"schedulingPolicy": {"minAvailable": 3}}},
            {"launcher": Role(1, 1, 1), "worker": Role(2, 2, 4)},
        ),
        (
            "mpijob",
            {"launcherCreationPolicy": "WaitForWorkersReady",
             "mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": 4}}},
            {"launcher": Role(0, 1, 1), "worker": Role(4, 4, 4)},
        ),
        (
            "raycluster",
            {"workerGroupSpecs": [{"groupName": "big", "replicas": 2, "minReplicas": 1, "numOfHosts": 2}]},
            {"head": Role(1, 1, 1), "group/big": Role(4, 4, 4)},
        ),
        (
            "raycluster",
            {"enableInTreeAutoscaling": True,
             "workerGroupSpecs": [{"groupName": "big", "replicas": 3, "minReplicas": 1}]},
            {"head": Role(1, 1, 1), "group/big": Role(1, 1, 3)},
        ),
    ],
)  # fmt: skip
def test_an_object_says_how_many_there_are(source: str, spec: dict[str, Any], roles: dict[str, Role]) -> None:
    assert read(source, "x", spec).says.shape == Shape(roles)


@pytest.mark.parametrize(
    ("source", "spec", "status"),
    [
        ("job", {"suspend": True}, {}),
        ("job", {}, {"conditions": [{"type": "Complete", "status": "True"}]}),
        ("jobset", {}, {"conditions": [{"type": "Failed", "status": "True"}]}),
        ("mpijob", {"runPolicy": {"suspend": True}}, {}),
        ("mpijob", {}, {"conditions": [{"type": "Succeeded", "status": "True"}]}),
        ("raycluster", {"suspend": True}, {}),
        ("statefulset", {"replicas": 0}, {}),
    ],
)
def test_an_object_that_has_ended_needs_no_nodes(source: str, spec: dict[str, Any], status: dict[str, Any]) -> None:
    assert read(source, "x", spec, **status).says.ended


def test_indexes_that_were_given_up_are_not_waited_for() -> None:
    assert [index_count(text) for text in ("", "3", "1,3-5,9")] == [0, 1, 5]
    assert read("job", "x", {"parallelism": 9, "completions": 9}, failedIndexes="1,3-5").says.shape.minimum == 5


IGNORE = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
FAIL_ON_CODES = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0, 1]}}


@pytest.mark.parametrize(
    ("rules", "warned"),
    [
        ([IGNORE], ""),
        ([IGNORE, FAIL_ON_CODES], ""),
        ([FAIL_ON_CODES, IGNORE], "rule 0 of its podFailurePolicy (FailJob)"),
        ([{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}, IGNORE], ""),
        ([{"action": "Count", "onPodConditions": [{"type": "DisruptionTarget"}]}], "(Count)"),
        ([{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [143]}}], "(FailIndex)"),
        ([{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}], "against its backoffLimit"),
    ],
)
def test_a_job_is_warned_where_a_release_would_count_as_a_failure(rules: list[dict[str, Any]], warned: str) -> None:
    spec = {
        "completionMode": "Indexed",
        "podFailurePolicy": {"rules": rules},
        "template": {"spec": {"schedulerName": "muster"}},
    }
    said = read("job", "x", spec).says.warning
    assert warned in said
    assert bool(said) == bool(warned)
    part = {"name": "workers", "template": {"spec": spec}}
    assert bool(read("jobset", "x", {"replicatedJobs": [part]}).says.warning) == bool(warned)
    assert not read("job", "x", {**spec, "template": {"spec": {"schedulerName": "other"}}}).says.warning


# Plans


def test_an_indexed_job_is_placed_whole_slots_are_its_indexes_and_the_placement_is_its() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    job = world.set_object("job", "train", {"parallelism": 3, "completions": 3})
    for index in (2, 0):
        world.job_pod("train", index)
    assert world.waits("job.train") == Reason(Why.WAITING_FOR_PODS, 3, 2)
    world.job_pod("train", 1)
    (write,) = world.decide().actions
    assert isinstance(write, WritePlacement)
    placement = write.placement
    assert (placement.name, placement.spec.gang, placement.spec.gang_uid) == ("job.train", "job.train", job.ref.uid)
    assert placement.spec.size == 3
    (owner,) = placement.metadata.owner_references
    assert (owner.kind, owner.api_version, owner.uid, owner.controller) == ("Job", "batch/v1", job.ref.uid, None)
    world.carry_out(write)
    binds = [action for action in world.decide().actions if isinstance(action, Bind)]
    assert [(bind.pod, bind.slot) for bind in binds] == [("train-0-a", 0), ("train-1-a", 1), ("train-2-a", 2)]
    for bind in binds:
        world.carry_out(bind)
    (mark,) = world.decide().actions
    assert isinstance(mark, MarkBound)


def test_members_of_foreign_gangs_share_nodes() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("pod-group", "pg", {"minMember": 4})
    for number in range(4):
        world.add_pod(f"p{number}", {"gpus": 2}, labels={"scheduling.x-k8s.io/pod-group": "pg"})
    world.run()
    assert set(world.ran_on().values()) == {"a"}


def test_a_gang_waits_for_its_object_and_says_which() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    for name in ("p0", "p1"):
        world.grouped("pg", name)
    reason = world.waits("pod-group.pg")
    assert reason is not None
    assert reason.why is Why.WAITING_FOR_WORKLOAD
    assert "PodGroup default/pg (scheduling.x-k8s.io/v1alpha1)" in reason.text()
    assert "pods so far: 2" in reason.text()
    world.set_object("pod-group", "pg", {"minMember": 2})
    world.run()
    assert world.ran_on().keys() == {"p0", "p1"}
    assert list(world.placements) == ["default/pod-group.pg"]


def test_pods_of_a_native_group_go_together() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("podgroup", "pg", {"schedulingPolicy": {"gang": {"minCount": 2}}})
    world.add_pod("p0", {"schedulingGroup": {"podGroupName": "pg"}})
    assert world.waits("podgroup.pg") == Reason(Why.WAITING_FOR_PODS, 2, 1)
    world.add_pod("p1", {"schedulingGroup": {"podGroupName": "pg"}})
    world.run()
    assert len(world.ran_on()) == 2


def test_an_elastic_gang_starts_with_its_minimum_and_the_rest_joins_when_there_is_room() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    world.set_object("pod-group", "pg", {"minMember": 2})
    for number in range(5):
        world.grouped("pg", f"p{number}")
    assert placements(world.decide()) == [{0: "a", 1: "b"}]
    world.run()
    assert world.ran_on().keys() == {"p0", "p1", "p2"}
    assert world.placements["default/pod-group.pg"].spec.size == 3
    world.add_nodes("d")
    world.run()
    assert world.ran_on().keys() == {"p0", "p1", "p2", "p3"}
    assert world.decide().actions == ()


def test_the_rest_never_starts_without_the_minimum() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("pod-group", "pg", {"minMember": 3})
    for number in range(5):
        world.grouped("pg", f"p{number}")
    plan = world.run()
    assert world.ran_on() == {}
    assert plan.waiting[world.gang("pod-group.pg").key] == Reason(Why.MORE_THAN_THE_CLUSTER, 3, 2)


def test_a_pod_beyond_the_minimum_stands_in_for_a_member_that_went_before_the_start() -> None:
    world = Foreign()
    world.set_object("pod-group", "pg", {"minMember": 2})
    for number in range(3):
        world.grouped("pg", f"p{number}")
    world.run()
    world.remove_pod("p0")
    world.add_nodes("a", "b")
    world.run()
    assert world.ran_on().keys() == {"p1", "p2"}


def test_pods_beyond_the_minimum_never_take_what_a_gang_waits_for() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    world.set_object("pod-group", "pg", {"minMember": 1})
    world.grouped("pg", "p0")
    world.run()
    world.now += 1
    world.add_gang("head", 3)
    world.grouped("pg", "p1")
    plan = world.run()
    assert world.ran_on().keys() == {"p0"}
    assert plan.waiting[world.gang("head").key].why is Why.NOT_ENOUGH_NODES
    assert world.gang("pod-group.pg").key not in plan.waiting


def test_a_pod_beyond_the_minimum_that_lost_its_node_joins_again_and_delays_nobody() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("pod-group", "pg", {"minMember": 1})
    world.grouped("pg", "p0")
    world.grouped("pg", "p1")
    world.run()
    lost = world.ran_on("p1")["p1"]
    world.remove_pod("p1")
    world.remove_node(lost)
    world.grouped("pg", "p1")
    world.run()
    assert world.placements["default/pod-group.pg"].spec.size == 1
    world.add_gang("next", 1)
    world.add_nodes("c", "d")
    world.run()
    assert world.nodes_of("next").keys() == {0}
    assert world.ran_on("p0", "p1").keys() == {"p0", "p1"}


def test_a_member_that_is_made_anew_takes_the_slot_that_was_left() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    world.set_object("raycluster", "ray", {"workerGroupSpecs": [{"groupName": "g", "replicas": 2}]})
    world.ray_pod("ray", "ray-head-x")
    for suffix in ("p", "q"):
        world.ray_pod("ray", f"ray-g-{suffix}", "g")
    world.run()
    before = world.slots_of("raycluster.ray")
    left = world.ran_on("ray-g-p")["ray-g-p"]
    world.terminate("ray-g-p")
    world.ray_pod("ray", "ray-g-z", "g")
    assert world.waits("raycluster.ray") == Reason(Why.WAITING_FOR_OLD_POD, 1, detail="ray-g-p")
    world.remove_pod("ray-g-p")
    world.run()
    assert world.ran_on("ray-g-z") == {"ray-g-z": left}
    assert world.slots_of("raycluster.ray") == before


def test_of_an_autoscaled_ray_cluster_what_is_scaled_away_is_given_back() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    group = {"groupName": "g", "replicas": 3, "minReplicas": 1}
    spec = {"enableInTreeAutoscaling": True, "workerGroupSpecs": [group]}
    world.set_object("raycluster", "ray", spec)
    world.ray_pod("ray", "ray-head-x")
    world.ray_pod("ray", "ray-g-p", "g")
    world.run()
    assert len(world.ran_on()) == 2
    for suffix in ("q", "r"):
        world.ray_pod("ray", f"ray-g-{suffix}", "g")
    world.run()
    assert len(world.ran_on()) == 4
    world.remove_pod("ray-g-p")
    group["replicas"] = 2
    world.set_object("raycluster", "ray", spec)
    world.run()
    assert len(world.slots_of("raycluster.ray")) == 3
    world.add_gang("next", 1)
    world.run()
    assert len(world.nodes_of("next")) == 1


def test_a_launcher_is_a_member_and_nothing_starts_without_it() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("mpijob", "mpi", {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 2}}})
    for index in (1, 0):
        world.mpi_pod("mpi", "worker", index)
    assert world.waits("mpijob.mpi") == Reason(Why.WAITING_FOR_PODS, 3, 2)
    world.mpi_pod("mpi", "launcher")
    world.run()
    gang = world.gang("mpijob.mpi")
    assert {slot: member.name for slot, member in sorted(gang.current.items())} == {
        0: "mpi-launcher", 1: "mpi-worker-0", 2: "mpi-worker-1"
    }  # fmt: skip
    assert world.ran_on().keys() == {"mpi-launcher", "mpi-worker-0", "mpi-worker-1"}


def test_a_launcher_without_room_keeps_its_workers_from_starting() -> None:
    world = Foreign()
    world.add_nodes("a", "b", room={"cpu": "1"})
    world.set_object("mpijob", "mpi", {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 2}}})
    for index in range(2):
        world.mpi_pod("mpi", "worker", index)
    world.mpi_pod("mpi", "launcher")
    world.run()
    assert world.ran_on() == {}


def test_a_launcher_that_comes_when_the_workers_run_does_not_keep_them_waiting_mpi_operator_608() -> None:
    """mpi-operator counts a launcher that it makes only once the workers run; we start them and keep its turn."""
    world = Foreign()
    world.add_nodes("a", "b")
    spec = {
        "launcherCreationPolicy": "WaitForWorkersReady",
        "mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 2}},
    }
    world.set_object("mpijob", "mpi", spec)
    for index in range(2):
        world.mpi_pod("mpi", "worker", index)
    world.run()
    assert len(world.ran_on()) == 2
    world.mpi_pod("mpi", "launcher")
    world.run()
    assert len(world.ran_on()) == 3
    assert world.slots_of("mpijob.mpi").keys() == {0, 1, 2}


def test_a_job_set_is_one_gang_over_all_its_jobs_and_restarts_as_one() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    parts = [
        {"name": "driver", "template": {"spec": {"parallelism": 1, "completions": 1}}},
        {"name": "workers", "replicas": 2, "template": {"spec": {"parallelism": 1, "completions": 1}}},
    ]
    world.set_object("jobset", "js", {"replicatedJobs": parts})

    def add(part: str, job: int, attempt: int) -> None:
        prefix = "jobset.sigs.k8s.io/"
        labels = {
            f"{prefix}jobset-name": "js",
            f"{prefix}replicatedjob-name": part,
            f"{prefix}job-index": str(job),
            f"{prefix}restart-attempt": str(attempt),
            "batch.kubernetes.io/job-completion-index": "0",
        }
        world.add_pod(f"js-{part}-{job}-0-{attempt}", {}, labels=labels)

    def add_all(attempt: int) -> None:
        for part, job in (("workers", 1), ("driver", 0), ("workers", 0)):
            add(part, job, attempt)

    add_all(0)
    world.run()
    before = world.ran_on()
    assert len(set(before.values())) == 3
    world.finish("js-driver-0-0-0")
    world.terminate("js-workers-0-0-0")
    world.remove_pod("js-workers-0-0-0")
    add("workers", 0, 1)
    assert world.waits("jobset.js") == Reason(Why.WAITING_FOR_PODS, 3, 2), "the driver has to run again as well"
    for name in ("js-driver-0-0-0", "js-workers-1-0-0"):
        world.remove_pod(name)
    add("driver", 0, 1)
    add("workers", 1, 1)
    world.run()
    assert {name.removesuffix("-1"): node for name, node in world.ran_on().items()} == {
        name.removesuffix("-0"): node for name, node in before.items()
    }


def test_an_index_that_is_done_is_not_waited_for_kubernetes_142330() -> None:
    """Native gang scheduling waits for minCount pods though an index has finished; what is done counts here."""
    world = Foreign()
    world.add_nodes("a", "b", "c")
    world.set_object("job", "train", {"parallelism": 3, "completions": 3})
    for index in range(3):
        world.job_pod("train", index)
    world.run()
    before = world.ran_on()
    world.finish("train-2-a")
    world.remove_pod("train-1-a")
    world.job_pod("train", 1, "b")
    world.run()
    assert world.ran_on("train-1-b") == {"train-1-b": before["train-1-a"]}
    world.forget_all()
    world.remove_pod("train-0-a")
    world.job_pod("train", 0, "b")
    world.run()
    assert world.ran_on("train-0-b") == {"train-0-b": before["train-0-a"]}


def test_the_node_of_an_index_that_is_done_is_free_for_others() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("job", "train", {"parallelism": 2, "completions": 2})
    for index in range(2):
        world.job_pod("train", index)
    world.run()
    world.finish("train-0-a")
    world.add_gang("next", 1)
    world.run()
    assert world.nodes_of("next") == {0: "a"}


def test_later_indexes_take_the_slots_of_earlier_ones() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("job", "sweep", {"parallelism": 2, "completions": 5})
    for index in range(2):
        world.job_pod("sweep", index)
    world.run()
    for index in range(3):
        node = world.ran_on(f"sweep-{index}-a")[f"sweep-{index}-a"]
        world.finish(f"sweep-{index}-a")
        world.job_pod("sweep", index + 2)
        world.run()
        assert world.ran_on(f"sweep-{index + 2}-a") == {f"sweep-{index + 2}-a": node}
    assert world.slots_of("job.sweep").keys() == {0, 1}


def test_an_index_that_is_tried_again_never_shares_a_slot_with_a_later_one() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    world.set_object("job", "sweep", {"parallelism": 2, "completions": 5})
    for index in range(2):
        world.job_pod("sweep", index)
    world.run()
    world.remove_pod("sweep-0-a")
    world.job_pod("sweep", 2)
    world.run()
    world.remove_pod("sweep-1-a")
    world.job_pod("sweep", 0, "b")
    world.run()
    assert world.ran_on().keys() == {"sweep-2-a", "sweep-0-b"}
    assert world.slots_of("job.sweep").keys() == {0, 1}


def test_a_finished_job_gives_its_nodes_back() -> None:
    world = Foreign()
    world.add_nodes("a")
    spec = {"parallelism": 1, "completions": 1}
    world.set_object("job", "train", spec)
    world.job_pod("train", 0)
    world.run()
    world.finish("train-0-a")
    world.set_object("job", "train", spec, conditions=[{"type": "Complete", "status": "True"}])
    world.run()
    assert world.placements == {}


def test_a_stateful_set_that_makes_its_pods_one_by_one_is_placed_as_they_come() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("statefulset", "web", {"replicas": 2, "podManagementPolicy": "OrderedReady"})
    world.set_pod_of("web", 0)
    world.run()
    assert world.ran_on().keys() == {"web-0"}
    world.set_pod_of("web", 1)
    world.run()
    assert world.slots_of("statefulset.web") == {0: "a", 1: "b"}


def test_a_stateful_set_grows_and_shrinks_with_its_replicas() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    parallel = {"podManagementPolicy": "Parallel"}
    world.set_object("statefulset", "web", {"replicas": 2, **parallel})
    for index in range(2):
        world.set_pod_of("web", index)
    world.run()
    world.set_object("statefulset", "web", {"replicas": 3, **parallel})
    world.set_pod_of("web", 2)
    world.run()
    assert world.slots_of("statefulset.web") == {0: "a", 1: "b", 2: "c"}
    world.set_object("statefulset", "web", {"replicas": 1, **parallel})
    for index in (1, 2):
        world.remove_pod(f"web-{index}")
    world.run()
    assert world.slots_of("statefulset.web") == {0: "a"}
    world.add_gang("next", 2)
    world.run()
    assert len(world.nodes_of("next")) == 2


def test_an_object_made_again_under_its_name_is_another_gang() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    first = world.set_object("pod-group", "pg", {"minMember": 2})
    for name in ("p0", "p1"):
        world.grouped("pg", name)
    world.run()
    world.remove_object("pod-group", "pg")
    second = world.set_object("pod-group", "pg", {"minMember": 2})
    assert first.ref.uid != second.ref.uid
    world.grouped("pg", "q0")
    world.grouped("pg", "q1")
    assert world.waits("pod-group.pg") == Reason(Why.OLD_PLACEMENT)
    for name in ("p0", "p1"):
        world.remove_pod(name)
    world.run()
    assert world.ran_on().keys() == {"q0", "q1"}
    assert world.placements["default/pod-group.pg"].spec.gang_uid == second.ref.uid


def test_the_placement_of_an_object_that_is_gone_is_deleted_also_by_a_new_leader() -> None:
    world = Foreign()
    world.add_nodes("a")
    world.set_object("job", "train", {"parallelism": 1, "completions": 1})
    world.job_pod("train", 0)
    world.run()
    world.remove_pod("train-0-a")
    world.run()
    assert world.slots_of("job.train") == {0: "a"}, "its pod may be made anew"
    world.objects.clear()
    world.forget_all()
    world.run()
    assert world.placements == {}


def test_a_gang_whose_object_is_gone_does_not_start_and_one_half_bound_is_bound() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    for name in ("pg", "later"):
        world.set_object("pod-group", name, {"minMember": 2})
        world.grouped(name, f"{name}-0")
    world.grouped("pg", "pg-1")
    for _ in range(2):  # the placement, then one bind
        world.carry_out(world.decide().actions[0])
    for name in ("pg", "later"):
        world.remove_object("pod-group", name)
    world.carry_out(DeletePlacement("", world.placements["default/pod-group.pg"], "collected with its object"))
    world.grouped("later", "later-1")
    world.run()
    assert world.ran_on().keys() == {"pg-0", "pg-1"}
    assert world.placements["default/pod-group.pg"].metadata.owner_references == ()
    reason = world.waits("pod-group.later")
    assert reason is not None
    assert reason.why is Why.WAITING_FOR_WORKLOAD


def test_a_new_leader_finds_every_pod_in_the_slot_where_it_runs() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c", "d")
    world.set_object("pod-group", "pg", {"minMember": 3})
    for name in ("p2", "p0", "p1"):
        world.grouped("pg", name)
        world.state.snapshot()
    world.run()
    before = {member.name: slot for slot, member in world.gang("pod-group.pg").current.items()}
    assert before == {"p2": 0, "p0": 1, "p1": 2}
    world.forget_all()
    gang = world.gang("pod-group.pg")
    assert {member.name: slot for slot, member in gang.current.items()} == before
    assert gang.holds == {}
    assert world.decide().actions == ()


def test_a_new_leader_tells_a_pod_that_is_done_from_the_one_that_came_to_its_node() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("pod-group", "pg", {"minMember": 1})
    for number in range(3):
        world.grouped("pg", f"p{number}")
    world.run()
    world.finish("p0")
    world.run()
    assert world.ran_on("p0", "p2") == {"p0": "a", "p2": "a"}
    world.forget_all()
    gang = world.gang("pod-group.pg")
    assert gang.roster is not None
    assert (gang.roster.done, gang.current.keys(), gang.holds) == ({0}, {1, 2}, {})


def test_a_new_leader_gives_nobody_the_slot_of_a_pod_that_is_done() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("pod-group", "pg", {"minMember": 1})
    for number in range(4):
        world.grouped("pg", f"p{number}")
    world.run()
    world.finish("p0")
    world.run()
    assert world.ran_on() == {"p0": "a", "p1": "b", "p2": "a"}
    world.forget_all()
    gang = world.gang("pod-group.pg")
    assert gang.roster is not None
    assert (gang.roster.done, gang.holds) == ({0}, {})
    assert {pod.name: pod.slot for pod in gang.pods.values()} == {"p0": 0, "p1": 1, "p2": 2, "p3": 3}


def test_a_slot_whose_pod_is_done_and_gone_takes_no_room_while_others_wait() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("pod-group", "pg", {"minMember": 1})
    for number in range(4):
        world.grouped("pg", f"p{number}")
    world.run()
    world.finish("p0")
    world.run()
    world.remove_pod("p0")
    world.run()
    assert world.gang("pod-group.pg").holds == {}
    world.remove_pod("p2")
    world.run()
    assert world.ran_on() == {"p1": "b", "p3": "a"}


def test_a_size_on_the_pods_goes_before_what_the_object_says() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    world.set_object("statefulset", "web", {"replicas": 3, "podManagementPolicy": "Parallel"})
    for index in range(2):
        world.set_pod_of("web", index, annotations={"muster.dev/gang-size": "2"})
    world.run()
    assert world.ran_on().keys() == {"web-0", "web-1"}


@pytest.mark.parametrize("size", ["none", "0", "3"])
def test_a_size_that_is_wrong_is_refused_by_name(size: str) -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("statefulset", "web", {"replicas": 2, "podManagementPolicy": "Parallel"})
    world.set_pod_of("web", 0, annotations={"muster.dev/gang-size": "2"})
    world.set_pod_of("web", 1, annotations={"muster.dev/gang-size": size})
    (refusal,) = [action for action in world.decide().actions if isinstance(action, Refuse)]
    assert refusal.pod == "web-1"
    assert size in refusal.reason.text()
    assert world.ran_on() == {}


def test_a_gang_is_found_by_the_name_of_its_workload() -> None:
    world = Foreign()
    world.set_object("job", "train", {"parallelism": 2, "completions": 2})
    world.job_pod("train", 0)
    world.grouped("pg", "p0")
    snapshot = world.state.snapshot()
    for asked, name in (("train", "job.train"), ("job.train", "job.train"), ("pg", "pod-group.pg")):
        found = snapshot.find_workload("default", asked)
        assert found is not None
        assert found.name == name
    assert snapshot.find("default", "train") is None, "that is the name of a TrainingJob's gang"
