"""What has to go on working under the policies, as the same people."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.scenarios.admission.attempts import ALLOCATION, JOBS, PODS, WORKLOADS, of_blue, workload
from tests.scenarios.admission.conftest import (
    ANY_TEAM,
    BORROWED,
    CONTROLLER,
    KEY,
    KUBELET,
    MALLORY,
    OWNER,
    PLATFORM,
    RUTH,
    SCHEDULER,
    SYSTEM,
    Answer,
    Json,
    User,
    World,
    affinity,
    kept_to,
    of_team,
    owner,
    pod,
    team_pod,
    toleration,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

UNOWNED = "/api/v1/namespaces/unowned/pods"
KEYLESS = [{"operator": "Exists"}]

CREATED: dict[str, tuple[User | None, str, Callable[[], Json]]] = {
    "a plain pod, with no webhook there": (MALLORY, PODS, pod),
    "a pod of the namespace's team": (MALLORY, PODS, lambda: team_pod("red")),
    "a pod of it that says no more than the label": (MALLORY, PODS, lambda: pod({KEY: "red"})),
    "a pod that asks for nodes without owner": (
        MALLORY,
        PODS,
        lambda: pod({KEY: "red"}, tolerations=[toleration()], affinity=affinity(kept_to(operator="DoesNotExist"))),
    ),
    "a pod kept to the team by its node selector": (
        MALLORY,
        PODS,
        lambda: pod({KEY: "red"}, tolerations=[toleration()], nodeSelector={KEY: "red"}),
    ),
    "a pod with more in its terms": (MALLORY, PODS, lambda: team_pod("red", affinity=affinity(_and_zone(), {}))),
    "tolerations of other things": (
        MALLORY,
        PODS,
        lambda: team_pod("red", tolerations=[toleration(), {"key": "nvidia.com/gpu", "operator": "Exists"}]),
    ),
    "a soft toleration of everything": (
        MALLORY,
        PODS,
        lambda: pod(tolerations=[{"operator": "Exists", "effect": "PreferNoSchedule"}]),
    ),
    "a gang's toleration of pools": (
        MALLORY,
        PODS,
        lambda: pod(schedulerName="muster", tolerations=[{"key": "muster.dev/pool", "operator": "Exists"}]),
    ),
    "a borrower": (
        MALLORY,
        PODS,
        lambda: pod({KEY: "red", **BORROWED}, tolerations=[ANY_TEAM], priorityClassName="muster-borrower"),
    ),
    "a borrower of no team": (
        MALLORY,
        UNOWNED,
        lambda: pod(BORROWED, tolerations=[ANY_TEAM], priorityClassName="muster-borrower"),
    ),
    "another team, for who may use it": (RUTH, PODS, lambda: team_pod("blue")),
    "both teams' taints, for who may use the other": (
        RUTH,
        PODS,
        lambda: team_pod("blue", tolerations=[toleration("red"), toleration("blue")]),
    ),
    "another team from a namespace of none": (RUTH, UNOWNED, lambda: team_pod("blue")),
    "an owner that is not a controller": (MALLORY, PODS, lambda: pod(owner=owner("v1", "ConfigMap", controller=False))),
    "an owner of an unknown kind": (MALLORY, PODS, lambda: pod(owner=owner("example.com/v1", "Thing"))),
    "Muster's pods for a TrainingJob of another team": (
        CONTROLLER,
        PODS,
        lambda: team_pod("blue", owner=owner("muster.dev/v1alpha1", "TrainingJob")),
    ),
    "a static pod's mirror, by its kubelet": (KUBELET, PODS, lambda: pod(nodeName="n1", tolerations=KEYLESS)),
    "anything by the platform": (PLATFORM, PODS, lambda: team_pod("green", tolerations=KEYLESS, nodeName="n1")),
    "anything in an exempt namespace": (
        MALLORY,
        "/api/v1/namespaces/exempt/pods",
        lambda: team_pod("green", tolerations=KEYLESS, nodeName="n1"),
    ),
    "anything in kube-system": (
        MALLORY,
        "/api/v1/namespaces/kube-system/pods",
        lambda: team_pod("green", tolerations=KEYLESS, nodeName="n1"),
    ),
    "anything in Muster's own namespace": (
        MALLORY,
        f"/api/v1/namespaces/{SYSTEM}/pods",
        lambda: team_pod("green", tolerations=KEYLESS, nodeName="n1"),
    ),
    "a namespace without a team": (
        MALLORY,
        "/api/v1/namespaces",
        lambda: {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "new-"}},
    ),
    "a namespace of a team, by the platform": (
        PLATFORM,
        "/api/v1/namespaces",
        lambda: {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "new-", "labels": {KEY: "red"}}},
    ),
    "another ConfigMap beside the allocation": (
        MALLORY,
        ALLOCATION,
        lambda: {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "other-"}},
    ),
    "a TrainingJob of another team, for who may use it": (RUTH, JOBS, lambda: of_blue("TrainingJob")),
}


def _and_zone() -> Json:
    term = kept_to("red")
    return {"matchExpressions": [{"key": "zone", "operator": "Exists"}, *term["matchExpressions"]]}


@pytest.mark.parametrize("name", CREATED)
def test_made(world: World, name: str) -> None:
    user, path, body = CREATED[name]
    code, said = world.make(user, path, body())
    assert code == 201, said


def test_the_owner_of_the_allocation_writes_it(world: World) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "muster-teams"}, "data": {}}
    assert world.make(OWNER, ALLOCATION, body)[0] in (201, 409)
    path = f"{ALLOCATION}/muster-teams"
    assert world.patch(OWNER, path, {"data": {"teams.yaml": "allocations: []"}})[0] == 200
    assert world.send(OWNER, "DELETE", path)[0] == 200


def _made_by_controllers(world: World, kind: str, body: Json, count: int) -> None:
    app = body["metadata"]["name"]
    eventually(
        f"the {kind}'s pods are there", lambda: len(world.pods_of(app)) == count or _failed(world, app), timeout_s=90
    )
    pods = world.pods_of(app)
    assert len(pods) == count, world.reported(app)
    assert {each["metadata"]["labels"][KEY] for each in pods} == {body["spec"]["template"]["metadata"]["labels"][KEY]}


def _failed(world: World, app: str) -> bool:
    return "muster-teams-" in world.reported(app)


@pytest.mark.parametrize("team", ["red", "blue"])
@pytest.mark.parametrize("kind", ["ReplicaSet", "Deployment", "ReplicationController", "StatefulSet", "Job"])
def test_controllers_make_the_pods_of_who_may_use_the_team(world: World, kind: str, team: str) -> None:
    """The controllers themselves have no right to any team: the author of the template had it."""
    body = workload(kind, *of_team(team))
    if kind == "Job":
        body["spec"] |= {"suspend": False, "completionMode": "Indexed", "completions": 2, "parallelism": 2}
    else:
        body["spec"]["replicas"] = 1 if kind == "StatefulSet" else 2
    world.made(RUTH, WORKLOADS[kind], body)
    _made_by_controllers(world, kind, body, 1 if kind == "StatefulSet" else 2)


def test_a_cronjobs_jobs_are_made(world: World) -> None:
    """Its controller writes the Job, whose template names another team."""
    code, said = world.make(
        User("system:serviceaccount:kube-system:cronjob-controller", ("red-people",)),
        WORKLOADS["Job"],
        {**of_blue("Job"), "metadata": {"generateName": "by-", "ownerReferences": [owner("batch/v1", "CronJob")]}},
    )
    assert code == 201, said


def test_a_listed_daemonset_tolerates_everything(world: World) -> None:
    body = workload("DaemonSet", {}, {"tolerations": KEYLESS}, "listed")
    world.made(MALLORY, WORKLOADS["DaemonSet"], body)
    eventually("it has pods on both nodes", lambda: len(world.pods_of("listed")) == 2)


def test_a_daemonset_runs_on_its_teams_nodes(world: World) -> None:
    """Its controller puts the node's name where the affinity was, having looked at that itself."""
    labels, spec = of_team("blue")
    body = workload("DaemonSet", labels, spec)
    world.made(RUTH, WORKLOADS["DaemonSet"], body)
    app = body["metadata"]["name"]
    eventually("it has pods on both nodes", lambda: len(world.pods_of(app)) == 2)


def _changed(world: World, user: User | None, path: str, change: Json) -> Answer:
    code, said = world.patch(user, path, change)
    assert code == 200, said
    return code, said


def test_pods_from_before_can_still_be_changed(world: World) -> None:
    """One that tolerates everything was there before the policies: it may be annotated, and not made more tolerant."""
    path = f"{PODS}/early"
    _changed(world, MALLORY, path, {"metadata": {"annotations": {"a": "b"}, "labels": {"c": "d"}}})
    _changed(world, KUBELET, f"{path}/status", {"status": {"phase": "Running"}})
    _changed(world, CONTROLLER, f"{path}/status", {"status": {"message": "x"}})


def test_pods_can_be_orphaned_and_adopted(world: World) -> None:
    body = workload("ReplicaSet", *of_team("blue"))
    body["spec"]["replicas"] = 1
    path = world.made(RUTH, WORKLOADS["ReplicaSet"], body)
    app = body["metadata"]["name"]
    eventually("it has a pod", lambda: len(world.pods_of(app)) == 1)
    (before,) = world.pods_of(app)
    options = {"propagationPolicy": "Orphan"}
    assert world.send(RUTH, "DELETE", path, options)[0] == 200
    eventually("the pod has no owner", lambda: "ownerReferences" not in world.pods_of(app)[0]["metadata"])
    eventually("its owner is gone", lambda: world.send(None, "GET", path)[0] == 404)
    world.made(RUTH, WORKLOADS["ReplicaSet"], body)
    eventually("it is adopted", lambda: "ownerReferences" in world.pods_of(app)[0]["metadata"])
    assert world.pods_of(app)[0]["metadata"]["uid"] == before["metadata"]["uid"]


def test_pod_template_of_foreign_workload_can_be_changed(world: World) -> None:
    """Who may not use the team may still scale, label and pause what is there, as RBAC lets them."""
    deployment = world.made(RUTH, WORKLOADS["Deployment"], of_blue("Deployment"))
    _changed(world, MALLORY, deployment, {"metadata": {"labels": {"a": "b"}}, "spec": {"paused": True}})
    job = world.made(RUTH, JOBS, of_blue("TrainingJob"))
    _changed(world, MALLORY, job, {"metadata": {"labels": {"a": "b"}}, "spec": {"suspend": False}})


def test_schedulers_bind(world: World) -> None:
    for user in (SCHEDULER, CONTROLLER):
        body = team_pod("red")
        world.made(None, PODS, body)
        target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
        name = body["metadata"]["name"]
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        code, said = world.make(user, f"{PODS}/{name}/binding", binding)
        assert code == 201, said


def test_nodes_change_as_before_but_for_their_team(world: World) -> None:
    node = "/api/v1/nodes/n2"
    taint = {"key": KEY, "value": "blue", "effect": "NoSchedule"}
    _changed(world, MALLORY, node, {"metadata": {"labels": {"rack": "r1"}}})
    _changed(world, MALLORY, node, {"spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}, taint]}})
    _changed(world, MALLORY, node, {"spec": {"unschedulable": True}})
    _changed(world, KUBELET, f"{node}/status", {"status": {"phase": "Running"}})
    for user in (CONTROLLER, PLATFORM):
        for team in ("green", "blue"):
            _changed(
                world, user, node, {"metadata": {"labels": {KEY: team}}, "spec": {"taints": [{**taint, "value": team}]}}
            )


def test_namespaces_change_as_before_but_for_their_team(world: World) -> None:
    _changed(world, MALLORY, "/api/v1/namespaces/red", {"metadata": {"labels": {"a": "b"}}})
    _changed(world, PLATFORM, "/api/v1/namespaces/unowned", {"metadata": {"labels": {KEY: "green"}}})
    _changed(world, PLATFORM, "/api/v1/namespaces/unowned", {"metadata": {"labels": {KEY: None}}})
