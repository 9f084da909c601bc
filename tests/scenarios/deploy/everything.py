"""A cluster for the chart with every part switched on: people of two teams, a cloud, a webhook behind its Service."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest

from muster.controlplane.clusteraccess import KubectlError
from tests.scenarios.deploy.conftest import SYSTEM, Cluster, making_cluster
from tests.support.auditlog import AuditEntry
from tests.support.awsserver import CREDENTIALS, aws_server
from tests.support.serviceproxy import ServiceProxy
from tests.support.waiting import eventually

TEAM = "muster.dev/team"
WEBHOOK_ACCOUNT = f"system:serviceaccount:{SYSTEM}:muster-admission"
WEBHOOK_SELECTOR = "app.kubernetes.io/name=muster,app.kubernetes.io/component=admission"
WEBHOOK_PORT = 8444
MALLORY = ("--as=mallory", "--as-group=red-people", "--as-group=system:authenticated")
"""May edit what is in namespace red."""
OLGA = ("--as=olga", "--as-group=system:authenticated")
"""Owner of the allocation."""
OSCAR = ("--as=oscar", "--as-group=ops", "--as-group=system:authenticated")
"""May edit what is in every namespace; of no platform group, and no owner of the allocation."""
ALLOCATION = """\
allocations:
- {nodeSelector: {role: worker}, team: red, amount: 2}
- {nodeSelector: {role: worker}, team: blue, amount: 1}
"""
WAIT_S = 150.0

Json = dict[str, Any]


def toleration(team: str) -> Json:
    return {"key": TEAM, "operator": "Equal", "value": team, "effect": "NoSchedule"}


def pod(name: str, namespace: str = "red", **spec: Any) -> Json:
    container = {"name": "c", "image": "none", "command": ["sleep", "3600"]}
    meta = {"name": name, "namespace": namespace}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


class Cloud:
    """One Auto Scaling group of moto's server."""

    GROUP = "cloud"

    def __init__(self, address: str) -> None:
        self.address = address
        self.client: Any = boto3.client(
            "autoscaling",
            endpoint_url=address,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )
        self.client.create_launch_configuration(
            LaunchConfigurationName=self.GROUP, ImageId="ami-12c6146b", InstanceType="p5.48xlarge"
        )
        self.client.create_auto_scaling_group(
            AutoScalingGroupName=self.GROUP,
            LaunchConfigurationName=self.GROUP,
            MinSize=0,
            MaxSize=5,
            DesiredCapacity=1,
            AvailabilityZones=["us-east-1a"],
            NewInstancesProtectedFromScaleIn=True,
        )

    @property
    def instances(self) -> list[str]:
        (group,) = self.client.describe_auto_scaling_groups(AutoScalingGroupNames=[self.GROUP])["AutoScalingGroups"]
        return [each["InstanceId"] for each in group["Instances"]]

    @property
    def environment(self) -> dict[str, str]:
        """What the controller needs to reach it."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.address}


class Everything:
    """The cluster, and what an operator does with it."""

    def __init__(self, cluster: Cluster, cloud: Cloud) -> None:
        self.cluster, self.cloud = cluster, cloud
        self.since = cluster.audit.position()
        self._direct = ServiceProxy(cluster.plane.kubeconfig, SYSTEM, WEBHOOK_SELECTOR, WEBHOOK_PORT)
        self._service: ServiceProxy | None = None

    @property
    def values(self) -> list[str]:
        """Every part of the chart, one replica of each."""
        balloon_pool = {"name": "spare", "nodeSelector": {"role": "spare"}, "replicas": 4, "resources": {"cpu": 4}}
        scaled = {
            "name": "cloud",
            "provider": "aws",
            "group": Cloud.GROUP,
            "options": {"region": "us-east-1"},
            "max": 2,
            "idleSeconds": 1,
            "coolDownSeconds": 0,
            "pollSeconds": 1,
            "template": {"labels": {"role": "cloud"}, "capacity": {"cpu": 8, "memory": "32Gi"}},
        }
        fleet = {
            "balloons": {"enabled": True, "priority": -7, "config": {"pools": [balloon_pool]}},
            "joins": {"enabled": True, "config": {"periodSeconds": 1, "nodeSelector": {"role": "late"}}},
            "scaling": {"enabled": True, "config": {"pools": [scaled]}},
        }
        env = [{"name": name, "value": value} for name, value in self.cloud.environment.items()]
        return [
            "--set=replicas=1,teams.admission.webhook.replicas=1,teams.enabled=true",
            "--set=teams.admission.platformGroups={system:masters,platform}",
            "--set=teams.admission.owners.users={olga}",
            "--set=data.cache.enabled=true,data.cache.nodeSelector.role=none",  # these processes may not be user 65532
            f"--set-json=fleet={json.dumps(fleet)}",
            f"--set-json=extraEnv={json.dumps(env)}",
        ]

    @property
    def direct(self) -> list[str]:
        """The API server reaches the webhook at an address of its own instead of the Service."""
        return [f"--set=teams.admission.webhook.url=https://127.0.0.1:{self._direct.port}"]

    def start(self) -> None:
        self._direct.start()
        for number in range(2):
            self.cluster.add_node(f"spare-{number}", gpus=0, role="spare")
        for namespace in ("red", "blue"):
            self.cluster.namespace(namespace, **{TEAM: namespace})
        rbac = {"apiGroup": "rbac.authorization.k8s.io"}
        people = {**rbac, "kind": "Group", "name": "red-people"}
        owner = {**rbac, "kind": "User", "name": "olga"}
        roles = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding"}
        edit = {**rbac, "kind": "ClusterRole", "name": "edit"}
        self.cluster.namespace(SYSTEM)
        self.cluster.plane.access.apply(
            {
                **roles,
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "ops"},
                "subjects": [{**people, "name": "ops"}],
                "roleRef": edit,
            },
            {**roles, "metadata": {"name": "people", "namespace": "red"}, "subjects": [people], "roleRef": edit},
            {**roles, "metadata": {"name": "owner", "namespace": SYSTEM}, "subjects": [owner], "roleRef": edit},
        )

    def stop(self) -> None:
        self.close_service()
        self._direct.stop()

    def open_service(self) -> None:
        """Stand in for kube-proxy at the address that the Service has."""
        spec = self.cluster.get("service", "muster-admission", f"--namespace={SYSTEM}")["spec"]
        at = {"host": spec["clusterIP"], "port": spec["ports"][0]["port"]}
        self._service = ServiceProxy(self.cluster.plane.kubeconfig, SYSTEM, WEBHOOK_SELECTOR, WEBHOOK_PORT, **at)
        self._service.start()

    def close_service(self) -> None:
        """From now on no process answers."""
        if self._service is not None:
            self._service.stop()
            self._service = None

    def create(self, body: Json, *arguments: str) -> Json:
        """Create it and return it as it is stored; raises KubectlError where it is refused."""
        said = self.cluster.kubectl("create", "--filename=-", "--output=json", *arguments, stdin=json.dumps(body))
        made: Json = json.loads(said)
        return made

    def refused(self, body: Json, *arguments: str) -> str:
        """Return what is said where it is refused, or warned about with --warnings-as-errors; "" where it is taken."""
        try:
            self.create(body, "--dry-run=server", *arguments)
        except KubectlError as error:
            return error.stderr
        return ""

    def allocate(self, text: str, *arguments: str) -> None:
        """Write the ConfigMap of teams, as its owner unless others are named."""
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "muster-teams", "namespace": SYSTEM}}
        said = json.dumps({**body, "data": {"teams.yaml": text}})
        who = () if any(each.startswith("--as=") for each in arguments) else OLGA
        self.cluster.kubectl("apply", "--filename=-", *who, *arguments, stdin=said)

    def called(self) -> bool:
        """Whether the API server reaches the webhook and believes it."""
        labels = self.create(pod("probe"), "--dry-run=server")["metadata"].get("labels", {})
        return bool(labels.get(TEAM) == "red")

    def nodes(self) -> dict[str, Json]:
        return {each["metadata"]["name"]: each for each in self.cluster.get("nodes")["items"]}

    def owners(self) -> dict[str, int]:
        """How many nodes each team has, by label and taint; what they do not agree on is under "torn"."""
        counted: dict[str, int] = {}
        for node in self.nodes().values():
            label = node["metadata"]["labels"].get(TEAM, "")
            taints = [each.get("value", "") for each in node["spec"].get("taints", ()) if each["key"] == TEAM]
            owner = label if taints == [label] * bool(label) else "torn"
            counted[owner] = counted.get(owner, 0) + bool(owner)
        return {owner: count for owner, count in counted.items() if count}

    def runs(self, name: str, namespace: str = "red") -> str:
        """The node on which a pod runs, "" while it does not."""
        found = self.cluster.get("pod", name, f"--namespace={namespace}")
        return str(found["spec"]["nodeName"]) if found["status"]["phase"] == "Running" else ""

    def balloons(self) -> dict[str, str]:
        """Nodes of the balloons that are there and not on their way out, by pod."""
        pods = self.cluster.get("pods", f"--namespace={SYSTEM}", "--selector=muster.dev/balloon")["items"]
        there = [each for each in pods if "deletionTimestamp" not in each["metadata"]]
        return {each["metadata"]["name"]: each["spec"].get("nodeName", "") for each in there}

    def entries(self, account: str) -> list[AuditEntry]:
        return [entry for entry in self.cluster.audit.entries(self.since) if entry.user.username == account]

    def logs(self) -> str:
        """What Muster's processes said, for a test that fails."""
        mine = (f"--namespace={SYSTEM}", "--selector=app.kubernetes.io/name=muster")
        return self.cluster.kubectl("get", "pods", *mine) + self.cluster.kubectl("logs", *mine, "--tail=60", "--prefix")

    def until(self, what: str, check: Any) -> Any:
        """Wait for it; what kubectl cannot answer is not true yet."""

        def ask() -> Any:
            try:
                return check()
            except KubectlError:
                return False

        try:
            return eventually(what, ask, WAIT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None


@contextmanager
def making_everything(binaries: Path, helm_program: Path, folder: Path) -> Iterator[Everything]:
    """The cluster, its people and its cloud; nothing is installed yet."""
    if os.geteuid() != 0:
        pytest.skip("the webhook's Service has port 443: standing in for kube-proxy there needs root")
    services = ["--service-cluster-ip-range=127.209.0.0/24"]  # so that Services can have listeners here
    with (
        aws_server(folder) as address,
        making_cluster(binaries, helm_program, folder, workers=3, apiserver=services) as cluster,
    ):
        made = Everything(cluster, Cloud(address))
        try:
            made.start()
            yield made
        finally:
            made.stop()
