"""The chart's node data cache: what it may do, and how its socket reaches pods where Pod Security is enforced."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.api.names import CACHE_DIRECTORY
from muster.controlplane.clusteraccess import KubectlError
from muster.data.cache.disk import Limits
from muster.data.cache.program import parse
from tests.scenarios.deploy.conftest import CHART, SYSTEM, Cluster, Helm
from tests.scenarios.deploy.test_chart import controller, rendered
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ENABLED = "--set=data.cache.enabled=true"
CLAIMS = (ENABLED, "--set=data.cache.socketVolume=claim,data.cache.claimNamespaces={strict,looser}")
SOCKET = {"name": "cache", "mountPath": CACHE_DIRECTORY, "readOnly": True}
Json = dict[str, Any]


def cache(helm: Helm, *arguments: str) -> tuple[Json, Json]:
    """The pod spec of the DaemonSet, and its container."""
    pod = rendered(helm, ENABLED, *arguments)["DaemonSet", SYSTEM, "muster-cache"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def worker(namespace: str, volume: Json) -> Json:
    """A pod that passes `restricted`, but for its volume."""
    secure = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "worker", "image": "train:1", "securityContext": secure, "volumeMounts": [SOCKET]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "worker", "namespace": namespace},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "cache", **volume}],
        },
    }


HOST_PATH: Json = {"hostPath": {"path": CACHE_DIRECTORY, "type": "DirectoryOrCreate"}}
CLAIM: Json = {"persistentVolumeClaim": {"claimName": "muster-cache", "readOnly": True}}
WRITABLE: Json = {"persistentVolumeClaim": {"claimName": "muster-cache"}}


def test_there_is_no_cache_unless_it_is_asked_for_and_none_in_shadow(offline_helm: Helm) -> None:
    for arguments in ((), (ENABLED, "--set=shadow=true"), (*CLAIMS, "--set=shadow=true")):
        objects = rendered(offline_helm, *arguments)
        assert [key for key in objects if "cache" in key[2]] == []
        _, container = controller(objects)
        assert any(part.startswith("--cache-volume") for part in container["args"]) is (ENABLED in arguments)


def test_the_cache_has_no_rights_no_token_and_no_privileges(offline_helm: Helm) -> None:
    objects = rendered(offline_helm, *CLAIMS)
    subjects = [
        subject["name"]
        for (kind, _, _), each in objects.items()
        if kind in ("RoleBinding", "ClusterRoleBinding")
        for subject in each["subjects"]
    ]
    assert "muster-controller" in subjects
    assert "muster-cache" not in subjects
    assert objects["ServiceAccount", SYSTEM, "muster-cache"]["automountServiceAccountToken"] is False
    pod, container = cache(offline_helm)
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("muster-cache", False)
    assert "hostNetwork" not in pod
    kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
    assert kinds == {"hostPath", "configMap", "emptyDir"}, "it reads no Secret"
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    }
    (first,) = pod["initContainers"]
    assert first["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN", "DAC_READ_SEARCH"]}


def test_only_socket_marks_need_a_capability_and_the_nodes_network(offline_helm: Helm) -> None:
    pod, container = cache(offline_helm, "--set=data.cache.socketMarks=true")
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    assert container["securityContext"]["runAsUser"] == 0
    assert "user = 0\n" in pod["initContainers"][0]["command"][2], "its folders belong to the same user"
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert {port["containerPort"] for port in container["ports"]} == {port["hostPort"] for port in container["ports"]}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to another user")
def test_the_nodes_folders_and_what_is_in_them_get_the_user_of_the_cache(offline_helm: Helm, tmp_path: Path) -> None:
    """`socketMarks` changes the user, and blocks of the earlier user must stay readable."""
    blocks, sockets = tmp_path / "blocks", tmp_path / "sockets"
    (blocks / "deep").mkdir(parents=True)
    sockets.mkdir()
    (blocks / "deep" / "block").write_text("data")
    (blocks / "link").symlink_to("/etc/hostname")
    before = os.stat("/etc/hostname").st_uid
    for marks, user in (("false", 65532), ("true", 0), ("false", 65532)):
        pod, container = cache(offline_helm, f"--set=data.cache.socketMarks={marks}")
        (first,) = pod["initContainers"]
        mounted = {each["mountPath"] for each in first["volumeMounts"]}
        assert set(first["command"][3:]) == mounted
        subprocess.run([sys.executable, *first["command"][1:3], str(blocks), str(sockets)], check=True, timeout=30)
        paths = (blocks, blocks / "deep", blocks / "deep" / "block", blocks / "link", sockets)
        assert {os.lstat(path).st_uid for path in paths} == {user} == {container["securityContext"]["runAsUser"]}
    assert os.stat("/etc/hostname").st_uid == before


def test_values_reach_the_cache_and_the_controller(offline_helm: Helm) -> None:
    values = "path=/fast/cache,socketPath=/run/cache,size=2Ti,floorPercent=20,port=9500,metricsPort=9501"
    named = ",".join(f"data.cache.{each}" for each in values.split(","))
    arguments = (ENABLED, f"--set={named}", "--set=teams.enabled=true,teams.key=example.org/team")
    pod, container = cache(offline_helm, *arguments)
    assert {"--size=2Ti", "--floor=20%", "--address=$(HOST_IP):9500", "--metrics-port=9501"} <= set(container["args"])
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert paths == {"blocks": "/fast/cache", "socket": "/run/cache"}
    assert {"key": "example.org/team", "operator": "Exists"} in pod["tolerations"]
    objects = rendered(offline_helm, *arguments)
    assert {"--cache-volume=hostPath", "--cache-dir=/run/cache"} <= set(controller(objects)[1]["args"])
    _, container = controller(rendered(offline_helm, *CLAIMS))
    assert [part for part in container["args"] if part.startswith("--cache")] == [
        "--cache-volume=claim",
        "--cache-namespace=strict",
        "--cache-namespace=looser",
    ]


@pytest.mark.parametrize("marks", ["true", "false"])
def test_the_program_knows_every_option_that_the_chart_gives_it(offline_helm: Helm, marks: str) -> None:
    _, container = cache(offline_helm, f"--set=data.cache.socketMarks={marks},data.cache.floorPercent=25")
    env = {each["name"]: "10.0.0.1" for each in container["env"]}
    arguments = [re.sub(r"\$\((\w+)\)", lambda match: env[match[1]], part) for part in container["args"]]
    options = parse(arguments)
    assert options.limits == Limits(size_bytes=100 << 30, floor_fraction=0.25)
    assert (options.address, options.metrics) == ("10.0.0.1:9447", ("10.0.0.1", 9448))
    assert options.socket_marks is (marks == "true")
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert options.ticket_key is not None
    assert {str(options.socket_dir), str(options.ticket_key.parent)} <= mounts.keys()
    blocks, readable = mounts[str(options.state_dir)], mounts[str(options.read_dir)]
    assert (readable["name"], readable["readOnly"]) == (blocks["name"], True)


def test_the_cache_may_run_on_nodes_of_pools(offline_helm: Helm) -> None:
    show = ("--set=pools.policy=Deny", "--show-only=templates/pools.yaml")
    assert f"'{SYSTEM}/muster-cache'" in offline_helm.template(*show, ENABLED)
    assert "muster-cache" not in offline_helm.template(*show)


def test_a_policy_opens_the_ports_and_a_monitor_finds_the_pods(offline_helm: Helm) -> None:
    on = "--set=networkPolicy.enabled=true,metrics.serviceMonitor.enabled=true"
    prometheus = '--set-json=networkPolicy.metricsFrom=[{"namespaceSelector":{"matchLabels":{"a":"b"}}}]'
    objects = rendered(offline_helm, ENABLED, on, prometheus)
    template = objects["DaemonSet", SYSTEM, "muster-cache"]["spec"]["template"]
    policy = objects["NetworkPolicy", SYSTEM, "muster-cache"]["spec"]
    monitor = objects["PodMonitor", SYSTEM, "muster-cache"]["spec"]
    for selector in (policy["podSelector"], monitor["selector"]):
        assert selector["matchLabels"].items() <= template["metadata"]["labels"].items()
    opened = {port["port"]: rule.get("from") for rule in policy["ingress"] for port in rule["ports"]}
    assert opened.keys() == {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    assert opened["peers"] is None
    assert opened["metrics"] is not None
    assert {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]} == {"metrics"}


WRONG = {
    "data.cache.size=100GB": "at '/data/cache/size'",
    "data.cache.floorPercent=0": "at '/data/cache/floorPercent': minimum: got 0, want 1",
    "data.cache.path=relative": "at '/data/cache/path'",
    "data.cache.socketVolume=csi": "at '/data/cache/socketVolume': value must be one of 'hostPath', 'claim'",
    "data.cache.claimNamespaces={a,Not_One}": "at '/data/cache/claimNamespaces/1'",
    "data.cache.marks=true": "at '/data/cache': additional properties 'marks' not allowed",
}
CLASHES = {
    "data.cache.port=9448": "data.cache.port and .metricsPort are both 9448",
    "health.enabled=true,health.agent.port=9447": "health.agent.port is 9447, which the data cache",
    "data.cache.socketVolume=claim": "data.cache.claimNamespaces is empty: name the namespaces",
    "data.cache.claimNamespaces={a}": "no effect with data.cache.socketVolume=hostPath: set it to claim",
    "data.cache.path=/var/run/muster-cache": "are the same folder",
}


def test_a_mistake_is_named_before_anything_is_installed(offline_helm: Helm) -> None:
    template = ("template", "muster", str(CHART), "--kube-version=1.36.0", ENABLED)
    done = offline_helm.run(*template, *(f"--set={each}" for each in WRONG))
    assert done.returncode != 0
    assert [message for message in WRONG.values() if message not in done.stderr] == [], done.stderr
    for argument, message in CLASHES.items():
        done = offline_helm.run(*template, f"--set={argument}")
        assert done.returncode != 0
        assert message in done.stderr


def test_the_socket_reaches_pods_under_pod_security_by_a_claim_that_is_read_only(
    offline_helm: Helm, cluster: Cluster
) -> None:
    """`baseline` and `restricted` refuse the hostPath volume and accept the claim. No pod may mount it writable."""
    for namespace, level in (("strict", "restricted"), ("looser", "baseline")):
        cluster.namespace(namespace, **{"pod-security.kubernetes.io/enforce": level})
    objects = rendered(offline_helm, *CLAIMS)
    ours = [
        each
        for (kind, _, name), each in objects.items()
        if "muster-cache" in name and (kind.startswith(("PersistentVolume", "ValidatingAdmission")))
    ]
    assert len(ours) == 6
    create = ("create", "--dry-run=server", "--filename=-")
    try:
        cluster.plane.access.apply(*ours)
        for namespace, level in (("strict", "restricted"), ("looser", "baseline")):
            with pytest.raises(KubectlError, match=f'violates PodSecurity "{level}'):
                cluster.kubectl(*create, stdin=json.dumps(worker(namespace, HOST_PATH)))
            cluster.kubectl(*create, stdin=json.dumps(worker(namespace, CLAIM)))

            def refused(namespace: str = namespace) -> str:
                try:
                    cluster.kubectl(*create, stdin=json.dumps(worker(namespace, WRITABLE)))
                except KubectlError as error:
                    return error.stderr
                return ""

            said = eventually("the policy is in force", refused)
            assert "only with persistentVolumeClaim.readOnly: true" in said

        def bound() -> bool:
            claims = cluster.get("persistentvolumeclaims", "--all-namespaces")["items"]
            return [each["status"]["phase"] for each in claims if each["metadata"]["name"] == "muster-cache"] == [
                "Bound",
                "Bound",
            ]

        eventually("each namespace has its own volume", bound)
    finally:
        body = json.dumps({"apiVersion": "v1", "kind": "List", "items": ours})
        cluster.kubectl("delete", "--filename=-", "--ignore-not-found", "--wait=false", stdin=body)
