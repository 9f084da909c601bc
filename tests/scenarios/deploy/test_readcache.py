"""Issue 15 A5: the chart's read cache: what it may do, how its clients find it, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.cli.processes.readcache import command
from muster.kube.connection.config import from_kubeconfig
from muster.kube.connection.pki import CertificateAuthority
from muster.readcache.kindnames import DEFAULT_KINDS
from tests.scenarios.deploy.conftest import CHART, SYSTEM, Helm
from tests.scenarios.deploy.test_chart import rendered as render

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ON = "--set=readCache.enabled=true"
NODES = "--set=readCache.enabled=true,readCache.node.enabled=true"
OWN_TLS = ("--set=readCache.tls.secretName=made", "--set=readCache.tls.caBundle=-----BEGIN CERTIFICATE-----")
OWN = ("muster-readcache", "muster-readcache-node")
Json = dict[str, Any]


RENDERED: dict[tuple[str, ...], Any] = {}


def rendered(helm: Helm, *arguments: str) -> Any:
    """The objects by kind, namespace and name: Helm is run once for equal arguments."""
    if arguments not in RENDERED:
        RENDERED[arguments] = render(helm, *arguments)
    return RENDERED[arguments]


def pod(objects: Any, kind: str = "Deployment", name: str = "muster-readcache") -> tuple[Json, Json]:
    """The pod spec and its container."""
    spec = objects[kind, SYSTEM, name]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


def rules_of(objects: Any, account: str) -> list[Json]:
    """Every rule that is bound to a service account, but for Roles of Kubernetes itself."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": SYSTEM}
    found = []
    for (kind, namespace, _), each in objects.items():
        if kind in ("RoleBinding", "ClusterRoleBinding") and subject in each["subjects"]:
            role = each["roleRef"]
            where = "" if role["kind"] == "ClusterRole" else namespace
            found += objects.get((role["kind"], where, role["name"]), {"rules": []})["rules"]
    return found


def test_there_is_no_cache_unless_it_is_asked_for_and_none_in_shadow(offline_helm: Helm) -> None:
    for arguments in ((), (NODES, "--set=shadow=true"), ("--set=readCache.node.enabled=true",)):
        assert [key for key in rendered(offline_helm, *arguments) if "readcache" in key[2]] == []


def test_cluster_role_names_exactly_the_cached_kinds(offline_helm: Helm) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())["readCache"]
    assert tuple(values["kinds"]) == DEFAULT_KINDS
    kinds = "{pods,leases.v1.coordination.k8s.io,jobs.batch,gangs.v1beta2.example.org}"
    objects = rendered(offline_helm, ON, f"--set=readCache.kinds={kinds}")
    rules = objects["ClusterRole", "", "muster-readcache"]["rules"]
    assert [(rule["apiGroups"], rule["resources"], rule["verbs"]) for rule in rules[:4]] == [
        ([""], ["pods"], ["list", "watch"]),
        (["coordination.k8s.io"], ["leases"], ["list", "watch"]),
        (["batch"], ["jobs"], ["list", "watch"]),
        (["example.org"], ["gangs"], ["list", "watch"]),
    ]
    assert rules[4]["resourceNames"] == ["gangs.example.org"]
    assert {(*rule["resources"], *rule["verbs"]) for rule in rules[4:]} == {
        ("customresourcedefinitions", "get"),
        ("tokenreviews", "create"),
        ("subjectaccessreviews", "create"),
    }
    _, container = pod(objects)
    assert [part for part in container["args"] if part.startswith("--kind=")] == [
        f"--kind={kind}" for kind in kinds.strip("{}").split(",")
    ]
    plain = rendered(offline_helm, ON, "--set=readCache.kinds={pods}")["ClusterRole", "", "muster-readcache"]["rules"]
    assert len(plain) == 3


@pytest.mark.parametrize("arguments", [(NODES,), (ON,)])
def test_cache_never_gets_to_impersonate_or_to_write_what_is_not_its_own(
    offline_helm: Helm, arguments: tuple[str, ...]
) -> None:
    objects = rendered(offline_helm, *arguments)
    for account in OWN:
        for rule in rules_of(objects, account):
            text = str(rule)
            assert "impersonate" not in text
            assert "*" not in text
            if set(rule["verbs"]) - {"get", "list", "watch"} and "resourceNames" not in rule:
                assert rule["verbs"] == ["create"]
    named = {name for rule in rules_of(objects, "muster-readcache") for name in rule.get("resourceNames", ())}
    assert {"muster-readcache-node-tls" in named, "muster-readcache-node" in {key[2] for key in objects}} in (
        {True},
        {False},
    )


def test_caches_on_nodes_have_no_right_to_secrets(offline_helm: Helm) -> None:
    objects = rendered(offline_helm, NODES)
    resources = {resource for rule in rules_of(objects, "muster-readcache-node") for resource in rule["resources"]}
    assert {"pods", "tokenreviews", "subjectaccessreviews"} <= resources
    assert not resources & {"secrets", "configmaps"}
    spec, container = pod(objects, "DaemonSet", "muster-readcache-node")
    assert "--listen=127.0.0.1:6445" in container["args"]
    assert spec["hostNetwork"] is True
    secrets = [volume["secret"] for volume in spec["volumes"] if "secret" in volume]
    assert [each["secretName"] for each in secrets] == ["muster-readcache-node-tls"]
    assert [item["key"] for each in secrets for item in each["items"]] == ["tls.crt", "tls.key"]  # not the authority's
    assert objects["PodDisruptionBudget", SYSTEM, "muster-readcache"]["spec"]["maxUnavailable"] == 1


def test_secrets_are_cached_only_if_they_are_asked_for(offline_helm: Helm) -> None:
    for name in ("secrets", "secrets.v1"):
        done = offline_helm.run(
            "template", "muster", str(CHART), "--kube-version=1.36.0", ON, f"--set=readCache.kinds={{pods,{name}}}"
        )
        assert done.returncode != 0
        assert "could read every Secret of the cluster: remove it, or set readCache.secrets to true" in done.stderr
    asked = (ON, "--set=readCache.secrets=true", "--set=readCache.kinds={pods,secrets}")
    rules = rendered(offline_helm, *asked)["ClusterRole", "", "muster-readcache"]["rules"]
    assert {"apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "watch"]} in rules


WRONG = {
    "readCache.kinds={Pods,pods,pods}": "at '/readCache/kinds/0'",
    "readCache.replicas=0": "at '/readCache/replicas'",
    "readCache.port=443": "at '/readCache/port': minimum: got 443, want 1,024",
    "readCache.decisionSeconds=-1": "at '/readCache/decisionSeconds': minimum: got -1, want 0",
    "readCache.tls.secret=x": "at '/readCache/tls': additional properties 'secret' not allowed",
    "readCache.tls.caBundle=x": "at '/readCache/tls/caBundle'",
}
CLASHES = {
    "readCache.port=9449": "readCache.port and .metricsPort are both 9449",
    "readCache.secrets=true": "readCache.secrets has no effect",
    "readCache.tls.caBundle=-----BEGIN CERTIFICATE-----": "readCache.tls.secretName and .caBundle belong together",
    "readCache.tls.secretName=made": "readCache.tls.secretName and .caBundle belong together",
    "readCache.node.port=9450": "is used twice on each node",
    "health.enabled=true,readCache.node.metricsPort=9446": "is used twice on each node",
    "data.cache.enabled=true,readCache.node.port=9447": "is used twice on each node",
}


def test_a_mistake_is_named_before_anything_is_installed(offline_helm: Helm) -> None:
    template = ("template", "muster", str(CHART), "--kube-version=1.36.0", NODES)
    done = offline_helm.run(*template, *(f"--set={each}" for each in WRONG))
    assert done.returncode != 0
    assert [message for message in WRONG.values() if message not in done.stderr] == [], done.stderr
    for argument, message in CLASHES.items():
        done = offline_helm.run(*template, f"--set={argument}")
        assert done.returncode != 0, argument
        assert message in done.stderr


@pytest.mark.parametrize("arguments", [(NODES,), (ON, *OWN_TLS, "--set=readCache.audiences={a,b}")])
def test_program_knows_every_option_that_the_chart_gives_it(
    offline_helm: Helm, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    objects = rendered(offline_helm, *arguments, "--set=readCache.decisionSeconds=0")
    pods = [pod(objects)]
    if ("DaemonSet", SYSTEM, "muster-readcache-node") in objects:
        pods.append(pod(objects, "DaemonSet", "muster-readcache-node"))
    for spec, container in pods:
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        volumes = {volume["name"] for volume in spec["volumes"]}
        assert set(mounts.values()) == volumes
        given = []
        for part in container["args"]:
            option, _, value = part.replace("$(POD_IP)", "10.0.0.1").partition("=")
            if value.startswith("/"):
                folder = next(path for path in mounts if value.startswith(f"{path}/"))
                file = tmp_path / value.removeprefix(f"{folder}/")
                file.touch()
                value = str(file)
            given.append(f"{option}={value}" if value else option)
        parsed = command.make_context("readcache", given).params
        assert parsed["decision_age_s"] == 0
        assert parsed["kinds"] == DEFAULT_KINDS
        assert parsed["audiences"] == (("a", "b") if "a,b" in arguments[-1] else ())


def test_kubeconfigs_name_the_cache_and_the_files_of_the_pod(offline_helm: Helm, tmp_path: Path) -> None:
    data = rendered(offline_helm, NODES)["ConfigMap", SYSTEM, "muster-readcache"]["data"]
    (tmp_path / "token").write_text("t0ken")
    (tmp_path / "ca.crt").write_bytes(CertificateAuthority.create().certificate)
    servers = {}
    for name, text in data.items():
        file = tmp_path / name
        here = text.replace("/var/run/secrets/kubernetes.io/serviceaccount", str(tmp_path))
        file.write_text(here.replace("/etc/muster-readcache", str(tmp_path)))
        config = from_kubeconfig([file])
        assert config.ca_data
        servers[name] = config.server
    assert servers == {
        "kubeconfig": f"https://muster-readcache.{SYSTEM}.svc:8445",
        "node-kubeconfig": "https://127.0.0.1:6445",
    }


def test_certificate_of_ones_own_needs_no_right_to_secrets(offline_helm: Helm, tmp_path: Path) -> None:
    bundle = CertificateAuthority.create().certificate.decode()
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"readCache": {"tls": {"secretName": "made", "caBundle": bundle}}}))
    objects = rendered(offline_helm, ON, f"--values={values}")
    assert objects["ConfigMap", SYSTEM, "muster-readcache-ca"]["data"] == {"ca.crt": bundle}
    assert rules_of(objects, "muster-readcache") == objects["ClusterRole", "", "muster-readcache"]["rules"]
    spec, _ = pod(objects)
    assert [volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume] == ["made"]


def test_policies_open_the_ports_and_monitors_find_the_pods(offline_helm: Helm) -> None:
    on = "--set=networkPolicy.enabled=true,metrics.serviceMonitor.enabled=true"
    objects = rendered(offline_helm, NODES, on)
    template = objects["Deployment", SYSTEM, "muster-readcache"]["spec"]["template"]
    policy = objects["NetworkPolicy", SYSTEM, "muster-readcache"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    opened = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert opened == {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    service = objects["Service", SYSTEM, "muster-readcache"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert {port["targetPort"] for port in service["spec"]["ports"]} == opened
    monitor = objects["ServiceMonitor", SYSTEM, "muster"]["spec"]["selector"]
    assert service["metadata"]["labels"]["app.kubernetes.io/component"] in monitor["matchExpressions"][0]["values"]
    node = objects["DaemonSet", SYSTEM, "muster-readcache-node"]["spec"]["template"]["metadata"]["labels"]
    scraped = objects["PodMonitor", SYSTEM, "muster-readcache-node"]["spec"]["selector"]["matchLabels"]
    assert scraped.items() <= node.items()
    assert not policy["podSelector"]["matchLabels"].items() <= node.items()


def test_requests_of_the_cache_have_their_own_share_of_the_api_server(offline_helm: Helm) -> None:
    objects = rendered(offline_helm, NODES)
    schema = objects["FlowSchema", "", "muster-readcache"]["spec"]
    level = schema["priorityLevelConfiguration"]["name"]
    assert objects["PriorityLevelConfiguration", "", level]["spec"]["limited"]["nominalConcurrencyShares"] == 20
    (rule,) = schema["rules"]
    assert [subject["serviceAccount"]["name"] for subject in rule["subjects"]] == list(OWN)
    assert schema["matchingPrecedence"] < objects["FlowSchema", "", "muster"]["spec"]["matchingPrecedence"]
    assert ("FlowSchema", "", "muster-readcache") not in rendered(offline_helm, NODES, "--set=flowSchema.enabled=false")


def test_caches_on_nodes_may_run_on_nodes_of_pools(offline_helm: Helm) -> None:
    show = ("--set=pools.policy=Deny", "--show-only=templates/pools.yaml")
    assert f"'{SYSTEM}/muster-readcache-node'" in offline_helm.template(*show, NODES)
    assert "readcache" not in offline_helm.template(*show, ON)


def test_agents_run_through_the_cache_and_without_it(offline_helm: Helm) -> None:
    def agent(*arguments: str) -> tuple[list[str], Json | None]:
        spec, container = pod(
            rendered(offline_helm, "--set=health.enabled=true", *arguments), "DaemonSet", "muster-agent"
        )
        mounted = [each["name"] for each in container["volumeMounts"] if each["mountPath"] == "/etc/muster-readcache"]
        volumes = [volume["configMap"] for volume in spec["volumes"] if volume["name"] in mounted]
        return [part for part in container["args"] if "read-cache" in part], volumes[0] if volumes else None

    trusted = "--read-cache-ca=/etc/muster-readcache/ca.crt"
    central = f"--read-cache=https://muster-readcache.{SYSTEM}.svc:8445"
    assert agent() == ([], None)
    assert agent(ON, "--set=readCache.agents=false") == ([], None)
    assert agent(ON) == ([central, trusted], {"name": "muster-readcache-ca", "optional": True})
    assert agent(NODES) == (
        ["--read-cache=https://127.0.0.1:6445", trusted],
        {"name": "muster-readcache-node-ca", "optional": True},
    )
