"""Which pods a node takes."""

from __future__ import annotations

from typing import Any

import pytest

from muster.embedded.kubelet.pods.admission import admit
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.resources import pod_request
from muster.kube.objects.struct import from_dict


def make_node(**spec: Any) -> Node:
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "3", "nvidia.com/gpu": "2"}
    body = {"metadata": {"name": "n", "labels": {"zone": "a"}}, "spec": spec, "status": {"allocatable": allocatable}}
    return from_dict(body, Node)


def make_pod(wanted: dict[str, Any] | None = None, phase: str = "Pending", **spec: Any) -> Pod:
    container = {"name": "c", "resources": {"requests": wanted or {}}}
    return from_dict({"spec": {"containers": [container], **spec}, "status": {"phase": phase}}, Pod)


def reason(pod: Pod, *others: Pod, **node: Any) -> str:
    rejection = admit(pod, make_node(**node), others)
    return rejection.reason if rejection else ""


def test_fitting_pod_is_admitted() -> None:
    assert reason(make_pod({"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": 2})) == ""


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"cpu": "4001m"}, "OutOfcpu"),
        ({"memory": "8193Mi"}, "OutOfmemory"),
        ({"nvidia.com/gpu": 3}, "OutOfnvidia.com/gpu"),
        ({"ephemeral-storage": "1Gi"}, "OutOfephemeral-storage"),
        ({"example.com/unknown": 1}, ""),  # a cluster-level resource, which nodes do not list
    ],
)
def test_unfitting_pod_is_rejected(wanted: dict[str, Any], expected: str) -> None:
    assert reason(make_pod(wanted)) == expected


def test_message_has_the_numbers() -> None:
    rejection = admit(make_pod({"nvidia.com/gpu": 2}), make_node(), [make_pod({"nvidia.com/gpu": 1})])
    assert rejection is not None
    assert rejection.message.endswith("nvidia.com/gpu, requested: 2, used: 1, capacity: 2")


def test_others_count_until_they_ended() -> None:
    gpu = {"nvidia.com/gpu": 1}
    assert reason(make_pod({"nvidia.com/gpu": 2}), make_pod(gpu, "Running")) == "OutOfnvidia.com/gpu"
    assert reason(make_pod({"nvidia.com/gpu": 2}), make_pod(gpu, "Failed"), make_pod(gpu, "Succeeded")) == ""
    assert reason(make_pod(), make_pod(), make_pod(), make_pod()) == "OutOfpods"


def test_selectors_and_taints() -> None:
    assert reason(make_pod(nodeSelector={"zone": "b"})) == "NodeAffinity"
    assert reason(make_pod(nodeSelector={"zone": "a"})) == ""
    taint = {"key": "k", "effect": "NoExecute"}
    assert reason(make_pod(), taints=[taint]) == "TaintToleration"
    assert reason(make_pod(tolerations=[{"operator": "Exists"}]), taints=[taint]) == ""
    assert reason(make_pod(), taints=[taint | {"effect": "NoSchedule"}]) == ""  # the scheduler's business only


def test_requests_of_init_containers_and_sidecars() -> None:
    def container(cpu: str, policy: str | None = None) -> dict[str, Any]:
        return {"name": cpu, "resources": {"requests": {"cpu": cpu}}, "restartPolicy": policy}

    def total(main: list[str], init: list[dict[str, Any]]) -> int:
        pod = from_dict({"spec": {"containers": [container(cpu) for cpu in main], "initContainers": init}}, Pod)
        return pod_request(pod.spec)["cpu"]

    assert total(["1", "1"], []) == 2000
    assert total(["1"], [container("3"), container("2")]) == 3000
    assert total(["1"], [container("1", "Always")]) == 2000
    assert total(["1"], [container("1", "Always"), container("3")]) == 4000
