"""Who a pod is: the job that people know, its team, the images that it waits for."""

from __future__ import annotations

from typing import Any

import pytest

from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import from_dict
from muster.network.localpods.identity import local_pod
from muster.network.localpods.pod import LocalPod


def owner(kind: str, name: str, *, controller: bool = True) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "name": name, "uid": "u", "controller": controller}


def read(labels: dict[str, str] | None = None, owners: list[dict[str, Any]] | None = None, **more: Any) -> LocalPod:
    metadata = {
        "name": "p",
        "namespace": "team-a",
        "uid": "uid-p",
        "labels": labels or {},
        "ownerReferences": owners or [],
        **more.pop("metadata", {}),
    }
    return local_pod(from_dict({"metadata": metadata, **more}, Pod), "muster.dev/team")


@pytest.mark.parametrize(
    ("labels", "owners", "job"),
    [
        ({"muster.dev/gang": "train"}, [owner("TrainingJob", "train-x")], "train"),
        ({"jobset.sigs.k8s.io/jobset-name": "set"}, [owner("Job", "set-workers-0")], "set"),
        ({"training.kubeflow.org/job-name": "mpi"}, [owner("Job", "mpi-launcher")], "mpi"),
        ({"ray.io/cluster": "ray"}, [owner("RayCluster", "ray")], "ray"),
        ({"scheduling.x-k8s.io/pod-group": "group"}, [], "group"),
        ({}, [owner("Job", "nightly")], "nightly"),
        ({}, [owner("StatefulSet", "db")], "db"),
        ({"pod-template-hash": "5d9c"}, [owner("ReplicaSet", "web-5d9c")], "web"),
        ({}, [owner("ReplicaSet", "bare-set")], "bare-set"),
        ({}, [owner("Node", "node-1")], ""),
        ({}, [owner("ConfigMap", "no-controller", controller=False)], ""),
        ({}, [owner("Anything", "(tunnel)")], ""),
        ({}, [owner("Anything", "a\nb")], ""),
        ({}, [owner("Anything", "a" * 254)], ""),
        ({"muster.dev/gang": "g" * 63}, [], "g" * 63),
        ({}, [], ""),
    ],
)
def test_job_is_the_owner_that_people_know(labels: dict[str, str], owners: list[dict[str, Any]], job: str) -> None:
    assert read(labels, owners).job == job


def test_fields_of_a_pod_on_the_pod_network() -> None:
    pod = read(
        {"muster.dev/team": "vision"},
        spec={"priority": 7},
        status={"phase": "Running", "podIP": "10.0.0.5", "podIPs": [{"ip": "10.0.0.5"}, {"ip": "fd00::5"}]},
    )
    assert (pod.team, pod.priority, pod.phase) == ("vision", 7, "Running")
    assert pod.addresses == ("10.0.0.5", "fd00::5")
    assert not pod.host_network
    assert not pod.ended


def test_addresses_have_one_form_and_what_is_not_an_address_is_left_out() -> None:
    given = ["10.0.0.5", "010.000.0.5", "::ffff:10.0.0.6", "FD00:0:0::5", "10.0.0.0.1", "", "0.0.0.7"]
    pod = read(status={"podIPs": [{"ip": each} for each in given]})
    assert pod.addresses == ("10.0.0.5", "10.0.0.6", "fd00::5", "0.0.0.7")
    assert read(status={"phase": "Pending"}).addresses == ()


def test_static_pod_has_the_hash_in_the_names_of_its_cgroups() -> None:
    mirror = {"kubernetes.io/config.mirror": "abc", "kubernetes.io/config.hash": "abc"}
    assert read(metadata={"annotations": mirror}, spec={"hostNetwork": True}).cgroup_uid == "abc"
    for path in ("uid-p/../../../system.slice", "..", "a b"):
        annotations = {"kubernetes.io/config.mirror": "abc", "kubernetes.io/config.hash": path}
        assert read(metadata={"annotations": annotations}).cgroup_uid == ""
    forged = {"kubernetes.io/config.hash": "uid-of-another-pod"}
    assert read(metadata={"annotations": forged}).cgroup_uid == "", "an annotation that users set does not count"


def test_images_that_a_pod_waits_for() -> None:
    def waiting(name: str, reason: str, image_id: str = "") -> dict[str, Any]:
        return {"name": name, "imageID": image_id, "state": {"waiting": {"reason": reason}}}

    spec = {
        "initContainers": [{"name": "i", "image": "init:1"}],
        "containers": [{"name": "a", "image": "big:1"}, {"name": "b", "image": "big:1"}, {"name": "c", "image": "c:1"}],
    }
    status = {
        "phase": "Pending",
        "initContainerStatuses": [waiting("i", "PodInitializing", "sha256:there")],
        "containerStatuses": [
            waiting("a", "ContainerCreating"),
            waiting("b", "ImagePullBackOff"),
            waiting("c", "CreateContainerConfigError"),
        ],
    }
    assert read(spec=spec, status=status).pulling == ("big:1",)
    assert read(spec=spec, status={**status, "phase": "Running"}).pulling == ()


@pytest.mark.parametrize(
    ("spec", "rdma"),
    [
        ({"containers": [{"name": "c", "resources": {"limits": {"rdma/hca_shared_devices_a": "1"}}}]}, True),
        ({"containers": [{"name": "c", "resources": {"limits": {"vpc.amazonaws.com/efa": 4}}}]}, True),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/dev/infiniband/"}}]}, True),
        ({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 8}}}]}, False),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/data"}}]}, False),
    ],
)
def test_pod_may_use_rdma_if_it_requests_a_device_or_mounts_one(spec: dict[str, Any], rdma: bool) -> None:
    assert read(spec=spec).rdma is rdma
