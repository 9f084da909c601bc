"""Ways to get at other teams' nodes: each is an id and a function that tries and returns what the API server said."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from tests.scenarios.admission.conftest import (
    ANY_TEAM,
    BORROWED,
    CONTROLLER,
    KEY,
    KUBELET,
    MALLORY,
    RUTH,
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
    template,
    toleration,
    unique,
)

PODS = "/api/v1/namespaces/red/pods"
APPS = "/apis/apps/v1/namespaces/red"
BATCH = "/apis/batch/v1/namespaces/red"
JOBS = "/apis/muster.dev/v1alpha1/namespaces/red/trainingjobs"
ALLOCATION = f"/api/v1/namespaces/{SYSTEM}/configmaps"

Attempt = Callable[[World], Answer]
ATTEMPTS: dict[str, Attempt] = {}


def attempt(function: Attempt) -> Attempt:
    ATTEMPTS[function.__name__.replace("_", "-")] = function
    return function


def creating(name: str, body: Callable[[], Json], path: str = PODS, user: User = MALLORY) -> None:
    """An attempt that is one creation."""
    ATTEMPTS[name] = lambda world: world.make(user, path, body())


# Pods as they are made

creating("tolerate-another-team", lambda: pod({KEY: "red"}, tolerations=[toleration("blue")]))
creating("label-of-another-team", lambda: pod({KEY: "blue"}))
creating("everything-of-another-team", lambda: team_pod("blue"))
creating("tolerate-all-keys", lambda: team_pod("red", tolerations=[{"operator": "Exists"}]))
creating("tolerate-all-keys-no-schedule", lambda: pod(tolerations=[{"operator": "Exists", "effect": "NoSchedule"}]))
creating("tolerate-all-keys-no-execute", lambda: pod(tolerations=[{"operator": "Exists", "effect": "NoExecute"}]))
creating("tolerate-any-team", lambda: team_pod("red", tolerations=[ANY_TEAM]))
creating("tolerate-any-team-any-effect", lambda: pod({KEY: "red"}, tolerations=[{"key": KEY, "operator": "Exists"}]))
creating("borrow-without-the-class", lambda: pod({KEY: "red", **BORROWED}, tolerations=[ANY_TEAM]))
creating(
    "borrow-at-another-class",
    lambda: pod({KEY: "red", **BORROWED}, tolerations=[ANY_TEAM], priorityClassName="low"),
)
creating(
    "borrow-without-the-label",
    lambda: pod({KEY: "red"}, tolerations=[ANY_TEAM], priorityClassName="muster-borrower"),
)
creating(
    "borrow-with-another-word",
    lambda: pod(
        {KEY: "red", "muster.dev/borrowed": "yes"}, tolerations=[ANY_TEAM], priorityClassName="muster-borrower"
    ),
)
creating(
    "borrow-without-ones-team",
    lambda: pod(BORROWED, tolerations=[ANY_TEAM], priorityClassName="muster-borrower"),
)
creating(
    "borrow-and-tolerate-another-team",
    lambda: pod(
        {KEY: "red", **BORROWED}, tolerations=[ANY_TEAM, toleration("blue")], priorityClassName="muster-borrower"
    ),
)
creating("tolerate-a-team-without-a-name", lambda: pod({KEY: "red"}, tolerations=[toleration("")]))
creating("two-tolerations-one-ones-own", lambda: team_pod("red", tolerations=[toleration(), toleration("blue")]))
creating(
    "a-second-other-team", lambda: team_pod("blue", tolerations=[toleration("blue"), toleration("green")]), PODS, RUTH
)
creating("use-of-a-team-that-was-not-given", lambda: team_pod("green"), PODS, RUTH)
creating("toleration-without-the-label", lambda: pod(tolerations=[toleration()], affinity=affinity(kept_to("red"))))
creating("toleration-without-affinity", lambda: pod({KEY: "red"}, tolerations=[toleration()]))
creating("one-term-leaves-the-team-out", lambda: team_pod("red", affinity=affinity(kept_to("red"), _elsewhere())))
creating("affinity-names-another-team-too", lambda: team_pod("red", affinity=affinity(kept_to("red", "blue"))))
creating(
    "affinity-only-excludes-a-team", lambda: team_pod("red", affinity=affinity(kept_to("green", operator="NotIn")))
)
creating("affinity-to-any-team", lambda: team_pod("red", affinity=affinity(kept_to(operator="Exists"))))
creating("affinity-only-preferred", lambda: team_pod("red", affinity=_preferred()))
creating(
    "node-selector-of-another-team", lambda: pod({KEY: "red"}, tolerations=[toleration()], nodeSelector={KEY: "blue"})
)
creating("name-the-node", lambda: pod(nodeName="n1"))
creating("name-the-node-for-musters-scheduler", lambda: pod(nodeName="n1", schedulerName="muster"))
creating("pretend-to-be-static", lambda: _mirror())
creating(
    "tolerate-the-preflight-taint", lambda: pod(tolerations=[{"key": "muster.dev/preflight", "operator": "Exists"}])
)
creating("tolerate-the-joining-taint", lambda: pod(tolerations=[{"key": "muster.dev/joining", "operator": "Exists"}]))
creating(
    "tolerate-the-quarantine-taint", lambda: pod(tolerations=[{"key": "muster.dev/quarantine", "operator": "Exists"}])
)
creating("tolerate-the-pool-taint", lambda: pod(tolerations=[{"key": "muster.dev/pool", "operator": "Exists"}]))
creating("team-in-a-namespace-without", lambda: team_pod("red"), "/api/v1/namespaces/unowned/pods")
creating("forged-replicaset", lambda: team_pod("blue", owner=owner("apps/v1", "ReplicaSet")))
creating("forged-job", lambda: pod(owner=owner("batch/v1", "Job")))
creating(
    "forged-daemonset",
    lambda: pod(owner=owner("apps/v1", "DaemonSet", name="listed"), tolerations=[{"operator": "Exists"}]),
)
creating("forged-trainingjob", lambda: pod(owner=owner("muster.dev/v1alpha1", "TrainingJob")))
creating(
    "forged-trainingjob-not-as-controller",
    lambda: pod(owner=owner("muster.dev/v1alpha1", "TrainingJob", controller=False)),
)
creating("forged-node", lambda: pod(owner=owner("v1", "Node", controller=False)))
creating(
    "account-called-like-the-manager",
    lambda: team_pod("blue", owner=owner("muster.dev/v1alpha1", "TrainingJob")),
    PODS,
    User("system:serviceaccount:red:muster-controller", ("red-people",)),
)
creating("manager-for-a-replicaset", lambda: team_pod("blue", owner=owner("apps/v1", "ReplicaSet")), PODS, CONTROLLER)


def _elsewhere() -> Json:
    return {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}


def _preferred() -> Json:
    preferred = [{"weight": 1, "preference": kept_to("red")}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _mirror() -> Json:
    body = pod(nodeName="n1", owner=owner("v1", "Node", name="n1"))
    body["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    return body


# Pods that are there


def changing(name: str, body: Callable[[], Json], change: Json | list[Json], subresource: str = "") -> None:
    """An attempt that changes a pod which an administrator made."""

    def act(world: World) -> Answer:
        return world.patch(MALLORY, world.made(None, PODS, body()) + subresource, change)

    ATTEMPTS[name] = act


def _borrower() -> Json:
    return pod({KEY: "red", **BORROWED}, tolerations=[ANY_TEAM], priorityClassName="muster-borrower")


def _with(more: Json) -> list[Json]:
    return [{"op": "add", "path": "/spec/tolerations/-", "value": more}]


changing("relabel-a-pod", lambda: team_pod("red"), {"metadata": {"labels": {KEY: "blue"}}})
changing("take-the-label-off-a-pod", lambda: team_pod("red"), {"metadata": {"labels": {KEY: None}}})
changing("relabel-through-the-status", lambda: team_pod("red"), {"metadata": {"labels": {KEY: "blue"}}}, "/status")
changing("stop-being-a-borrower", _borrower, {"metadata": {"labels": {"muster.dev/borrowed": None}}})
changing("stop-through-the-status", _borrower, {"metadata": {"labels": {"muster.dev/borrowed": None}}}, "/status")
changing("become-a-borrower", lambda: team_pod("red"), {"metadata": {"labels": BORROWED}})
changing("tolerate-all-keys-later", lambda: team_pod("red"), _with({"operator": "Exists"}))
changing("tolerate-any-team-later", lambda: team_pod("red"), _with(ANY_TEAM))
changing("tolerate-another-team-later", lambda: team_pod("red"), _with(toleration("blue")))
changing(
    "tolerate-the-preflight-taint-later",
    lambda: team_pod("red"),
    _with({"key": "muster.dev/preflight", "operator": "Exists"}),
)
changing("tolerate-without-affinity-later", pod, _with(toleration()))
changing("get-an-owner-later", lambda: team_pod("red"), {"metadata": {"ownerReferences": [owner("batch/v1", "Job")]}})


# Binding


def _bind(world: World, path: str, user: User = MALLORY, owned: Json | None = None) -> Answer:
    body = owned or pod()
    world.made(None, PODS, body)
    name = body["metadata"]["name"]
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    return world.make(user, path.format(name), binding)


@attempt
def bind_it_yourself(world: World) -> Answer:
    return _bind(world, PODS + "/{}/binding")


@attempt
def bind_the_old_way(world: World) -> Answer:
    return _bind(world, "/api/v1/namespaces/red/bindings")


@attempt
def bind_as_a_scheduler_of_ones_own(world: World) -> Answer:
    return _bind(world, PODS + "/{}/binding", User("system:serviceaccount:red:kube-scheduler", ("red-people",)))


# Templates


def workload(kind: str, labels: Json, spec: Json, name: str = "") -> Json:
    """A workload of any kind whose template has these labels and this pod spec; none makes pods at once."""
    name = name or unique("w")
    made = template({"app": name, **labels}, **spec)
    selector = {"matchLabels": {"app": name}}
    bodies: dict[str, Json] = {
        "Deployment": {"replicas": 0, "selector": selector, "template": made},
        "ReplicaSet": {"replicas": 0, "selector": selector, "template": made},
        "StatefulSet": {"replicas": 0, "selector": selector, "serviceName": name, "template": made},
        "DaemonSet": {"selector": selector, "template": made},
        "ReplicationController": {"replicas": 0, "selector": {"app": name}, "template": made},
        "Job": {"suspend": True, "template": _never(made)},
        "CronJob": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": _never(made)}}},
        "TrainingJob": {"suspend": True, "replicas": 1, "image": "none", "command": ["true"], "template": _bare(made)},
    }
    version = {"apiVersion": "muster.dev/v1alpha1"} if kind == "TrainingJob" else {}  # others have it by their path
    return {**version, "kind": kind, "metadata": {"name": name}, "spec": bodies[kind]}


def _never(made: Json) -> Json:
    return {**made, "spec": {**made["spec"], "restartPolicy": "Never"}}


def _bare(made: Json) -> Json:
    return {**made, "spec": {key: value for key, value in made["spec"].items() if key != "containers"}}


WORKLOADS = {
    "Deployment": f"{APPS}/deployments",
    "ReplicaSet": f"{APPS}/replicasets",
    "StatefulSet": f"{APPS}/statefulsets",
    "DaemonSet": f"{APPS}/daemonsets",
    "ReplicationController": "/api/v1/namespaces/red/replicationcontrollers",
    "Job": f"{BATCH}/jobs",
    "CronJob": f"{BATCH}/cronjobs",
    "TrainingJob": JOBS,
}


def of_blue(kind: str) -> Json:
    return workload(kind, *of_team("blue"))


def _label_only(kind: str) -> Json:
    return workload(kind, {KEY: "blue"}, {})


def _toleration_only(kind: str) -> Json:
    return workload(kind, {KEY: "red"}, {"tolerations": [toleration("blue")]})


for _kind, _path in WORKLOADS.items():
    creating(f"{_kind.lower()}-of-another-team", lambda kind=_kind: of_blue(kind), _path)
    creating(f"{_kind.lower()}-labelled-so", lambda kind=_kind: _label_only(kind), _path)
    creating(f"{_kind.lower()}-tolerates-another-team", lambda kind=_kind: _toleration_only(kind), _path)


@attempt
def replicaset_with_a_forged_deployment(world: World) -> Answer:
    body = of_blue("ReplicaSet")
    body["metadata"]["ownerReferences"] = [owner("apps/v1", "Deployment")]
    return world.make(MALLORY, WORKLOADS["ReplicaSet"], body)


@attempt
def other_image_in_anothers_deployment(world: World) -> Answer:
    """Ruth may use team blue, so hers is there; what runs there is for her to say."""
    path = world.made(RUTH, WORKLOADS["Deployment"], of_blue("Deployment"))
    change = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "other"}]
    return world.patch(MALLORY, path, change)


@attempt
def other_command_in_anothers_trainingjob(world: World) -> Answer:
    path = world.made(RUTH, JOBS, of_blue("TrainingJob"))
    return world.patch(MALLORY, path, {"spec": {"command": ["mine"]}})


@attempt
def more_nodes_for_anothers_trainingjob(world: World) -> Answer:
    path = world.made(RUTH, JOBS, of_blue("TrainingJob"))
    return world.patch(MALLORY, path, {"spec": {"replicas": 2}})


@attempt
def other_image_in_anothers_cronjob(world: World) -> Answer:
    path = world.made(RUTH, WORKLOADS["CronJob"], of_blue("CronJob"))
    where = "/spec/jobTemplate/spec/template/spec/containers/0/image"
    change = [{"op": "replace", "path": where, "value": "other"}]
    return world.patch(MALLORY, path, change)


@attempt
def deployment_changes_teams(world: World) -> Answer:
    path = world.made(MALLORY, WORKLOADS["Deployment"], workload("Deployment", *of_team("red")))
    return world.patch(MALLORY, path, {"spec": {"template": {"metadata": {"labels": {KEY: "blue"}}}}})


@attempt
def statefulset_from_a_revision_of_ones_own(world: World) -> Answer:
    """The StatefulSet controller makes pods from what a ControllerRevision says."""
    labels, spec = of_team("blue")
    revision = {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {"name": unique("revision"), "ownerReferences": [owner("apps/v1", "StatefulSet")]},
        "revision": 7,
        "data": {"spec": {"template": {"$patch": "replace", **template(labels, **spec)}}},
    }
    return world.make(MALLORY, f"{APPS}/controllerrevisions", revision)


# Nodes, namespaces, the allocation


@attempt
def label_a_node(world: World) -> Answer:
    return world.patch(MALLORY, "/api/v1/nodes/n1", {"metadata": {"labels": {KEY: "red"}}})


@attempt
def take_the_label_off_a_node(world: World) -> Answer:
    return world.patch(MALLORY, "/api/v1/nodes/n1", {"metadata": {"labels": {KEY: None}}})


@attempt
def label_a_node_through_its_status(world: World) -> Answer:
    return world.patch(MALLORY, "/api/v1/nodes/n1/status", {"metadata": {"labels": {KEY: "red"}}})


@attempt
def take_the_taint_off_a_node(world: World) -> Answer:
    return world.patch(MALLORY, "/api/v1/nodes/n1", {"spec": {"taints": None}})


@attempt
def taint_a_node_for_ones_team(world: World) -> Answer:
    taints = [{"key": KEY, "value": "red", "effect": "NoSchedule"}]
    return world.patch(MALLORY, "/api/v1/nodes/n1", {"spec": {"taints": taints}})


@attempt
def forge_a_nodes_record(world: World) -> Answer:
    return world.patch(MALLORY, "/api/v1/nodes/n1", {"metadata": {"annotations": {"muster.dev/team-record": "mine"}}})


@attempt
def a_kubelet_gives_its_node_away(world: World) -> Answer:
    return world.patch(KUBELET, "/api/v1/nodes/n1", {"metadata": {"labels": {KEY: "red"}}})


@attempt
def a_kubelet_gives_its_node_away_through_the_status(world: World) -> Answer:
    return world.patch(KUBELET, "/api/v1/nodes/n1/status", {"metadata": {"labels": {KEY: "red"}}})


@attempt
def pretend_to_be_an_exempt_namespace(world: World) -> Answer:
    """The API server writes that label itself."""
    world.patch(MALLORY, "/api/v1/namespaces/red", {"metadata": {"labels": {"kubernetes.io/metadata.name": "exempt"}}})
    return world.make(MALLORY, PODS, team_pod("blue"))


def _new_namespace(**labels: str) -> Json:
    metadata = {"name": f"new-{uuid.uuid4().hex[:6]}", "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


creating("namespace-of-another-team", lambda: _new_namespace(**{KEY: "blue"}), "/api/v1/namespaces")


@attempt
def move_a_namespace_to_another_team(world: World) -> Answer:
    return world.patch(MALLORY, "/api/v1/namespaces/red", {"metadata": {"labels": {KEY: "blue"}}})


@attempt
def take_a_namespace_from_its_team(world: World) -> Answer:
    return world.patch(MALLORY, "/api/v1/namespaces/red", {"metadata": {"labels": {KEY: None}}})


def _through(subresource: str) -> Attempt:
    def act(world: World) -> Answer:
        namespace: Json = world.api.get("/api/v1/namespaces/unowned")
        namespace["metadata"]["labels"][KEY] = "blue"
        return world.send(MALLORY, "PUT", f"/api/v1/namespaces/unowned/{subresource}", namespace)

    return act


ATTEMPTS["move-a-namespace-through-its-status"] = _through("status")
ATTEMPTS["move-a-namespace-through-its-finalizers"] = _through("finalize")


def _allocation() -> Json:
    metadata = {"name": "muster-teams", "labels": {"app": "muster-teams"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"teams.yaml": "allocations: []"}}


creating("write-the-allocation", _allocation, ALLOCATION)


def _with_allocation(act: Attempt) -> Attempt:
    def acting(world: World) -> Answer:
        code, _ = world.make(None, ALLOCATION, _allocation())
        assert code in (201, 409)
        return act(world)

    return acting


@attempt
def change_the_allocation(world: World) -> Answer:
    return _with_allocation(
        lambda there: there.patch(MALLORY, f"{ALLOCATION}/muster-teams", {"data": {"teams.yaml": "mine"}})
    )(world)


@attempt
def delete_the_allocation(world: World) -> Answer:
    return _with_allocation(lambda there: there.send(MALLORY, "DELETE", f"{ALLOCATION}/muster-teams"))(world)


@attempt
def delete_the_allocation_with_others(world: World) -> Answer:
    query: dict[str, Any] = {"labelSelector": "app=muster-teams"}
    return _with_allocation(lambda there: there.send(MALLORY, "DELETE", ALLOCATION, **query))(world)


@attempt
def the_managers_account_writes_the_allocation(world: World) -> Answer:
    return _with_allocation(
        lambda there: there.patch(CONTROLLER, f"{ALLOCATION}/muster-teams", {"data": {"teams.yaml": "mine"}})
    )(world)
