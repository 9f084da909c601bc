"""Gangs from anywhere: what each adapter makes of pods and objects."""

from __future__ import annotations

from typing import Any

import pytest

from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import from_dict
from muster.scheduler.gangs.adapters import membership
from muster.scheduler.gangs.adapters.job import index_count
from muster.scheduler.gangs.adapters.membership import Membership, Role, Shape, WorkloadRef
from tests.unit.scheduler.foreign import Foreign, read

JOB = "batch/v1", "Job"
STATEFULSET = "apps/v1", "StatefulSet"


def pod(labels: dict[str, str] | None = None, **changes: Any) -> Pod:
    meta = {"name": "p", "namespace": "default", "uid": "p-uid", "labels": labels or {}, **changes.pop("meta", {})}
    return from_dict({"metadata": meta, "spec": {"schedulerName": "muster", **changes}}, Pod)


def owned(api_version: str, kind: str, *, controller: bool = True) -> dict[str, Any]:
    owner = {"apiVersion": api_version, "kind": kind, "name": "o", "uid": "o-uid", "controller": controller}
    return {"ownerReferences": [owner]}


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
def test_a_pod_says_where_it_belongs(made: Pod, expected: Membership) -> None:
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
def test_other_pods_are_single(made: Pod) -> None:
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
