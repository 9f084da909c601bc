"""A real control plane with the chart's policies about teams, people of two teams, and one with too many rights."""

from __future__ import annotations

import dataclasses
import http.client
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from muster.controlplane.clusteraccess import ClusterAccess
from muster.controlplane.programs import ControlPlane
from tests.scenarios.deploy.conftest import Helm, helm_program, offline_helm  # noqa: F401
from tests.scenarios.deploy.test_chart import rendered
from tests.support.apiserver import Api
from tests.support.waiting import eventually

KEY = "muster.dev/team"
SYSTEM = "muster-system"
MANAGER = f"system:serviceaccount:{SYSTEM}:muster-controller"
RBAC = "rbac.authorization.k8s.io"

Json = dict[str, Any]
Answer = tuple[int, Any]


@dataclasses.dataclass(frozen=True)
class User:
    """Whom requests impersonate."""

    name: str
    groups: tuple[str, ...] = ()

    @property
    def headers(self) -> list[tuple[str, str]]:
        groups = (*self.groups, "system:authenticated")
        return [("Impersonate-User", self.name), *(("Impersonate-Group", each) for each in groups)]


MALLORY = User("mallory", ("red-people",))
"""May do everything to pods, workloads, nodes, namespaces and bindings that RBAC can allow, but use no team."""
RUTH = User("ruth", ("red-people", "blue-friends"))
"""Works in namespace red, and may use team blue."""
SCHEDULER = User("system:kube-scheduler")
CONTROLLER = User(MANAGER, ("system:serviceaccounts", f"system:serviceaccounts:{SYSTEM}"))
KUBELET = User("system:node:n1", ("system:nodes",))
PLATFORM = User("pat", ("platform",))
OWNER = User("olga", ())

EVERYTHING: list[Json] = [
    {"apiGroups": ["", "apps", "batch"], "resources": ["*"], "verbs": ["*"]},
    {"apiGroups": ["muster.dev"], "resources": ["trainingjobs"], "verbs": ["*"]},
]
USE_BLUE: list[Json] = [
    {"apiGroups": ["muster.dev"], "resources": ["teams"], "resourceNames": ["blue"], "verbs": ["use"]}
]


class World:
    """The control plane, its administrator's requests and those of impersonated people."""

    def __init__(self, access: ClusterAccess) -> None:
        self.access, self.api = access, Api(access.kubeconfig)
        self._people: dict[User, Api] = {}

    def send(self, user: User | None, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """Send as a user; as an administrator (system:masters) where `user` is None."""
        if user is not None and user not in self._people:
            self._people[user] = _Impersonating(self.access.kubeconfig, user)
        api = self.api if user is None else self._people[user]
        code, answer, _ = api.send(method, path, body, **options)
        return code, answer

    def make(self, user: User | None, path: str, body: Json, **query: Any) -> Answer:
        return self.send(user, "POST", path, body, **query)

    def patch(self, user: User | None, path: str, change: Json | list[Json]) -> Answer:
        """A list is a JSON patch, anything else a merge patch."""
        kind = "json-patch" if isinstance(change, list) else "merge-patch"
        return self.send(user, "PATCH", path, change, content_type=f"application/{kind}+json")

    def made(self, user: User | None, path: str, body: Json) -> str:
        """Make it and return its path."""
        code, answer = self.make(user, path, body)
        assert code == 201, answer
        return f"{path}/{answer['metadata']['name']}"

    def pods_of(self, label: str, namespace: str = "red") -> list[Json]:
        found: list[Json] = self.api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"app={label}")["items"]
        return found

    def reported(self, name: str, namespace: str = "red") -> str:
        """What Events say of the failures of a workload to make its pods."""
        events = self.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
        return "\n".join(
            each["message"]
            for each in events
            if each["reason"] == "FailedCreate" and each["involvedObject"]["name"].startswith(name)
        )


class _Connection(http.client.HTTPSConnection):
    """Sends a user's headers with each request: several of one name, which a mapping cannot hold."""

    user: User

    def endheaders(self, *arguments: Any, **options: Any) -> None:
        for name, value in self.user.headers:
            self.putheader(name, value)
        super().endheaders(*arguments, **options)


class _Impersonating(Api):
    """Requests as another user."""

    def __init__(self, kubeconfig: Path, user: User) -> None:
        super().__init__(kubeconfig)
        self._user = user

    def open(self, timeout_s: float = 30.0) -> http.client.HTTPSConnection:
        assert self.server.hostname
        made = _Connection(self.server.hostname, self.server.port, context=self.context, timeout=timeout_s)
        made.user = self._user
        return made


def unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:6]}"


def toleration(team: str = "red", **more: str) -> Json:
    return {"key": KEY, "operator": "Equal", "value": team, "effect": "NoSchedule", **more}


ANY_TEAM = {"key": KEY, "operator": "Exists", "effect": "NoSchedule"}
BORROWED = {"muster.dev/borrowed": "true"}


def kept_to(*teams: str, operator: str = "In") -> Json:
    return {"matchExpressions": [{"key": KEY, "operator": operator, **({"values": list(teams)} if teams else {})}]}


def affinity(*terms: Json) -> Json:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"nodeAffinity": {required: {"nodeSelectorTerms": list(terms)}}}


def template(labels: Json | None = None, **spec: Any) -> Json:
    return {"metadata": {"labels": labels or {}}, "spec": {"containers": [{"name": "c", "image": "none"}], **spec}}


def pod(labels: Json | None = None, *, owner: Json | None = None, **spec: Any) -> Json:
    metadata: Json = {"name": unique("pod"), "labels": labels or {}}
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template(**spec)["spec"]}


def of_team(team: str, labels: Json | None = None, **spec: Any) -> tuple[Json, Json]:
    """Labels and spec of a pod as the webhook fills it in for a team."""
    complete = {"tolerations": [toleration(team)], "affinity": affinity(kept_to(team)), **spec}
    return {KEY: team, **(labels or {})}, complete


def team_pod(team: str, **more: Any) -> Json:
    labels, spec = of_team(team)
    return pod({**labels, **more.pop("labels", {})}, **{**spec, **more})


def owner(api_version: str, kind: str, **more: Any) -> Json:
    return {"apiVersion": api_version, "kind": kind, "name": "o", "uid": str(uuid.uuid4()), "controller": True, **more}


def _role(name: str, rules: list[Json], *subjects: tuple[str, str]) -> list[Json]:
    bound = [{"kind": kind, "name": subject, "apiGroup": RBAC} for kind, subject in subjects]
    return [
        {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
            "subjects": bound,
        },
    ]


def _namespace(name: str, **labels: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def _node(name: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {KEY: "blue"}, "annotations": {"muster.dev/team-record": "{}"}},
        "spec": {"taints": [{"key": KEY, "value": "blue", "effect": "NoSchedule"}]},
    }


def objects_of_the_world() -> list[Json]:
    """Namespaces, nodes, people."""
    low = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "low"}, "value": -10}
    people = [("Group", "red-people"), ("Group", "platform"), ("User", OWNER.name), ("User", MANAGER)]
    return [
        _namespace("red", **{KEY: "red"}),
        _namespace("blue", **{KEY: "blue"}),
        _namespace("unowned"),
        _namespace("exempt"),
        _namespace(SYSTEM),
        _node("n1"),
        _node("n2"),
        low,
        *_role("everything", EVERYTHING, *people, ("Group", "system:nodes")),
        *_role("use-blue", USE_BLUE, ("Group", "blue-friends")),
    ]


ARGUMENTS = (
    "--set=teams.enabled=true",
    "--set=teams.admission.platformGroups={system:masters,platform}",
    f"--set=teams.admission.owners.users={{{OWNER.name}}}",
    "--set=teams.admission.exemptNamespaces={exempt}",
    "--set=teams.admission.daemonSets={red/listed}",
)


PATIENT = {"kube-controller-manager": ["--node-startup-grace-period=3h", "--node-monitor-grace-period=3h"]}
"""No kubelet reports for these nodes. After the usual minute they would be tainted as unreachable, with NoSchedule too,
which DaemonSets do not tolerate by themselves."""


@contextmanager
def making_world(binaries: Path, helm: Helm, *, policies: bool = True) -> Iterator[World]:
    """The world with the policies in force, and a pod that was there before; without the webhook."""
    with ControlPlane(binaries, extra_args=PATIENT) as plane:
        world = World(plane.access)
        chart = rendered(helm, *ARGUMENTS)
        kinds = [each for key, each in chart.items() if key[0] in ("CustomResourceDefinition", "PriorityClass")]
        plane.access.apply(*kinds, *objects_of_the_world())
        for namespace in ("red", "unowned", "exempt", SYSTEM, "kube-system"):
            accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
            eventually(f"{namespace} takes pods", lambda path=accounts: world.send(None, "GET", path)[0] == 200)
        eventually("TrainingJobs are known", lambda: world.send(None, "GET", "/apis/muster.dev/v1alpha1")[0] == 200)
        create = {"verb": "create", "resource": "pods"}
        use = {"verb": "use", "group": "muster.dev", "resource": "teams", "name": "blue"}
        eventually("pods can be created", lambda: _may(world, MALLORY, create))
        eventually("team blue can be used", lambda: _may(world, RUTH, use))
        early = pod(tolerations=[{"operator": "Exists"}])
        early["metadata"]["name"] = "early"
        world.made(MALLORY, "/api/v1/namespaces/red/pods", early)
        if policies:
            plane.access.apply(*(each for key, each in chart.items() if key[0].startswith("ValidatingAdmissionPolicy")))
            eventually("every policy is in force", lambda: _in_force(world))
        yield world


def _may(world: World, user: User, asked: Json) -> bool:
    """Whether the API server knows of a right of the user."""
    kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    _, answer = world.make(user, path, {**kind, "spec": {"resourceAttributes": asked}})
    return bool(answer["status"]["allowed"])


def _in_force(world: World) -> bool:
    """One probe a policy; what gets through is taken back."""
    pods, system = "/api/v1/namespaces/red/pods", f"/api/v1/namespaces/{SYSTEM}/configmaps"
    other = {KEY: "other"}
    replicas = {"replicas": 0, "selector": {"matchLabels": other}, "template": template(other)}
    probes = {
        "pods": world.make(MALLORY, pods, pod(nodeName="n1"), dryRun="All"),
        "templates": world.make(
            MALLORY,
            "/apis/apps/v1/namespaces/red/replicasets",
            {"metadata": {"name": "probe"}, "spec": replicas},
            dryRun="All",
        ),
        "bindings": world.make(
            MALLORY, f"{pods}/early/binding", {"metadata": {"name": "early"}, "target": {"name": "n1"}}, dryRun="All"
        ),
        "nodes": world.send(
            MALLORY,
            "PATCH",
            "/api/v1/nodes/n2",
            {"metadata": {"labels": other}},
            content_type="application/merge-patch+json",
            dryRun="All",
        ),
        "namespaces": world.make(MALLORY, "/api/v1/namespaces", _namespace("probe", **other), dryRun="All"),
        "allocation": world.make(MALLORY, system, {"metadata": {"name": "muster-teams"}}, dryRun="All"),
    }
    return all(code == 403 for code, _ in probes.values())


@pytest.fixture(scope="session")
def world(control_plane_binaries: Path, offline_helm: Helm) -> Iterator[World]:  # noqa: F811
    with making_world(control_plane_binaries, offline_helm) as made:
        yield made
