"""What the chart renders, and whether a real API server takes it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.agent.settings import load_settings
from muster.controlplane.clusteraccess import KubectlError
from muster.fleet.balloons.config import BalloonPool
from muster.fleet.balloons.deployment import manifest
from tests.scenarios.deploy.conftest import CHART, SYSTEM, Cluster, Helm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

VARIATIONS = {
    "default": (),
    "shadow": ("--set=shadow=true",),
    "one replica at its own address": ("--set=replicas=1", "--set=advertiseUrl=https://$(POD_IP):8443"),
    "everything set": (
        "--set=image.repository=registry.example/muster,image.tag=1.2.3,image.pullPolicy=Always",
        "--set=imagePullSecrets[0].name=pull",
        "--set=nodeSelector.role=system",
        "--set=tolerations[0].operator=Exists",
        "--set=extraArgs={--log-level=debug}",
        "--set=extraEnv[0].name=HTTPS_PROXY,extraEnv[0].value=http://proxy:3128",
        "--set=service.port=9000,metrics.port=9001",
        "--set=podSecurityContext.runAsUser=null",
        '--set-json=affinity={"podAntiAffinity":{}}',
    ),
    "scaling": (
        "--set=fleet.scaling.enabled=true",
        '--set-json=fleet.scaling.config={"pools":[{"name":"a","provider":"aws","max":4,"template":{"capacity":{"cpu":8}}}]}',
    ),
    "every part": (
        "--set=teams.enabled=true,fleet.balloons.enabled=true,fleet.joins.enabled=true,fleet.scaling.enabled=true",
    ),
    "every part in shadow": (
        "--set=teams.enabled=true,fleet.balloons.enabled=true,fleet.joins.enabled=true,fleet.scaling.enabled=true",
        "--set=health.enabled=true",
        "--set=shadow=true",
    ),
    "health": ("--set=health.enabled=true",),
    "health without a privileged container": (
        "--set=health.enabled=true,health.agent.kernelLog=/var/log/kern.log,health.agent.groups={4}",
        "--set=health.agent.runtimeClassName=nvidia",
    ),
    "preflight": (
        "--set=health.enabled=true,health.preflight.enabled=true,health.preflight.required=true",
        "--set=health.preflight.config.image=registry.example/gputest:1",
    ),
    "data cache": ("--set=data.cache.enabled=true,data.cache.socketMarks=true,networkPolicy.enabled=true",),
    "read cache": ("--set=readCache.enabled=true,readCache.node.enabled=true,networkPolicy.enabled=true",),
    "guard": (
        "--set=telemetry.guard.enabled=true,telemetry.guard.config.upstream.url=http://prometheus:9090",
        "--set=telemetry.guard.secrets={guard-tls},networkPolicy.enabled=true",
        "--set=telemetry.guard.config.callers.cluster.callers[0].name=rules",
        "--set=telemetry.guard.config.callers.cluster.callers[0].groups={rulers}",
    ),
    "network policies": ("--set=networkPolicy.enabled=true,teams.enabled=true,health.enabled=true",),
    "no flow schema, no user roles": ("--set=flowSchema.enabled=false", "--set=aggregateUserRoles=false"),
}


def rendered(helm: Helm, *arguments: str) -> dict[tuple[str, str, str], Any]:
    """The objects by kind, namespace and name."""
    objects = [each for each in yaml.load_all(helm.template(*arguments), yaml.CSafeLoader) if each]
    return {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each for each in objects}


def controller(objects: dict[tuple[str, str, str], Any]) -> tuple[Any, Any]:
    """The controller's pod spec and its container."""
    pod = objects["Deployment", SYSTEM, "muster-controller"]["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


@pytest.fixture(scope="module")
def accepted() -> set[str]:
    """Objects, as JSON, that the API server has accepted: most variations render the same ones."""
    return set()


@pytest.mark.parametrize("arguments", VARIATIONS.values(), ids=VARIATIONS)
def test_a_real_api_server_takes_everything(
    offline_helm: Helm, cluster: Cluster, arguments: tuple[str, ...], accepted: set[str]
) -> None:
    objects = rendered(offline_helm, *arguments)
    assert len(objects) > 8
    new = {json.dumps(each, sort_keys=True) for each in objects.values()} - accepted
    if not new:
        return
    cluster.namespace(SYSTEM)
    body = f'{{"apiVersion": "v1", "kind": "List", "items": [{", ".join(sorted(new))}]}}'
    output = cluster.plane.access.kubectl("apply", "--dry-run=server", "--validate=strict", "--filename=-", stdin=body)
    assert output.count("(server dry run)") == len(new)
    accepted |= new


def test_lint_finds_nothing(offline_helm: Helm) -> None:
    assert "[ERROR]" not in offline_helm.ok("lint", "--strict", str(CHART))


def test_kinds_are_upgraded_and_kept(offline_helm: Helm) -> None:
    kept = [each for key, each in rendered(offline_helm).items() if key[0] == "CustomResourceDefinition"]
    assert {each["metadata"]["name"] for each in kept} == {
        f"{plural}.muster.dev"
        for plural in (
            "trainingjobs",
            "placements",
            "nodehealths",
            "preflights",
            "noderemediations",
            "runhistories",
            "addresspools",
            "addressblocks",
        )
    }
    assert all(each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for each in kept)
    assert not (CHART / "crds").exists(), "what lies there is never upgraded"


def test_values_reach_the_controller(offline_helm: Helm) -> None:
    pod, container = controller(rendered(offline_helm, *VARIATIONS["everything set"]))
    assert container["image"] == "registry.example/muster:1.2.3"
    assert f"--advertise-url=https://muster-controller.{SYSTEM}.svc:9000" in container["args"]
    assert "--listen=$(POD_IP):9000" in container["args"]
    assert "--metrics-listen=$(POD_IP):9001" in container["args"]
    assert container["args"][-1] == "--log-level=debug"
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def agents(objects: dict[tuple[str, str, str], Any]) -> tuple[Any, Any]:
    """The agents' pod spec and its container."""
    pod = objects["DaemonSet", SYSTEM, "muster-agent"]["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


def test_there_are_no_agents_unless_they_are_asked_for_and_none_in_shadow(offline_helm: Helm) -> None:
    for name in ("default", "every part in shadow"):
        assert not [key for key in rendered(offline_helm, *VARIATIONS[name]) if key[0] == "DaemonSet"]


def test_agents_are_privileged_to_read_kmsg_alone_and_let_go_of_it(offline_helm: Helm) -> None:
    _, container = agents(rendered(offline_helm, *VARIATIONS["health"]))
    assert container["securityContext"]["privileged"]
    assert "--user=65532" in container["args"]
    pod, container = agents(rendered(offline_helm, *VARIATIONS["health without a privileged container"]))
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["supplementalGroups"] == [4]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in container["securityContext"]
    assert all(mount["readOnly"] for mount in container["volumeMounts"])


def test_agents_may_run_on_nodes_for_gangs_alone(offline_helm: Helm) -> None:
    for arguments, admitted in ((("--set=health.enabled=true",), True), ((), False)):
        policies = offline_helm.template("--set=pools.policy=Deny", "--show-only=templates/pools.yaml", *arguments)
        assert (f"'{SYSTEM}/muster-agent'" in policies) is admitted


def test_settings_of_agents_are_ones_they_can_read(offline_helm: Helm, tmp_path: Path) -> None:
    config = "--set=health.agent.config.heartbeatSeconds=60,health.agent.config.checks.kernel-log.periodSeconds=2"
    objects = rendered(offline_helm, *VARIATIONS["health without a privileged container"], config)
    file = tmp_path / "agent.json"
    file.write_text(objects["ConfigMap", SYSTEM, "muster-agent"]["data"]["agent.json"])
    settings = load_settings(file)
    assert settings.heartbeat_seconds == 60
    assert settings.checks["kernel-log"].period_seconds == 2
    assert json.loads(bytes(settings.checks["kernel-log"].options)) == {"file": "/var/log/kern.log"}


def test_metrics_can_be_scraped_and_policies_let_the_right_ports_in(offline_helm: Helm) -> None:
    """Issue 11.6: the Service had no port for metrics."""
    switched = (
        "--set=networkPolicy.enabled=true,metrics.serviceMonitor.enabled=true,teams.enabled=true,health.enabled=true"
    )
    prometheus = '--set-json=networkPolicy.metricsFrom=[{"namespaceSelector":{"matchLabels":{"a":"b"}}}]'
    objects = rendered(offline_helm, switched, prometheus)
    templates = {
        name: each["spec"]["template"]
        for (kind, _, name), each in objects.items()
        if kind in ("Deployment", "DaemonSet") and name in ("muster-controller", "muster-admission", "muster-agent")
    }
    ports = {
        name: {port["name"] for port in template["spec"]["containers"][0]["ports"]}
        for name, template in templates.items()
    }
    for name, template in templates.items():
        policy = objects["NetworkPolicy", SYSTEM, name]["spec"]
        assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert policy["policyTypes"] == ["Ingress"]
        opened = {port["port"]: rule.get("from") for rule in policy["ingress"] for port in rule["ports"]}
        assert opened.keys() == ports[name]
        for port, peers in opened.items():
            assert (peers is not None) == (port == "metrics" and name != "muster-agent"), (name, port)
    monitor = objects["ServiceMonitor", SYSTEM, "muster"]["spec"]
    for name in ("muster-controller", "muster-admission"):
        service = objects["Service", SYSTEM, name]
        assert {port["name"]: port["targetPort"] for port in service["spec"]["ports"]}["metrics"] == "metrics"
        assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert (
            service["metadata"]["labels"]["app.kubernetes.io/component"]
            in monitor["selector"]["matchExpressions"][0]["values"]
        )
    scraped = objects["PodMonitor", SYSTEM, "muster-agent"]["spec"]
    assert scraped["selector"]["matchLabels"].items() <= templates["muster-agent"]["metadata"]["labels"].items()
    assert {endpoint["port"] for endpoint in monitor["endpoints"] + scraped["podMetricsEndpoints"]} == {"metrics"}
    kinds = {kind for kind, _, _ in rendered(offline_helm)}
    assert not kinds & {"ServiceMonitor", "PodMonitor", "NetworkPolicy"}


def test_an_address_of_ones_own_replaces_the_service(offline_helm: Helm) -> None:
    _, container = controller(rendered(offline_helm, *VARIATIONS["one replica at its own address"]))
    assert "--advertise-url=https://$(POD_IP):8443" in container["args"]


@pytest.mark.parametrize(
    "arguments", [("--set=shadow=true",), VARIATIONS["every part in shadow"]], ids=["", "every part"]
)
def test_shadow_may_only_read_and_hold_its_lease(offline_helm: Helm, arguments: tuple[str, ...]) -> None:
    objects = rendered(offline_helm, *arguments)
    _, container = controller(objects)
    assert "--shadow" in container["args"]
    allowed = {
        (verb, resource)
        for (kind, _, name), each in objects.items()
        if kind in ("Role", "ClusterRole") and name not in ("muster-view", "muster-edit")  # those are people's
        for rule in each["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }
    assert {each for each in allowed if each[0] not in ("get", "list", "watch")} == {
        ("create", "leases"),
        ("update", "leases"),
    }
    assert "secrets" not in {resource for _, resource in allowed}


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--set=replicas=two", "at '/replicas': got string, want integer"),
        ("--set=replicas=0", "at '/replicas': minimum: got 0, want 1"),
        ("--set=advertiseUrl=http://muster", "at '/advertiseUrl'"),
        ("--set=adverstiseUrl=https://muster", "additional properties 'adverstiseUrl' not allowed"),
        ("--set=image.pullPolicy=Sometimes", "at '/image/pullPolicy': value must be one of"),
        ("--set=service.port=443", "at '/service/port': minimum: got 443, want 1,024"),
        ("--set=shadow=maybe", "at '/shadow': got string, want boolean"),
    ],
)
def test_a_bad_value_is_named(offline_helm: Helm, argument: str, message: str) -> None:
    done = offline_helm.run("template", "muster", str(CHART), "--kube-version=1.36.0", argument)
    assert done.returncode != 0
    assert message in done.stderr


def test_an_old_cluster_is_refused(offline_helm: Helm) -> None:
    done = offline_helm.run("template", "muster", str(CHART), "--kube-version=1.31.0")
    assert done.returncode != 0
    assert "1.31.0" in done.stderr


def pod_of(template: Any, name: str, namespace: str) -> dict[str, Any]:
    """A pod as a Deployment makes it. Its service account is not asked for: it need not exist for admission."""
    spec = {**template["spec"], "serviceAccountName": "default"}
    spec.pop("priorityClassName", None)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


@pytest.mark.parametrize("name", ["muster-controller", "muster-admission", "muster-balloon-a", "muster-readcache"])
def test_musters_pods_pass_pod_security_restricted(offline_helm: Helm, cluster: Cluster, name: str) -> None:
    namespace = cluster.namespace(f"restricted-{name}", **{"pod-security.kubernetes.io/enforce": "restricted"})
    balloons = BalloonPool(name="a", node_selector={"a": "b"}, replicas=1, resources={"cpu": "1"})
    deployments = {
        key[2]: each
        for key, each in rendered(offline_helm, "--set=teams.enabled=true,readCache.enabled=true").items()
        if key[0] == "Deployment"
    } | {"muster-balloon-a": manifest(balloons, 1, SYSTEM, "muster")}
    pod = pod_of(deployments[name]["spec"]["template"], name, namespace)
    cluster.plane.access.kubectl("create", "--dry-run=server", "--filename=-", stdin=json.dumps(pod))
    del pod["spec"]["containers"][0]["securityContext"]
    with pytest.raises(KubectlError, match=re.escape('violates PodSecurity "restricted')):
        cluster.plane.access.kubectl("create", "--dry-run=server", "--filename=-", stdin=json.dumps(pod))
