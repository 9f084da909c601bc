"""kubectl as people use it, on the embedded server."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from muster.controlplane.clusteraccess import ClusterAccess, KubectlError
from tests.scenarios.apiserver.cases_custom import CRD, widget
from tests.support.apiserver import Api
from tests.support.waiting import eventually

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "labels": {"app": "web"}},
    "spec": {"containers": [{"name": "c", "image": "busybox", "env": [{"name": "A", "value": "1"}]}]},
}


@pytest.fixture
def namespace(kubectl: ClusterAccess, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.replace("_", "-").replace("test-", "k-")[:60].rstrip("-")
    kubectl.kubectl("create", "namespace", name)
    yield name
    kubectl.kubectl("delete", "namespace", name, "--wait=false")


def apply(kubectl: ClusterAccess, namespace: str, obj: Any, *more: str) -> str:
    return kubectl.kubectl("apply", "-n", namespace, "-f", "-", *more, stdin=json.dumps(obj))


def test_apply_of_a_list_with_a_bad_item_creates_the_others_and_names_it(
    kubectl: ClusterAccess, namespace: str
) -> None:
    """Issue 11, not tried before: kubectl validates a List by OpenAPI v2, whose media type it must be able to parse."""
    bad = {**POD, "metadata": {"name": "Bad_Name"}}
    last = {**POD, "metadata": {"name": "last"}}
    with pytest.raises(KubectlError, match="Bad_Name"):
        apply(kubectl, namespace, {"apiVersion": "v1", "kind": "List", "items": [POD, bad, last]})
    names = kubectl.kubectl("get", "pods", "-n", namespace, "-o", "name").split()
    assert names == ["pod/last", "pod/web"]


def test_apply_get_describe_label_delete(kubectl: ClusterAccess, namespace: str) -> None:
    assert "created" in apply(kubectl, namespace, POD)
    assert "unchanged" in apply(kubectl, namespace, POD)
    changed = json.loads(json.dumps(POD))
    changed["metadata"]["labels"] = {"tier": "front"}
    assert "configured" in apply(kubectl, namespace, changed)
    labels = json.loads(kubectl.kubectl("get", "pod", "web", "-n", namespace, "-o", "json"))["metadata"]["labels"]
    assert labels == {"tier": "front"}
    lines = kubectl.kubectl("get", "pods", "-n", namespace, "-o", "wide").splitlines()
    assert lines[0].split() == [
        *["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE"],
        *["NOMINATED", "NODE", "READINESS", "GATES"],
    ]
    assert lines[1].split()[:4] == ["web", "0/1", "Pending", "0"]
    described = kubectl.kubectl("describe", "pod", "web", "-n", namespace)
    assert "QoS Class:                   BestEffort" in described
    kubectl.kubectl("label", "pod", "web", "-n", namespace, "x=y")
    assert "web" in kubectl.kubectl("get", "pods", "-n", namespace, "-l", "x=y", "-o", "name")
    kubectl.kubectl("annotate", "pod", "web", "-n", namespace, "note=here")
    kubectl.kubectl("delete", "pod", "web", "-n", namespace)
    with pytest.raises(KubectlError, match=r'\(NotFound\): pods "web" not found'):
        kubectl.kubectl("get", "pod", "web", "-n", namespace)


def test_typed_creates_are_sent_as_protobuf(kubectl: ClusterAccess, namespace: str) -> None:
    for arguments in (
        ["configmap", "c", "--from-literal=a=b"],
        ["secret", "generic", "s", "--from-literal=a=b"],
        ["serviceaccount", "sa"],
        ["quota", "q", "--hard=pods=7,requests.cpu=1500m"],
        ["role", "r", "--verb=get", "--resource=pods"],
        ["rolebinding", "rb", "--role=r", "--serviceaccount=default:default"],
        ["poddisruptionbudget", "b", "--selector=a=b", "--min-available=1"],
        ["service", "clusterip", "svc", "--tcp=80:8080"],
    ):
        assert "created" in kubectl.kubectl("create", *arguments, "-n", namespace)

    def read(*what: str) -> Any:
        return json.loads(kubectl.kubectl("get", *what, "-n", namespace, "-o", "json"))

    assert read("configmap", "c")["data"] == {"a": "b"}
    assert read("secret", "s")["data"] == {"a": "Yg=="}
    assert read("quota", "q")["spec"]["hard"] == {"pods": "7", "requests.cpu": "1500m"}
    assert read("role", "r")["rules"] == [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]
    assert read("pdb", "b")["spec"] == {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}
    assert read("service", "svc")["spec"]["ports"][0]["targetPort"] == 8080
    assert len(kubectl.kubectl("create", "token", "default", "-n", namespace).strip().split(".")) == 3
    assert kubectl.kubectl("auth", "can-i", "create", "pods").strip() == "yes"
    assert "kubernetes-admin" in kubectl.kubectl("auth", "whoami")


def test_get_watch_shows_changes(kubectl: ClusterAccess, namespace: str) -> None:
    environment = {"PATH": os.environ["PATH"], "KUBECONFIG": str(kubectl.kubeconfig), "HOME": str(kubectl.directory)}
    command = [str(kubectl.kubectl_path), "get", "pods", "-n", namespace, "-w", "--no-headers"]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        apply(kubectl, namespace, POD)
        assert watching.stdout
        assert watching.stdout.readline().split()[:3] == ["web", "0/1", "Pending"]
        kubectl.kubectl("delete", "pod", "web", "-n", namespace)
        assert watching.stdout.readline().split()[:3] == ["web", "0/1", "Terminating"]
    finally:
        watching.terminate()
        watching.communicate(timeout=10)


def test_nodes_taint_cordon_drain(kubectl: ClusterAccess, embedded: Api, namespace: str) -> None:
    apply(kubectl, namespace, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "k-node"}})
    try:
        kubectl.kubectl("taint", "node", "k-node", "team=red:NoSchedule")
        kubectl.kubectl("cordon", "k-node")
        assert "SchedulingDisabled" in kubectl.kubectl("get", "node", "k-node")
        assert "team=red:NoSchedule" in kubectl.kubectl("describe", "node", "k-node")
        apply(kubectl, namespace, POD)
        embedded.create(
            f"/api/v1/namespaces/{namespace}/pods/web/binding", {"target": {"kind": "Node", "name": "k-node"}}
        )
        with pytest.raises(KubectlError, match="use --force to override"):
            kubectl.kubectl("drain", "k-node")
        kubectl.kubectl("drain", "k-node", "--force", "--grace-period=0", "--timeout=60s")
        assert kubectl.kubectl("get", "pods", "-n", namespace, "-o", "name") == ""
        kubectl.kubectl("uncordon", "k-node")
        kubectl.kubectl("taint", "node", "k-node", "team:NoSchedule-")
    finally:
        kubectl.kubectl("delete", "node", "k-node")


def test_custom_kinds(kubectl: ClusterAccess, embedded: Api, namespace: str) -> None:
    kubectl.kubectl("apply", "-f", "-", stdin=json.dumps(CRD))
    try:
        apply(kubectl, namespace, widget("a", size=3))
        assert kubectl.kubectl("get", "wd", "-n", namespace).splitlines()[0].split() == ["NAME", "SIZE", "READY"]
        assert "size" in kubectl.kubectl("explain", "widget.spec")
        with pytest.raises(KubectlError, match=r'strict decoding error: unknown field "spec.bogus"'):
            apply(kubectl, namespace, widget("b", size=3, bogus=1))
        with pytest.raises(KubectlError, match="should be less than or equal to 10"):
            apply(kubectl, namespace, widget("b", size=11))
        assert "serverside-applied" in apply(kubectl, namespace, widget("c", size=4), "--server-side")
        kubectl.kubectl("patch", "wd", "a", "-n", namespace, "--type=merge", "-p", '{"spec":{"size":5}}')
        assert kubectl.kubectl("get", "wd", "a", "-n", namespace, "-o", "jsonpath={.metadata.generation}") == "2"
    finally:
        kubectl.kubectl("delete", "crd", "widgets.diff.example.com")
    code, _, _ = embedded.send("GET", f"/apis/diff.example.com/v1/namespaces/{namespace}/widgets")
    assert code == 404


def test_deleting_a_namespace_waits_until_it_is_gone(kubectl: ClusterAccess, embedded: Api) -> None:
    kubectl.kubectl("create", "namespace", "k-gone")
    apply(kubectl, "k-gone", POD)
    kubectl.kubectl("delete", "namespace", "k-gone", "--timeout=60s")
    assert eventually("the namespace is gone", lambda: embedded.send("GET", "/api/v1/namespaces/k-gone")[0] == 404)


def test_everything_listed_can_be_listed(kubectl: ClusterAccess) -> None:
    names = kubectl.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    assert "pods" in names
    kubectl.kubectl("get", ",".join(names), "-A", "--ignore-not-found")
    assert "v1.36" in kubectl.kubectl("version")


def test_explain_knows_the_fields_of_built_in_kinds(kubectl: ClusterAccess) -> None:
    """Issue 11.31: names and types of fields, and no invented descriptions."""
    shown = kubectl.kubectl("explain", "pod.spec.containers")
    for line in (r"name\s+<string> -required-", r"env\s+<\[\]EnvVar>", r"resources\s+<ResourceRequirements>"):
        assert re.search(line, shown), shown
    assert re.search(r"renewTime\s+<MicroTime|renewTime\s+<string>", kubectl.kubectl("explain", "lease.spec"))
    assert "FIELD: limits" in kubectl.kubectl("explain", "pod.spec.containers.resources.limits")
    with pytest.raises(KubectlError, match='field "nowhere" does not exist'):
        kubectl.kubectl("explain", "pod.spec.nowhere")


def test_apply_refuses_a_field_that_a_kind_does_not_have(kubectl: ClusterAccess, namespace: str) -> None:
    mistyped = {**POD, "spec": {**POD["spec"], "restartPolcy": "Never"}}
    with pytest.raises(KubectlError, match=r'unknown field "spec\.restartPolcy"'):
        apply(kubectl, namespace, mistyped)
