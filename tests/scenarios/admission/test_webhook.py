"""`muster admission` as a process, with the rights the chart gives it, called by a real API server."""

from __future__ import annotations

import asyncio
import base64
import http.client
import os
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from muster.admission.metrics import AdmissionMetrics
from muster.admission.trust import SECRET, Trust
from muster.controlplane.children import Child
from muster.controlplane.ports import free_port
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.connection.pki import CertificateAuthority
from muster.kube.connection.servingcertificates import LIFETIME
from tests.scenarios.admission.attempts import JOBS, PODS, WORKLOADS, workload
from tests.scenarios.admission.conftest import (
    ANY_TEAM,
    ARGUMENTS,
    BORROWED,
    KEY,
    MALLORY,
    OWNER,
    RUTH,
    SYSTEM,
    Json,
    World,
    affinity,
    kept_to,
    making_world,
    of_team,
    pod,
    toleration,
)
from tests.scenarios.deploy.conftest import Helm, helm_program, offline_helm  # noqa: F401
from tests.scenarios.deploy.test_chart import rendered
from tests.support.musterprogram import MUSTER
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
MUTATING = f"{CONFIGURATIONS}/mutatingwebhookconfigurations/muster-admission"
VALIDATING = f"{CONFIGURATIONS}/validatingwebhookconfigurations/muster-admission"
SECRETS = f"/api/v1/namespaces/{SYSTEM}/secrets"


class Webhook:
    """The process, at one address, in a cluster that has the chart's configuration for it."""

    def __init__(self, world: World, helm: Helm, folder: Path) -> None:
        self.world, self.folder = world, folder
        self.port, self.metrics_port = free_port(), free_port()
        url = f"https://127.0.0.1:{self.port}"
        chart = rendered(helm, *ARGUMENTS, f"--set=teams.admission.webhook.url={url}")
        mine = [
            each
            for (kind, _, name), each in chart.items()
            if name == "muster-admission" and kind not in ("Deployment", "Service", "PodDisruptionBudget")
        ]
        for each in mine:
            for hook in each.get("webhooks", ()):
                hook["timeoutSeconds"] = 30  # a pod that it fills in late is not what is tested
        world.access.apply(*mine)
        self.kubeconfig = world.access.service_account_kubeconfig(SYSTEM, "muster-admission")
        self._child: Child | None = None
        self._runs = 0

    def start(self) -> None:
        self._runs += 1
        command = [
            MUSTER,
            "admission",
            f"--kubeconfig={self.kubeconfig}",
            f"--listen=127.0.0.1:{self.port}",
            f"--metrics-listen=127.0.0.1:{self.metrics_port}",
            "--host=127.0.0.1",
        ]
        self._child = Child(command, self.folder / f"admission-{self._runs}.log", dict(os.environ))
        eventually("the webhook is ready", self.ready)

    def ready(self) -> bool:
        assert self._child is not None
        assert self._child.exit_code is None, self._child.log_tail()
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def stop(self, grace_s: float = 10.0) -> None:
        if self._child is not None:
            self._child.stop(grace_s)
            self._child = None

    def filled_in(self, user: Any = MALLORY, path: str = PODS, body: Json | None = None) -> Json:
        """Make a pod and return it as it is stored."""
        return self.world.api.get(self.world.made(user, path, body or pod()))

    def called(self) -> bool:
        """Whether the API server calls us and believes us: it takes a moment to hear of new certificates."""
        code, made = self.world.make(MALLORY, PODS, pod(), dryRun="All")
        assert code == 201, made
        return made["metadata"]["labels"].get(KEY) == "red"

    def bundles(self) -> set[bytes]:
        return {
            base64.b64decode(each["clientConfig"].get("caBundle", ""))
            for path in (MUTATING, VALIDATING)
            for each in self.world.api.get(path)["webhooks"]
        }


@pytest.fixture(scope="module")
def webhook(
    control_plane_binaries: Path,
    offline_helm: Helm,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Webhook]:
    with making_world(control_plane_binaries, offline_helm) as world:
        made = Webhook(world, offline_helm, tmp_path_factory.mktemp("admission"))
        made.start()
        try:
            eventually("the API server calls it", made.called)
            yield made
        finally:
            made.stop(0)


def at_home(made: Json) -> tuple[Any, Any, Any]:
    """Team, its tolerations and its affinity."""
    tolerations = [each for each in made["spec"].get("tolerations", ()) if each.get("key") == KEY]
    return made["metadata"].get("labels", {}).get(KEY), tolerations, made["spec"].get("affinity")


def test_a_plain_pod_becomes_one_of_its_namespaces_team(webhook: Webhook) -> None:
    assert at_home(webhook.filled_in()) == ("red", [toleration()], affinity(kept_to("red")))


@pytest.mark.parametrize("namespace", ["unowned", "exempt", "kube-system", SYSTEM])
def test_elsewhere_pods_stay_as_they_are(webhook: Webhook, namespace: str) -> None:
    made = webhook.filled_in(None, f"/api/v1/namespaces/{namespace}/pods")
    assert at_home(made) == (None, [], None)


def test_a_namespaces_first_pod_is_filled_in(webhook: Webhook) -> None:
    """However fast it comes: the watch may not have heard of the namespace yet."""
    for number in range(5):
        name = f"quick-{number}"
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {KEY: "red"}}}
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "mine"}}
        webhook.world.made(None, "/api/v1/namespaces", body)
        webhook.world.made(None, f"/api/v1/namespaces/{name}/serviceaccounts", account)
        quick = pod(serviceAccountName="mine")
        code, made = webhook.world.make(None, f"/api/v1/namespaces/{name}/pods", quick, dryRun="All")
        assert code == 201, made
        assert at_home(made)[0] == "red"


def test_a_borrower_gets_its_class_and_the_classs_priority(webhook: Webhook) -> None:
    """The API server wrote the default priority before it asked us, and computes it again afterwards."""
    made = webhook.filled_in(body=pod(BORROWED))
    assert at_home(made) == ("red", [ANY_TEAM], None)
    spec = made["spec"]
    assert (spec["priorityClassName"], spec["priority"]) == ("muster-borrower", -1)


def test_another_team_by_its_label_alone(webhook: Webhook) -> None:
    made = webhook.filled_in(RUTH, body=pod({KEY: "blue"}))
    assert at_home(made) == ("blue", [toleration("blue")], affinity(kept_to("blue")))
    code, said = webhook.world.make(MALLORY, PODS, pod({KEY: "blue"}))
    assert code == 403
    assert "needs the right to use teams/blue" in said["message"]


def test_a_rule_of_ones_own_stands_and_is_judged(webhook: Webhook) -> None:
    rest = affinity(kept_to(operator="DoesNotExist"))
    assert webhook.filled_in(body=pod(affinity=rest))["spec"]["affinity"] == rest
    code, said = webhook.world.make(MALLORY, PODS, pod(affinity=affinity(kept_to("green", operator="NotIn"))))
    assert code == 403
    assert "every required node selector term" in said["message"]


@pytest.mark.parametrize("kind", ["ReplicaSet", "Deployment", "ReplicationController", "StatefulSet", "Job"])
@pytest.mark.parametrize(("user", "labels", "team"), [(MALLORY, {}, "red"), (RUTH, {KEY: "blue"}, "blue")])
def test_controllers_pods_are_filled_in(webhook: Webhook, kind: str, user: Any, labels: Json, team: str) -> None:
    body = workload(kind, labels, {})
    if kind == "Job":
        body["spec"]["suspend"] = False
    else:
        body["spec"]["replicas"] = 1
    webhook.world.made(user, WORKLOADS[kind], body)
    app = body["metadata"]["name"]
    eventually(f"the {kind} has a pod", lambda: webhook.world.pods_of(app))
    (made,) = webhook.world.pods_of(app)
    assert at_home(made) == (team, [toleration(team)], affinity(kept_to(team)))


def test_a_daemonsets_pods_are_made(webhook: Webhook) -> None:
    body = workload("DaemonSet", {}, {"tolerations": [toleration("blue")], "affinity": affinity(kept_to("blue"))})
    webhook.world.made(RUTH, WORKLOADS["DaemonSet"], body)
    app = body["metadata"]["name"]
    eventually("one on each node of the team", lambda: len(webhook.world.pods_of(app)) == 2)
    assert {at_home(each)[0] for each in webhook.world.pods_of(app)} == {"red"}


def test_a_gang_of_an_indexed_job_gets_its_slots(webhook: Webhook) -> None:
    body = workload("Job", {"muster.dev/gang": "g"}, {})
    body["spec"]["template"]["metadata"]["annotations"] = {"muster.dev/gang-size": "2"}
    body["spec"] |= {"suspend": False, "completionMode": "Indexed", "completions": 2, "parallelism": 2}
    path = webhook.world.made(MALLORY, WORKLOADS["Job"], body)
    app = body["metadata"]["name"]
    eventually("both pods are there", lambda: len(webhook.world.pods_of(app)) == 2)
    pods = webhook.world.pods_of(app)
    assert {each["metadata"]["labels"]["muster.dev/slot"] for each in pods} == {"0", "1"}
    assert {each["spec"]["schedulerName"] for each in pods} == {"muster"}
    uid = webhook.world.api.get(path)["metadata"]["uid"]
    assert {each["metadata"]["annotations"]["muster.dev/gang-uid"] for each in pods} == {uid}


def test_a_namespace_may_ask_for_musters_scheduler(webhook: Webhook) -> None:
    labels = {"metadata": {"labels": {"muster.dev/scheduler": "muster"}}}
    assert webhook.world.patch(None, "/api/v1/namespaces/unowned", labels)[0] == 200
    path = "/api/v1/namespaces/unowned/pods"

    def scheduler(**spec: Any) -> str:
        return str(webhook.filled_in(None, path, pod(**spec))["spec"]["schedulerName"])

    eventually("the webhook has heard of it", lambda: scheduler() == "muster")
    assert scheduler(schedulerName="theirs") == "theirs"


def test_a_malformed_allocation_is_refused_with_its_line(webhook: Webhook) -> None:
    configmaps = f"/api/v1/namespaces/{SYSTEM}/configmaps"

    def write(text: str) -> tuple[int, Any]:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "muster-teams"}}
        return webhook.world.make(OWNER, configmaps, {**body, "data": {"teams.yaml": text}})

    code, said = write("allocations:\n- {nodeSelector: {gpu: h100}, team: red, amount: many}\n")
    assert code >= 400
    assert "line 2" in said["message"], said
    good = "allocations:\n- {nodeSelector: {gpu: h100}, team: blue, amount: 2}\n"
    assert write(good)[0] == 201
    try:  # and who has nothing uses the rest
        rest = affinity(kept_to(operator="DoesNotExist"))
        eventually("the webhook has heard of it", lambda: at_home(webhook.filled_in()) == ("red", [], rest))
    finally:
        webhook.world.send(OWNER, "DELETE", f"{configmaps}/muster-teams")
        webhook.stop()  # nodes keep their owners while the ConfigMap is gone: only a new process does not know
        webhook.start()
        eventually("the API server calls it", webhook.called)


def test_while_it_is_away_pods_are_made_and_policies_hold(webhook: Webhook) -> None:
    webhook.stop()
    try:
        assert at_home(webhook.filled_in()) == (None, [], None)
        code, said = webhook.world.make(MALLORY, PODS, pod(tolerations=[toleration()]))
        assert code == 403
        assert "Muster's webhook adds it" in said["message"]
        labels, spec = of_team("red")
        assert webhook.world.make(MALLORY, PODS, pod(labels, **spec))[0] == 201
        assert webhook.world.make(MALLORY, JOBS, workload("TrainingJob", {}, {}))[0] == 201
    finally:
        webhook.start()
    eventually("it is called again", webhook.called)


@pytest.mark.parametrize("damage", ["the Secret is gone", "the Secret is nonsense", "the certificate has ended"])
def test_certificates_that_will_not_do_are_replaced(webhook: Webhook, damage: str) -> None:
    before = webhook.bundles()
    path = f"{SECRETS}/{SECRET}"
    if damage == "the Secret is gone":
        assert webhook.world.send(None, "DELETE", path)[0] == 200
    else:
        data = dict.fromkeys(("ca.crt", "ca.key", "tls.crt", "tls.key"), b"nonsense")
        if damage == "the certificate has ended":
            data = ended()
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        assert webhook.world.patch(None, path, {"data": encoded})[0] == 200
    webhook.stop(0)
    webhook.start()
    eventually("the API server believes it", webhook.called)
    assert webhook.bundles() != before
    assert len(webhook.bundles()) == 1


def ended() -> dict[str, bytes]:
    """Certificates whose life is over, as an administrator's own tool might have left them there."""
    authority = CertificateAuthority.create("muster-admission", skew=timedelta(days=2))
    pair = authority.issue_server("muster-admission", ["127.0.0.1"], timedelta(hours=-1), timedelta(days=2))
    return {
        "ca.crt": authority.certificate,
        "ca.key": authority.pair.key,
        "tls.crt": pair.certificate,
        "tls.key": pair.key,
    }


class Replica:
    """The keeper of certificates of one replica, in this process, with a clock of its own."""

    def __init__(self, client: Client, ahead: timedelta = timedelta()) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        metrics = AdmissionMetrics(CollectorRegistry())
        self._ahead_s = ahead.total_seconds()
        self.trust = Trust(client, SYSTEM, ["127.0.0.1"], context, metrics, clock=self._now)

    def _now(self) -> float:
        return time.time() + self._ahead_s


@pytest.fixture
async def client(webhook: Webhook) -> AsyncIterator[Client]:
    """The rights of the process, which does not run meanwhile."""
    webhook.stop(0)
    async with Client(load_config(webhook.kubeconfig)) as made:
        yield made
    webhook.start()
    eventually("it is called again", webhook.called)


def versions(world: World) -> list[str]:
    return [
        world.api.get(path)["metadata"]["resourceVersion"] for path in (MUTATING, VALIDATING, f"{SECRETS}/{SECRET}")
    ]


async def test_replicas_agree_and_write_nothing_once_all_is_well(webhook: Webhook, client: Client) -> None:
    world = webhook.world
    world.send(None, "DELETE", f"{SECRETS}/{SECRET}")
    replicas = [Replica(client) for _ in range(4)]
    assert {each.trust.not_ready() for each in replicas} == {"no certificate yet"}
    await asyncio.gather(*(each.trust.keep() for each in replicas))
    assert {each.trust.not_ready() for each in replicas} == {None}
    before = versions(world)
    await asyncio.gather(*(each.trust.keep() for each in replicas))
    assert versions(world) == before
    served = world.api.get(f"{SECRETS}/{SECRET}")["data"]["ca.crt"]
    assert webhook.bundles() == {base64.b64decode(served)}


async def test_certificates_are_renewed_before_they_end_under_an_authority_that_stays(
    webhook: Webhook, client: Client
) -> None:
    await Replica(client).trust.keep()
    before = webhook.world.api.get(f"{SECRETS}/{SECRET}")["data"]
    await Replica(client, LIFETIME * 3 / 4).trust.keep()
    after = webhook.world.api.get(f"{SECRETS}/{SECRET}")["data"]
    assert after["tls.crt"] != before["tls.crt"]
    assert after["ca.crt"] == before["ca.crt"]


async def test_deleted_ca_bundle_is_restored(webhook: Webhook, client: Client) -> None:
    replica = Replica(client)
    await replica.trust.keep()
    before = webhook.bundles()
    for path in (MUTATING, VALIDATING):
        change = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
        webhook.world.patch(None, path, change)
    assert webhook.bundles() == {b""}
    await replica.trust.keep()
    assert webhook.bundles() == before
