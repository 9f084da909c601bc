"""Teams, admission, balloons, joins and scaling, installed with helm on a real control plane: shadow, Audit, Deny.

The tests go on from each other, as an operator does: each upgrade is made once. The last ones look at all rights used.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.api.cache_ticket import CACHE_CONFIG_MAP, TICKET_KEY
from muster.controlplane.clusteraccess import KubectlError
from tests.scenarios.deploy.conftest import ACCOUNT, SELECTOR, SYSTEM
from tests.scenarios.deploy.everything import (
    ALLOCATION,
    MALLORY,
    OSCAR,
    TEAM,
    WEBHOOK_ACCOUNT,
    Everything,
    making_everything,
    pod,
    toleration,
)
from tests.scenarios.deploy.rights import forbidden, granted, unused

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(420)]

NOTED = "validation.policy.admission.k8s.io/validation_failure"
NEEDS_RIGHT = "needs the right to use teams/blue"
READS = ("get", "list", "watch")
INSTALLING = Path(__file__).parents[3] / "docs" / "install.md"


@pytest.fixture(scope="module")
def everything(
    control_plane_binaries: Path, helm_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Everything]:
    folder = tmp_path_factory.mktemp("everything")
    with making_everything(control_plane_binaries, helm_program, folder) as made:
        made.cluster.install(*made.values, *made.direct, "--set=shadow=true")
        yield made


def of_blue(name: str) -> dict[str, object]:
    return pod(name, tolerations=[toleration("blue")])


def test_shadow_writes_only_its_lease_and_denies_no_request(everything: Everything) -> None:
    everything.allocate(ALLOCATION, "--as-group=system:masters", "--as=admin")
    job = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "fits", "namespace": "red"},
        "spec": {"replicas": 1, "gpusPerNode": 4, "launcher": "none", "image": "none", "command": ["true"]},
    }
    everything.create(job)
    everything.until(
        "the plan is logged", lambda: "shadow: red/fits: would WritePlacement fits: 0 -> " in everything.logs()
    )
    warned = ("--warnings-as-errors", *MALLORY)
    everything.until("policies warn", lambda: NEEDS_RIGHT in everything.refused(of_blue("warned"), *warned))
    assert everything.refused(of_blue("taken"), *MALLORY) == ""

    cluster = everything.cluster
    assert everything.owners() == {}
    assert cluster.get("deployments", f"--namespace={SYSTEM}", "--selector=muster.dev/balloon-pool")["items"] == []
    hooks = cluster.get("mutatingwebhookconfigurations,validatingwebhookconfigurations")["items"]
    assert hooks == []
    writes = {(each.verb, each.object_ref.what) for each in everything.entries(ACCOUNT) if each.verb not in READS}
    assert writes == {("create", "leases"), ("update", "leases")}
    assert everything.entries(WEBHOOK_ACCOUNT) == []
    assert everything.cloud.instances != []
    roles = granted(cluster)
    assert roles.keys() == {"muster-controller", "muster-teams"}
    assert unused(roles["muster-teams"], everything.entries(ACCOUNT)) == []
    cluster.kubectl("delete", "trainingjob", "fits", "--namespace=red")


def test_audit_warns_and_notes_and_fills_in(everything: Everything) -> None:
    """From shadow straight to all parts at work, with policies that refuse nothing yet."""
    everything.cluster.upgrade(*everything.values, *everything.direct, "--set=teams.admission.policy=Audit")
    everything.until("the webhook is called at its address", everything.called)
    everything.until("teams have their nodes", lambda: everything.owners() == {"red": 2, "blue": 1})
    assert NEEDS_RIGHT in everything.refused(of_blue("warned"), *MALLORY, "--warnings-as-errors")
    everything.create(of_blue("noted"), *MALLORY)
    noted = [
        each.annotations[NOTED]
        for each in everything.cluster.audit.entries(everything.since)
        if each.user.username == "mallory" or NOTED in each.annotations
        if each.verb == "create" and each.object_ref.what == "pods" and NOTED in each.annotations
    ]
    assert any(NEEDS_RIGHT in each and '"muster-teams-pods"' in each for each in noted), noted
    everything.cluster.kubectl("delete", "pod", "noted", "--namespace=red", "--wait=false")


def test_the_key_for_tickets_of_node_caches_is_published_and_mended(everything: Everything) -> None:
    """Node caches have no rights: they verify tickets with the key in a ConfigMap that they mount."""
    cluster = everything.cluster
    where = ("configmap", CACHE_CONFIG_MAP, f"--namespace={SYSTEM}")

    def published() -> str:
        return str(cluster.get(*where)["data"].get(TICKET_KEY, ""))

    key = everything.until("the key is published", published)
    cluster.kubectl("patch", *where, "--patch", json.dumps({"data": {TICKET_KEY: ""}}))
    cluster.kubectl("delete", "pods", f"--namespace={SYSTEM}", f"--selector={SELECTOR}", "--wait=false")
    everything.until("the next leader mends it", lambda: published() == key)
    assert granted(cluster, "muster-cache") == {}


def test_deny_behind_the_service(everything: Everything) -> None:
    """One upgrade switches the policies and the webhook's address; Muster's own change of its configuration stays."""
    before = everything.cluster.get("secret", "muster-admission-tls", f"--namespace={SYSTEM}")["data"]
    everything.cluster.upgrade(*everything.values, "--set=teams.admission.exemptNamespaces={away}")
    everything.open_service()
    everything.until("it is called through its Service", everything.called)
    after = everything.cluster.get("secret", "muster-admission-tls", f"--namespace={SYSTEM}")["data"]
    assert after["tls.crt"] != before["tls.crt"], "it is for another name"
    (hook,) = everything.cluster.get("mutatingwebhookconfiguration", "muster-admission")["webhooks"]
    assert hook["clientConfig"]["caBundle"] == after["ca.crt"]
    assert hook["clientConfig"]["service"]["name"] == "muster-admission"
    assert "url" not in hook["clientConfig"]
    assert "away" in hook["namespaceSelector"]["matchExpressions"][0]["values"]
    everything.until("another team is refused", lambda: NEEDS_RIGHT in everything.refused(of_blue("no"), *MALLORY))

    def malformed() -> str:
        try:
            everything.allocate(ALLOCATION.replace("amount: 1", "amount: one"), "--dry-run=server")
        except KubectlError as error:
            return error.stderr
        return ""

    everything.until("the line of a malformed allocation is named", lambda: "line 3" in malformed())
    with pytest.raises(KubectlError, match=r"teams\.admission\.owners"):
        everything.cluster.kubectl("delete", "configmap", "muster-teams", f"--namespace={SYSTEM}", *OSCAR)


def test_a_teams_pod_runs_on_its_teams_node(everything: Everything) -> None:
    made = everything.create(pod("mine"), *MALLORY)
    assert made["metadata"]["labels"][TEAM] == "red"
    assert toleration("red") in made["spec"]["tolerations"]
    node = everything.until("it runs", lambda: everything.runs("mine"))
    assert everything.nodes()[node]["metadata"]["labels"][TEAM] == "red"


def test_a_node_of_a_pool_joins(everything: Everything) -> None:
    (instance,) = everything.cloud.instances
    everything.cluster.add_node("cloud-0", gpus=0, role="cloud")
    named = json.dumps({"spec": {"providerID": f"aws:///us-east-1a/{instance}"}})
    everything.until("it is there", lambda: "cloud-0" in everything.nodes())
    everything.cluster.kubectl("patch", "node", "cloud-0", f"--patch={named}")


def test_balloons_keep_spare_nodes_and_follow_them(everything: Everything) -> None:
    spare = {"spare-0", "spare-1"}
    everything.until("one on each", lambda: set(everything.balloons().values()) == spare)
    name = next(iter(everything.balloons()))
    placed = everything.cluster.get("pod", name, f"--namespace={SYSTEM}")["spec"]
    assert (placed["priority"], placed["priorityClassName"]) == (-7, "muster-balloon")
    everything.cluster.kubectl("cordon", "spare-0")
    everything.until("it leaves a closed node", lambda: set(everything.balloons().values()) == {"spare-1"})
    everything.cluster.kubectl("uncordon", "spare-0")
    with pytest.raises(AssertionError, match="kubectl delete priorityclass muster-balloon"):
        everything.cluster.upgrade(*everything.values, "--set=fleet.balloons.priority=-3")
    everything.until("one on each again", lambda: set(everything.balloons().values()) == spare)


def test_a_new_node_is_held_back_and_opened(everything: Everything) -> None:
    cluster = everything.cluster
    meta = {"name": "late-0", "labels": {"role": "late"}}
    everything.create({"apiVersion": "v1", "kind": "Node", "metadata": meta})

    def held() -> bool:
        taints = everything.nodes()["late-0"]["spec"].get("taints", ())
        return "muster.dev/joining" in {each["key"] for each in taints}

    def pace() -> str:
        found = cluster.get("configmap", "muster-joins", f"--namespace={SYSTEM}")
        return str(found["metadata"].get("annotations", {}).get("muster.dev/join-pace", ""))

    everything.until("it is held back", held)
    everything.until("the pace says that one is coming", lambda: json.loads(pace() or "{}").get("waiting") == 1)
    cluster.add_node("late-0", gpus=0, role="late")
    everything.until("it is opened", lambda: not held())
    everything.until("no node waits", lambda: json.loads(pace() or "{}").get("waiting", 0) == 0)


def test_an_idle_node_is_given_back(everything: Everything) -> None:
    everything.until("its instance is gone", lambda: everything.cloud.instances == [])
    everything.cluster.nodes["cloud-0"].lose()


def test_no_request_is_blocked_while_the_webhook_is_down(everything: Everything) -> None:
    cluster = everything.cluster
    everything.close_service()
    made = everything.create(pod("plain"), *MALLORY)
    assert TEAM not in made["metadata"].get("labels", {})
    assert NEEDS_RIGHT in everything.refused(of_blue("no"), *MALLORY)
    everything.allocate(ALLOCATION)
    anywhere = {"tolerations": [{"operator": "Exists"}], "nodeName": "worker-0"}
    for namespace in ("kube-system", SYSTEM):
        everything.until(
            f"{namespace} takes any pod",
            lambda name=namespace: everything.refused(pod("any", name, **anywhere), *OSCAR) == "",
        )
    gone = ("delete", "pods", f"--namespace={SYSTEM}", "--selector=app.kubernetes.io/name=muster", "--wait=true")
    cluster.kubectl(*gone)
    for deployment in ("muster-controller", "muster-admission"):
        status = ("rollout", "status", f"deployment/{deployment}", f"--namespace={SYSTEM}", "--timeout=30s")
        everything.until(f"{deployment} is rolled out", lambda status=status: cluster.kubectl(*status))
    everything.open_service()
    everything.until("it is called again", everything.called)
    cluster.kubectl("delete", "pod", "plain", "--namespace=red", "--wait=false")


def test_damaged_certificates_are_recreated(everything: Everything) -> None:
    nonsense = json.dumps({"data": {"tls.crt": "bm9uc2Vuc2U="}})
    secret = ("secret", "muster-admission-tls", f"--namespace={SYSTEM}")
    everything.cluster.kubectl("patch", *secret, f"--patch={nonsense}")
    everything.until("they are replaced", lambda: everything.cluster.get(*secret)["data"]["tls.crt"] != "bm9uc2Vuc2U=")
    everything.until("it is called", everything.called)


def test_the_node_object_of_what_was_given_back_goes_too(everything: Everything) -> None:
    everything.until("it is gone", lambda: "cloud-0" not in everything.nodes())


def test_parts_are_handed_back_before_they_go(everything: Everything) -> None:
    """As the page on installation says: what a part made is gone before the part is."""
    everything.allocate(ALLOCATION.replace("amount: 1", "amount: 0"))
    everything.cluster.upgrade(*everything.values, "--set-json=fleet.balloons.config.pools=[]")
    of_pools = ("deployments", f"--namespace={SYSTEM}", "--selector=muster.dev/balloon-pool")
    everything.until("there are no balloons", lambda: everything.cluster.get(*of_pools)["items"] == [])
    everything.until("blue has given its node back", lambda: everything.owners() == {"red": 2})


SELDOM = {
    "get namespaces": "for a pod that comes before the watch has heard of its new namespace",
}
"""Rights of the webhook that these tests need not use, and when it does."""


def test_every_right_of_these_parts_is_used_and_sufficient(
    everything: Everything, request: pytest.FixtureRequest
) -> None:
    ran = {item.name for item in request.session.items if item.path == request.node.path}
    needed = {name for name in globals() if name.startswith("test_")}
    if not needed <= ran:
        pytest.skip(f"the whole file must run, {', '.join(sorted(needed - ran))} too")
    cluster = everything.cluster
    assert forbidden(cluster, ACCOUNT) == set()
    assert forbidden(cluster, WEBHOOK_ACCOUNT) == set()

    roles = granted(cluster)
    own = {"muster-teams", "muster-balloons", "muster-joins", "muster-scaling", "muster-cache"}
    assert roles.keys() == own | {"muster-controller"}
    entries = everything.entries(ACCOUNT)
    assert {name: unused(roles[name], entries) for name in own} == {name: [] for name in own}
    patched = [each.request_uri for each in entries if (each.verb, each.object_ref.what) == ("patch", "nodes")]
    for part in ("muster-teams", "muster-joins", "muster-scaling"):
        assert any(f"fieldManager={part}" in uri for uri in patched), part

    of_webhook = granted(cluster, "muster-admission")
    assert of_webhook.keys() == {"muster-admission"}
    seldom = unused(of_webhook["muster-admission"], everything.entries(WEBHOOK_ACCOUNT))
    assert {f"{each.verb} {each.resource}" for each in seldom} <= SELDOM.keys()


def test_an_uninstall_leaves_what_is_not_helms(everything: Everything) -> None:
    """The team that was not handed back keeps its nodes and its pods; the page says what takes the rest away."""
    cluster = everything.cluster
    cluster.uninstall()
    kinds = (
        "validatingadmissionpolicies,validatingadmissionpolicybindings,mutatingwebhookconfigurations,"
        "validatingwebhookconfigurations,clusterroles,clusterrolebindings,priorityclasses,flowschemas"
    )
    left = [each["metadata"]["name"] for each in cluster.get(kinds)["items"]]
    assert [name for name in left if name.startswith("muster")] == []
    kinds = {each["metadata"]["name"] for each in cluster.get("crds")["items"]}
    assert kinds >= {"trainingjobs.muster.dev", "placements.muster.dev"}
    own = {each["metadata"]["name"] for each in cluster.get("configmaps,secrets", f"--namespace={SYSTEM}")["items"]}
    assert own >= {"muster-teams", "muster-admission-tls", "muster-scaling-status"}
    # kube-apiserver looks once a second which policies there are.
    everything.until("no policy refuses a pod", lambda: everything.refused(of_blue("again"), *MALLORY) == "")
    assert everything.owners() == {"red": 2}
    assert everything.runs("mine")

    (commands,) = (each for each in INSTALLING.read_text().split("```")[1::2] if "noderemediations --all" in each)
    for line in commands.strip().splitlines():
        with contextlib.suppress(KubectlError):  # "not found": the page says so
            cluster.kubectl(*line.partition("#")[0].split()[1:])
    assert everything.owners() == {}
    marks = [each["metadata"].get("annotations", {}) for each in everything.nodes().values()]
    assert [each for each in marks if "muster.dev/team-record" in each] == []
