"""The chart's rights and mounts for the network of pods: exact, and used."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import Forbidden
from muster.network.cni.policies import has_network_policies
from muster.network.config import parse_config
from tests.scenarios.deploy.conftest import Helm
from tests.scenarios.deploy.test_network_agent import _account, network, rendered
from tests.support.accessreviews import until_allowed
from tests.support.apiserver import ApiServer
from tests.support.namespaces import make_namespace

pytestmark = pytest.mark.slow

LISTS = (["networkpolicies"], ["list"])


def rights(objects: dict[str, Any]) -> list[tuple[list[str], list[str]]]:
    return [(rule["resources"], rule["verbs"]) for rule in objects["ClusterRole"]["rules"]]


def mounts(objects: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Folder of the node -> (where the agent sees it, whether it can write)."""
    pod = objects["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    folders = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each}
    return {
        folders[each["name"]]: (each["mountPath"], not each.get("readOnly", False))
        for each in container["volumeMounts"]
        if each["name"] in folders
    }


def test_folders_of_the_runtime_are_mounted_only_where_the_agent_installs_the_plugin(
    offline_helm: Helm, tmp_path: Path
) -> None:
    off = mounts(rendered(offline_helm, tmp_path, network(pods={"enabled": False})))
    assert not {"/opt/cni/bin", "/etc/cni/net.d", "/proc/sys/net"} & off.keys()
    on = mounts(rendered(offline_helm, tmp_path, network(pods={"enabled": True})))
    assert on["/opt/cni/bin"] == ("/host/opt/cni/bin", True)
    assert on["/etc/cni/net.d"] == ("/host/etc/cni/net.d", True)
    assert on["/proc/sys/net"] == ("/host/proc/sys/net", True)
    other = {"enabled": True, "binDir": "/host/usr/libexec/cni"}
    assert mounts(rendered(offline_helm, tmp_path, network(pods=other)))["/usr/libexec/cni"][1]
    by_hand = mounts(rendered(offline_helm, tmp_path, network(pods={"enabled": True, "install": False})))
    assert "/opt/cni/bin" not in by_hand


def test_socket_in_the_list_is_that_of_the_node(offline_helm: Helm, tmp_path: Path) -> None:
    values = network(pods={"enabled": True})
    values["network"]["socketPath"] = "/run/other"
    objects = rendered(offline_helm, tmp_path, values)
    assert parse_config(objects["ConfigMap"]["data"]["network.yaml"]).pods.socket == "/run/other/cni.sock"
    assert mounts(objects)["/run/other"][0] == "/run/muster/network"


def test_network_policies_are_listed_only_while_no_enforcer_is_named(offline_helm: Helm, tmp_path: Path) -> None:
    assert LISTS in rights(rendered(offline_helm, tmp_path, network(pods={"enabled": True})))
    for pods in (
        {"enabled": False},
        {"enabled": True, "install": False},
        {"enabled": True, "networkPolicyEnforcer": "x"},
    ):
        assert LISTS not in rights(rendered(offline_helm, tmp_path, network(pods=pods)))


async def test_account_may_list_network_policies(offline_helm: Helm, api_server: ApiServer, tmp_path: Path) -> None:
    namespace = f"pods-{uuid.uuid4().hex[:8]}"
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": {"podSelector": {}}}
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    async with Client(load_config(api_server.kubeconfig)) as admin:
        await make_namespace(admin, namespace)
        try:
            objects = rendered(offline_helm, tmp_path, network(pods={"enabled": True}))
            kubeconfig = await _account(admin, api_server, objects, namespace, tmp_path)
            async with Client(load_config(kubeconfig)) as agent:
                await until_allowed(agent, objects["ClusterRole"]["rules"][-1])
                before = await has_network_policies(agent)
                if api_server.kind == "embedded":  # it serves none
                    assert not before
                    return
                await admin.create({**policy, "metadata": {"name": "deny", "namespace": namespace}})
                assert await has_network_policies(agent)
                with pytest.raises(Forbidden):
                    await agent.request("DELETE", f"{path}/deny")
        finally:
            for kind in ("clusterroles", "clusterrolebindings"):
                await admin.request("DELETE", f"/apis/rbac.authorization.k8s.io/v1/{kind}/{namespace}")
            await admin.request("DELETE", f"/api/v1/namespaces/{namespace}")
