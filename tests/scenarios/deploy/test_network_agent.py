"""The chart's DaemonSet of network agents: exact capabilities, and an account whose rights are all used."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from muster.controlplane.ports import free_port
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.objects.auth import TokenRequest, TokenRequestSpec
from muster.network.agent.parts import PARTS, REMOVAL_CAPABILITIES, capabilities, start_capabilities
from muster.network.config import NetworkConfig
from tests.scenarios.deploy.conftest import CHART, RELEASE, SYSTEM, Helm
from tests.support.accessreviews import until_allowed
from tests.support.apiserver import ApiServer
from tests.support.namespaces import make_namespace
from tests.support.waiting import until

pytestmark = pytest.mark.slow

CACHE = {"data": {"cache": {"enabled": True}}}
MARKS = {"data": {"cache": {"enabled": True, "socketMarks": True}}}
OTHER_CACHE = {"dataCache": {"socket": "/somewhere/control.sock"}}


def rendered(helm: Helm, folder: Path, values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The objects of the template, by kind."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    only = "--show-only=templates/network-agent.yaml"
    text = helm.ok("template", RELEASE, str(CHART), "--namespace", SYSTEM, only, f"--values={file}")
    return {each["kind"]: each for each in yaml.safe_load_all(text) if each}


UPLINK = {"uplink": {"enabled": True, "budget": {"in": "1G", "out": "1G"}}}
"""The part shaping is refused without it."""


def network(**config: Any) -> dict[str, Any]:
    return {"network": {"enabled": True, "config": {**(UPLINK if "shaping" in config else {}), **config}}}


@pytest.mark.parametrize(
    "values",
    [
        network(),
        *({**network(**{part.section: {"enabled": True}}), **more} for part in PARTS for more in ({}, CACHE, MARKS)),
        network(**{part.section: {"enabled": True} for part in PARTS}),
        {**network(traffic={"enabled": True, **OTHER_CACHE}), **CACHE},
        network(traffic={"enabled": True, "hostNetworkPods": False}),
        *(network(traffic={"enabled": True, "backend": each}) for each in ("nftables", "iptables-legacy", "ebpf")),
    ],
    ids=lambda values: json.dumps({**values["network"]["config"], "data": values.get("data", {})}),
)
def test_container_has_the_capabilities_that_its_parts_need_and_no_others(
    offline_helm: Helm, tmp_path: Path, values: dict[str, Any]
) -> None:
    objects = rendered(offline_helm, tmp_path, values)
    # not `parse_config`: some parts need others, and here each is alone
    config = msgspec.convert(yaml.safe_load(objects["ConfigMap"]["data"]["network.yaml"]), NetworkConfig)
    (container,) = objects["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    context = container["securityContext"]
    assert context["capabilities"]["drop"] == ["ALL"]
    assert sorted(context["capabilities"]["add"]) == sorted(capabilities(config) | start_capabilities(config))
    assert not context["allowPrivilegeEscalation"]
    assert "hostPID" not in objects["DaemonSet"]["spec"]["template"]["spec"]


def test_nothing_is_rendered_by_default_or_in_shadow_mode(offline_helm: Helm, tmp_path: Path) -> None:
    for values in ({}, {"network": {"enabled": True}, "shadow": True}):
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        assert "muster-network" not in offline_helm.template(f"--values={file}")


def test_wrong_part_and_taken_port_are_refused(offline_helm: Helm) -> None:
    for flags, message in (
        ("network.remove=true", "network.remove needs network.enabled"),
        ("network.config.trafic.enabled=true", "additional properties 'trafic' not allowed"),
        ("network.enabled=true,health.enabled=true,network.port=9446", "network.port is 9446, which another program"),
    ):
        done = offline_helm.run("template", RELEASE, str(CHART), "--kube-version=1.36.0", f"--set={flags}")
        assert done.returncode != 0
        assert message in done.stderr


@pytest.mark.parametrize("config", [{}, {part.section: {"enabled": True} for part in PARTS}], ids=["none", "all"])
def test_removal_runs_everywhere_at_once_with_all_that_it_may_need_and_without_rights(
    offline_helm: Helm, tmp_path: Path, config: dict[str, Any]
) -> None:
    values = network(**config)
    values["network"]["remove"] = True
    objects = rendered(offline_helm, tmp_path, values)
    assert sorted(objects) == ["ConfigMap", "DaemonSet", "ServiceAccount"]
    spec = objects["DaemonSet"]["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "100%"}
    (container,) = spec["template"]["spec"]["containers"]
    assert "--remove" in container["args"]
    assert set(container["securityContext"]["capabilities"]["add"]) == REMOVAL_CAPABILITIES
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    assert {name for name in ("settings", "plugins", "plugin-lists", "bpf") if not mounts[name].get("readOnly")} == {
        "settings",
        "plugins",
        "plugin-lists",
        "bpf",
    }
    assert set(mounts) == {each["name"] for each in spec["template"]["spec"]["volumes"]}


def test_agent_that_does_not_become_ready_stops_the_roll_out(offline_helm: Helm, tmp_path: Path) -> None:
    spec = rendered(offline_helm, tmp_path, network())["DaemonSet"]["spec"]
    assert spec["minReadySeconds"] == 15
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%"}
    (container,) = spec["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}


async def test_account_uses_every_right_that_it_has_and_needs_nothing_else(
    offline_helm: Helm, api_server: ApiServer, tmp_path: Path
) -> None:
    objects = rendered(offline_helm, tmp_path, network())
    granted = [(rule["resources"], rule["verbs"]) for rule in objects["ClusterRole"]["rules"]]
    assert granted == [(["pods"], ["list", "watch"])]
    port, namespace = free_port(), f"network-{uuid.uuid4().hex[:8]}"
    async with Client(load_config(api_server.kubeconfig)) as client:
        await make_namespace(client, namespace)
        kubeconfig = await _account(client, api_server, objects, namespace, tmp_path)
        async with Client(load_config(kubeconfig)) as account:
            await until_allowed(account, objects["ClusterRole"]["rules"][0])
        command = (
            f"network agent --node=node-x --kubeconfig={kubeconfig} --listen=127.0.0.1:{port} "
            f"--state-dir={tmp_path}/state --run-dir={tmp_path}/run"
        )
        agent = await asyncio.to_thread(
            subprocess.Popen, [sys.executable, "-m", "muster.cli.main", *command.split()], stderr=subprocess.DEVNULL
        )
        try:
            await until("the agent has listed pods", lambda: asyncio.to_thread(_page, port, "muster_network_pods 0.0"))
            await _create_pod(client, namespace)
            page = await until("it watches them", lambda: asyncio.to_thread(_page, port, "muster_network_pods 1.0"))
        finally:
            agent.kill()
            await asyncio.to_thread(agent.wait, 30)
            for kind in ("clusterroles", "clusterrolebindings"):
                await client.request("DELETE", f"/apis/rbac.authorization.k8s.io/v1/{kind}/{namespace}")
            await client.request("DELETE", f"/api/v1/namespaces/{namespace}")
    requests = set(re.findall(r'muster_api_requests_total\{code="(\d+)",verb="(\w+)"\}', page))
    assert requests == {("200", "LIST"), ("200", "WATCH")}
    assert "muster_informer_breaks_total{" not in page, "the watch was not refused"


async def _create_pod(client: Client, namespace: str) -> None:
    spec = {"nodeName": "node-x", "containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": False}
    meta = {"name": "p", "namespace": namespace}
    await client.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


async def _account(client: Client, server: ApiServer, objects: dict[str, Any], namespace: str, folder: Path) -> Path:
    """Create the chart's account and role under another name; return a kubeconfig with its token."""
    meta = {"name": "agent", "namespace": namespace}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
    role, binding = objects["ClusterRole"], objects["ClusterRoleBinding"]
    binding["roleRef"]["name"] = role["metadata"]["name"] = binding["metadata"]["name"] = namespace
    binding["subjects"] = [{"kind": "ServiceAccount", **meta}]
    for each in (account, role, binding):
        await client.create(each)
    asked = TokenRequest(spec=TokenRequestSpec(expiration_seconds=3600))
    token = (await client.create_token("agent", asked, namespace=namespace)).status.token
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    made = folder / "account.kubeconfig"
    made.write_text(yaml.safe_dump(config))
    made.chmod(0o600)
    return made


def _page(port: int, wanted: str) -> str:
    """The metrics of the agent, if they have the wanted line."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return ""
    return text if f"\n{wanted}\n" in text and "contact_age_seconds -1" not in text else ""
