"""Pools of nodes for gangs: the chart's admission policies on a real API server, audited first and then enforced."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.controlplane.clusteraccess import ClusterAccess, KubectlError
from muster.controlplane.programs import ControlPlane
from muster.fleet.remediation.plan import RunStep
from muster.fleet.remediation.repairs.steps import StepSettings, step_pod
from muster.fleet.remediation.snapshot import RemediationNode
from tests.scenarios.deploy.conftest import ACCOUNT, CHART, SYSTEM, Helm
from tests.scenarios.deploy.test_chart import rendered
from tests.support.accessreviews import until_granted
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ADMISSION = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
PEOPLE = ("--as=jane", "--as-group=people", "--as-group=system:authenticated")
KUBE_SCHEDULER = "system:kube-scheduler"
POOL = {"key": "muster.dev/pool", "operator": "Exists", "effect": "NoSchedule"}
ANY_TAINT = {"operator": "Exists"}
FORBIDDEN = "only pods with schedulerName muster"


def policies(helm: Helm, *arguments: str) -> list[dict[str, Any]]:
    """The policies and their bindings, except the one about the annotation of submitters, which has no option."""
    found = rendered(helm, *arguments).items()
    return [each for key, each in found if key[0] in ADMISSION and key[2] != "muster-submitters"]


def test_nothing_is_checked_unless_asked_for(offline_helm: Helm) -> None:
    assert policies(offline_helm) == []


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--set=pools.policy=deny", "at '/pools/policy': value must be one of"),
        ("--set=pools.daemonSets={proxy}", "at '/pools/daemonSets/0'"),
        ("--set=pools.schedulers={o'neil}", "at '/pools/schedulers/0'"),
    ],
)
def test_a_bad_value_is_named(offline_helm: Helm, argument: str, message: str) -> None:
    done = offline_helm.run("template", "muster", str(CHART), "--kube-version=1.36.0", argument)
    assert done.returncode != 0
    assert message in done.stderr


class Pools:
    """A control plane of its own, as its policies would refuse what other tests do."""

    def __init__(self, access: ClusterAccess, helm: Helm) -> None:
        self.access, self.helm = access, helm

    def apply(self, *arguments: str) -> None:
        """Render the policies and wait until they are in force: kube-apiserver reads them every second."""
        self.access.apply(*policies(self.helm, *arguments))

    def create(self, body: dict[str, Any], *who: str, path: str = "") -> str:
        """Create it and return what kubectl said, warnings included; raises KubectlError where it is refused."""
        return self._call("create", body, *who, *([f"--raw={path}"] if path else []))

    def _call(self, verb: str, body: dict[str, Any], *arguments: str) -> str:
        return self.access.kubectl(verb, "--filename=-", *arguments, stdin=json.dumps(body))

    def refused(self, body: dict[str, Any], *who: str, path: str = "") -> str:
        """Return what kubectl said where it is refused, "" where it is taken."""
        try:
            self.create(body, *who, *(() if path else ("--dry-run=server",)), path=path)
        except KubectlError as error:
            return error.stderr
        return ""

    def refused_binding(self, name: str, query: str, *who: str) -> str:
        """What is said where the binding of a pod to the node is refused; by one of the people unless others do it."""
        target = {"apiVersion": "v1", "kind": "Node", "name": "node"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        path = f"/api/v1/namespaces/default/pods/{name}/binding{query}"
        return self.refused(binding, *(who or PEOPLE), path=path)


def pod(name: str = "pod", *, tolerations: tuple[dict[str, str], ...] = (), **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "none"}], "tolerations": list(tolerations), **spec},
    }


def daemons(namespace: str) -> dict[str, Any]:
    labels = {"app": "daemon"}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "daemon", "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod(tolerations=(ANY_TAINT,))["spec"]},
        },
    }


@pytest.fixture(scope="module")
def pools(control_plane_binaries: Path, offline_helm: Helm) -> Iterator[Pools]:
    with ControlPlane(control_plane_binaries) as plane:
        made = Pools(plane.access, offline_helm)
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        users = ("jane", KUBE_SCHEDULER, ACCOUNT)
        plane.access.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "all-of-them"},
                "roleRef": role,
                "subjects": [{"apiGroup": role["apiGroup"], "kind": "User", "name": name} for name in users],
            }
        )
        eventually(
            "a service account",
            lambda: "default" in plane.access.kubectl("get", "serviceaccounts", "--output=name"),
        )
        until_granted(plane.access, "jane", "create", "pods", "--as-group=people", "--as-group=system:authenticated")
        made.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}})
        yield made


def test_audit_warns_and_refuses_nothing(pools: Pools) -> None:
    pools.apply("--set=pools.policy=Audit")
    names = [each["metadata"]["name"] for each in policies(pools.helm, "--set=pools.policy=Audit")]
    assert names == ["muster-pools-pods", "muster-pools-bindings"] * 2

    def warning(body: dict[str, Any]) -> str:
        return pools.refused(body, *PEOPLE, "--warnings-as-errors")

    eventually("a pod that tolerates the pool is warned about", lambda: FORBIDDEN in warning(pod(tolerations=(POOL,))))
    assert "may not name its node" in warning(pod(nodeName="node"))
    assert warning(pod()) == ""
    assert pools.refused(pod(tolerations=(POOL,)), *PEOPLE) == ""
    assert pools.refused(pod(nodeName="node"), *PEOPLE) == ""


@pytest.fixture(scope="module")
def enforced(pools: Pools) -> Pools:
    pools.create(pod("early", tolerations=(ANY_TAINT,)), *PEOPLE)  # there before the policy is
    pools.create(pod("plain"), *PEOPLE)
    pools.apply("--set=pools.policy=Deny")
    eventually("the policy about pods is in force", lambda: bool(pools.refused(pod(tolerations=(POOL,)), *PEOPLE)))
    eventually("the one about bindings is", lambda: "only Muster" in pools.refused_binding("early", "?dryRun=All"))
    return pools


def test_only_gangs_tolerate_the_pool(enforced: Pools) -> None:
    for toleration in (POOL, ANY_TAINT, {"key": "muster.dev/pool", "value": "a"}, {**ANY_TAINT, "effect": "NoExecute"}):
        assert FORBIDDEN in enforced.refused(pod(tolerations=(toleration,)), *PEOPLE), toleration
        assert enforced.refused(pod(tolerations=(toleration,), schedulerName="muster"), *PEOPLE) == ""
    harmless = ({"key": "other", "operator": "Exists"}, {**ANY_TAINT, "effect": "PreferNoSchedule"})
    assert enforced.refused(pod(tolerations=harmless), *PEOPLE) == ""
    assert enforced.refused(pod(), *PEOPLE) == ""
    assert enforced.refused(pod(tolerations=(POOL,))) == "", "system:masters are exempt"


def test_a_toleration_that_comes_later_is_refused_and_one_that_was_there_is_left_alone(enforced: Pools) -> None:
    change = json.dumps({"spec": {"tolerations": [POOL]}})
    with pytest.raises(KubectlError, match=re.escape(FORBIDDEN)):
        enforced.access.kubectl("patch", "pod", "plain", f"--patch={change}", *PEOPLE)
    enforced.access.kubectl("label", "pod", "early", "still=mine", *PEOPLE)


def test_a_pod_cannot_name_its_node(enforced: Pools) -> None:
    assert "may not name its node" in enforced.refused(pod(nodeName="node"), *PEOPLE)
    assert "may not name its node" in enforced.refused(pod(nodeName="node", schedulerName="muster"), *PEOPLE)


def test_muster_alone_acts_on_machines(enforced: Pools) -> None:
    """The pods that reset or reboot name their node and tolerate everything."""
    enforced.access.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    look = ("get", "serviceaccounts", f"--namespace={SYSTEM}", "--output=name")
    eventually("a service account", lambda: "default" in enforced.access.kubectl(*look))
    settings = StepSettings(namespace=SYSTEM, image="tools")
    step = RunStep(name="reboot", node=RemediationNode(name="node", uid="u"), session="s", step="reboot", boot_id="b")
    made = step_pod(step, settings)
    assert enforced.refused(made, f"--as={ACCOUNT}") == ""
    assert FORBIDDEN in enforced.refused(made, *PEOPLE)
    elsewhere = {**made, "metadata": {**made["metadata"], "namespace": "default"}}
    assert FORBIDDEN in enforced.refused(elsewhere, f"--as={ACCOUNT}")


def test_only_muster_and_listed_schedulers_bind(enforced: Pools) -> None:

    def bind(name: str, *who: str) -> str:
        enforced.create(pod(name), *PEOPLE)
        return enforced.refused_binding(name, "", *who)

    assert "only Muster and the schedulers" in bind("one", *PEOPLE)
    assert bind("two", f"--as={KUBE_SCHEDULER}") == ""
    assert bind("three", f"--as={ACCOUNT}") == ""


def test_daemonsets_that_are_listed_reach_the_pool(enforced: Pools) -> None:
    enforced.create(daemons("kube-system"))
    enforced.create(daemons("default"))

    def pods(namespace: str) -> list[Any]:
        found = enforced.access.kubectl("get", "pods", f"--namespace={namespace}", "--selector=app=daemon", "-ojson")
        items: list[Any] = json.loads(found)["items"]
        return items

    eventually("the listed DaemonSet has its pod", lambda: bool(pods("kube-system")))
    reasons = ("get", "events", "--field-selector=reason=FailedCreate", "--output=jsonpath={.items[*].message}")
    eventually("the other one reports why it has none", lambda: FORBIDDEN in enforced.access.kubectl(*reasons))
    assert pods("default") == []
    # its owner is only what a user says who is not the controller
    (real,) = pods("kube-system")
    forged = pod("forged", tolerations=(ANY_TAINT,))
    forged["metadata"] |= {"namespace": "kube-system", "ownerReferences": real["metadata"]["ownerReferences"]}
    assert FORBIDDEN in enforced.refused(forged, *PEOPLE)
