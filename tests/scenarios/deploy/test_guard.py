"""Issue 17 A3: the chart's guard: off by default, no more rights than it uses, and a configuration that it accepts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.cli.processes.guard import command
from muster.telemetry.guard.config import parse_config
from tests.scenarios.deploy.conftest import CHART, SYSTEM, Helm
from tests.scenarios.deploy.test_chart import rendered as render

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Json = dict[str, Any]
UPSTREAM: Json = {"upstream": {"url": "http://prometheus.monitoring:9090"}}
CLUSTER: Json = {"cluster": {"callers": [{"name": "rules", "users": ["system:serviceaccount:monitoring:ruler"]}]}}
TOKEN_FILE = "/etc/muster-guard-upstream/token"
RENDERED: dict[str, Any] = {}


def rendered(helm: Helm, config: Json, **guard: Any) -> Any:
    """The objects by kind, namespace and name: Helm is run once for equal values."""
    values = json.dumps({"guard": {"enabled": True, "config": config, **guard}})
    if values not in RENDERED:
        RENDERED[values] = render(
            helm,
            f"--set-json=telemetry={values}",
            "--set=metrics.serviceMonitor.enabled=true,networkPolicy.enabled=true",
        )
    return RENDERED[values]


def pod(objects: Any) -> tuple[Json, Json]:
    """The pod spec and its container."""
    spec = objects["Deployment", SYSTEM, "muster-guard"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


def test_guard_is_off_by_default_and_in_shadow(offline_helm: Helm) -> None:
    values = json.dumps({"guard": {"enabled": True, "config": UPSTREAM}})
    for arguments in ((), (f"--set-json=telemetry={values}", "--set=shadow=true")):
        assert [key for key in render(offline_helm, *arguments) if "guard" in key[2]] == []


def test_configuration_reaches_the_guard_as_it_is(offline_helm: Helm) -> None:
    config = {
        **UPSTREAM,
        "dryRun": True,
        "callers": {**CLUSTER, "peers": [{"name": "grafana", "addresses": ["10.0.0.0/8"], "group": "people"}]},
        "groups": {"people": {"limits": {"maxSeries": 1000}, "eachCaller": {"concurrentCost": 100000000}}},
    }
    text = rendered(offline_helm, config)["ConfigMap", SYSTEM, "muster-guard"]["data"]["guard.yaml"]
    parsed = parse_config(text)
    assert parsed.dry_run
    assert parsed.group("people").limits.max_series == 1000
    assert parsed.group("people").each_caller.concurrent_cost == 1e8


def test_guard_has_no_right_and_no_token_unless_it_accepts_tokens_of_the_cluster(offline_helm: Helm) -> None:
    objects = rendered(offline_helm, UPSTREAM)
    spec, container = pod(objects)
    assert not any(kind.startswith(("ClusterRole", "Role")) and name == "muster-guard" for kind, _, name in objects)
    assert spec["automountServiceAccountToken"] is False
    assert [volume["name"] for volume in spec["volumes"]] == ["config", "tmp"]
    assert [mount["name"] for mount in container["volumeMounts"]] == ["config", "tmp"]
    objects = rendered(offline_helm, {**UPSTREAM, "callers": CLUSTER})
    [rule] = objects["ClusterRole", "", "muster-guard"]["rules"]
    assert rule == {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}
    [subject] = objects["ClusterRoleBinding", "", "muster-guard"]["subjects"]
    assert (subject["name"], subject["namespace"]) == ("muster-guard", SYSTEM)
    assert [volume["name"] for volume in pod(objects)[0]["volumes"]] == ["config", "tmp", "token"]


def test_arguments_are_those_of_the_program(offline_helm: Helm) -> None:
    _, container = pod(rendered(offline_helm, UPSTREAM))
    assert container["command"] == ["muster", "guard"]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {argument.partition("=")[0] for argument in container["args"]} <= known
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"], "loading a certificate needs files"


def test_secrets_are_mounted_where_the_configuration_names_files(offline_helm: Helm) -> None:
    spec, container = pod(rendered(offline_helm, UPSTREAM, secrets=["guard-tls"]))
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts["secret-guard-tls"]["mountPath"] == "/etc/muster-guard-secrets/guard-tls"
    assert mounts["secret-guard-tls"]["readOnly"] is True
    assert {"name": "secret-guard-tls", "secret": {"secretName": "guard-tls"}} in spec["volumes"]


def test_token_for_the_server_is_mounted_with_its_audience_where_the_chart_says(offline_helm: Helm) -> None:
    config = {"upstream": {**UPSTREAM["upstream"], "tokenFile": TOKEN_FILE}, "callers": CLUSTER}

    def token(**values: Any) -> Json:
        spec, container = pod(rendered(offline_helm, config, upstreamToken={"enabled": True, **values}))
        (mount,) = (each for each in container["volumeMounts"] if TOKEN_FILE.startswith(f"{each['mountPath']}/"))
        assert mount["readOnly"] is True
        (volume,) = (each for each in spec["volumes"] if each["name"] == mount["name"])
        (source,) = volume["projected"]["sources"]
        found: Json = source["serviceAccountToken"]
        assert f"{mount['mountPath']}/{found.pop('path')}" == TOKEN_FILE
        return found

    assert token() == {"expirationSeconds": 3600}
    assert token(audience="mimir", expirationSeconds=4294967296) == {
        "audience": "mimir",
        "expirationSeconds": 4294967296,
    }


@pytest.mark.parametrize(
    ("token", "upstream", "named"),
    [
        ({"enabled": True}, {}, f"tokenFile to {TOKEN_FILE}"),
        ({"enabled": True}, {"tokenFile": "/etc/other/token"}, f"tokenFile to {TOKEN_FILE}"),
        ({"expirationSeconds": 599}, {}, "at '/telemetry/guard/upstreamToken/expirationSeconds'"),
        ({"audiences": ["a"]}, {}, "'audiences' not allowed"),
    ],
)
def test_wrong_values_of_the_token_are_refused(offline_helm: Helm, token: Json, upstream: Json, named: str) -> None:
    config = {"upstream": {**UPSTREAM["upstream"], **upstream}}
    values = json.dumps({"guard": {"enabled": True, "config": config, "upstreamToken": token}})
    done = offline_helm.run("template", "muster", str(CHART), "--namespace", SYSTEM, f"--set-json=telemetry={values}")
    assert done.returncode != 0
    assert named in done.stderr


def test_pods_restart_only_for_changes_that_a_running_guard_cannot_use(offline_helm: Helm) -> None:
    def mark(config: Json) -> str:
        template = rendered(offline_helm, config)["Deployment", SYSTEM, "muster-guard"]["spec"]["template"]
        return str(template["metadata"]["annotations"]["muster.dev/fixed-config"])

    assert mark(UPSTREAM) == mark({**UPSTREAM, "dryRun": True, "callers": {"anonymous": "default"}})
    assert mark(UPSTREAM) != mark({"upstream": {"url": "http://mimir:8080/prometheus"}})
    files = {"certificateFile": "/etc/a", "keyFile": "/etc/b"}
    assert mark(UPSTREAM) != mark({**UPSTREAM, "tls": files})


def test_guard_is_scraped_and_survives_drains(offline_helm: Helm) -> None:
    objects = rendered(offline_helm, UPSTREAM)
    monitor = objects["ServiceMonitor", SYSTEM, "muster"]["spec"]["selector"]
    assert "guard" in monitor["matchExpressions"][0]["values"]
    service = objects["Service", SYSTEM, "muster-guard"]
    assert service["metadata"]["labels"]["app.kubernetes.io/component"] == "guard"
    labels = objects["Deployment", SYSTEM, "muster-guard"]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    assert objects["PodDisruptionBudget", SYSTEM, "muster-guard"]["spec"]["maxUnavailable"] == 1
    assert ("PodDisruptionBudget", SYSTEM, "muster-guard") not in rendered(offline_helm, UPSTREAM, replicas=1)


def test_only_named_peers_reach_the_port_for_queries(offline_helm: Helm) -> None:
    grafana = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "grafana"}}}]
    policy = rendered(offline_helm, UPSTREAM, **{"from": grafana})["NetworkPolicy", SYSTEM, "muster-guard"]["spec"]
    queries, metrics = policy["ingress"]
    assert (queries["ports"][0]["port"], queries["from"]) == ("queries", grafana)
    assert metrics["ports"][0]["port"] == "metrics"
    open_policy = rendered(offline_helm, UPSTREAM)["NetworkPolicy", SYSTEM, "muster-guard"]["spec"]
    assert "from" not in open_policy["ingress"][0]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({}, "upstream.url"),
        ({"dryRun": True}, "upstream"),
        ({**UPSTREAM, "dryrun": True}, "dryrun"),
        ({**UPSTREAM, "groups": {"people": {"limits": {"maxSerie": 1}}}}, "maxSerie"),
        ({**UPSTREAM, "callers": {"tokens": [{"name": "a", "sha256": "plain-text-token"}]}}, "sha256"),
        ({**UPSTREAM, "groups": {"people": {"eachCaller": {"concurrentCost": 0}}}}, "concurrentCost"),
    ],
)
def test_wrong_values_are_refused_before_anything_is_installed(offline_helm: Helm, config: Json, named: str) -> None:
    values = json.dumps({"guard": {"enabled": True, "config": config}})
    done = offline_helm.run("template", "muster", str(CHART), "--namespace", SYSTEM, f"--set-json=telemetry={values}")
    assert done.returncode != 0
    assert named in done.stderr


def test_two_ports_differ(offline_helm: Helm) -> None:
    values = json.dumps({"guard": {"enabled": True, "config": UPSTREAM, "port": 9452}})
    done = offline_helm.run("template", "muster", str(CHART), "--namespace", SYSTEM, f"--set-json=telemetry={values}")
    assert done.returncode != 0
    assert "telemetry.guard.port and .metricsPort are both 9452" in done.stderr
