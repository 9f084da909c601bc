"""The chart's hub of the uplink's budget: off by default, and a role whose rights are all used."""

from __future__ import annotations

import asyncio
import re
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from prometheus_client import CollectorRegistry

from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import NotFound
from muster.kube.objects.auth import TokenRequest, TokenRequestSpec
from muster.kube.objects.core import ConfigMap, Secret
from muster.network.config import CONFIG_KEY, parse_config
from muster.network.shaping.config import HUB_PORT, HUB_SERVICE
from muster.network.uplink.controller import UplinkController
from muster.network.uplink.program import SERVICE, TLS_SECRET, hub_server
from tests.scenarios.deploy.conftest import CHART, RELEASE, SYSTEM, Helm
from tests.support.accessreviews import until_allowed
from tests.support.apiserver import ApiServer
from tests.support.namespaces import make_namespace
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ON = {"network": {"enabled": True, "config": {"uplink": {"enabled": True, "budget": {"in": "1G", "out": "1G"}}}}}
CONTROLLER = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "rules": [
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    ],
}
"""What the role of the controller, which the hub is a part of, has besides."""


def objects(helm: Helm, folder: Path, values: dict[str, Any]) -> list[dict[str, Any]]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    text = helm.ok("template", RELEASE, str(CHART), "--namespace", SYSTEM, f"--values={file}")
    return [each for each in yaml.safe_load_all(text) if each]


def of_hub(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in found if each["metadata"]["name"] == "muster-network-hub"}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"network": {"enabled": True}},
        {"network": {"config": ON["network"]["config"]}},
        {**ON, "shadow": True},
        {"network": {"enabled": True, "config": {"uplink": {"budget": {"in": "1G", "out": "1G"}}}}},
    ],
)
def test_there_is_no_hub_unless_the_budget_is_enabled(
    values: dict[str, Any], offline_helm: Helm, tmp_path: Path
) -> None:
    found = objects(offline_helm, tmp_path, values)
    assert of_hub(found) == {}
    assert "uplink-listen" not in str(found)


def test_agents_reach_the_port_of_the_hub_through_its_service(offline_helm: Helm, tmp_path: Path) -> None:
    found = objects(offline_helm, tmp_path, {**ON, "networkPolicy": {"enabled": True}})
    service = of_hub(found)["Service"]
    assert service["metadata"]["name"] == HUB_SERVICE == SERVICE
    assert [(port["port"], port["targetPort"]) for port in service["spec"]["ports"]] == [(HUB_PORT, "hub")]
    named = {(each["kind"], each["metadata"]["name"]): each for each in found}
    pod = named["Deployment", "muster-controller"]["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    assert f"--uplink-listen=$(POD_IP):{HUB_PORT}" in container["args"]
    assert {"name": "hub", "containerPort": HUB_PORT} in container["ports"]
    rules = named["NetworkPolicy", "muster-controller"]["spec"]["ingress"]
    assert [port for rule in rules for port in rule["ports"] if port["port"] == "hub"]
    config = parse_config(named["ConfigMap", "muster-network"]["data"][CONFIG_KEY])
    assert config.uplink.enabled


class Recording(Client):
    """Notes which rights its requests need."""

    used: set[tuple[str, str, str]]

    async def request(self, method: str, path: str, **options: Any) -> bytes:
        self._note(method, path, options.get("params") or {})
        return await super().request(method, path, **options)

    def _note(self, method: str, path: str, params: Any) -> None:
        found = re.fullmatch(r"/api/v1/namespaces/[^/]+/(configmaps|secrets)(?:/([^/]+))?", urlsplit(path).path)
        if found is None:
            return
        resource, name = found[1], found[2] or ""
        verb = {"GET": "get" if name else "list", "POST": "create", "PUT": "update", "PATCH": "patch"}[method]
        selector = parse_qs(f"f={params.get('fieldSelector', '')}").get("f", [""])[0]
        self.used.add((verb, resource, name or selector.partition("=")[2]))


async def test_every_right_of_the_hub_is_used_and_no_request_is_refused(
    offline_helm: Helm, api_server: ApiServer, tmp_path: Path
) -> None:
    role = of_hub(objects(offline_helm, tmp_path, ON))["Role"]
    granted = {
        (verb, resource, name)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }
    namespace = f"hub-{uuid.uuid4().hex[:8]}"
    async with Client(load_config(api_server.kubeconfig)) as admin:
        await make_namespace(admin, namespace)
        try:
            account = await _account(admin, api_server, role, namespace, tmp_path)
            async with Recording(load_config(account)) as client:
                client.used = set()
                await until_allowed(client, CONTROLLER["rules"][0])
                await until_allowed(client, role["rules"][0], namespace)
                await _serve(client, admin, namespace)
                # an old certificate is renewed, and an old authority is replaced
                await admin.patch(Secret, TLS_SECRET, {"data": {"ca.crt": "", "tls.crt": ""}}, namespace=namespace)
                await _serve(client, admin, namespace)
        finally:
            for kind in ("clusterroles", "clusterrolebindings"):
                await admin.request("DELETE", f"/apis/rbac.authorization.k8s.io/v1/{kind}/{namespace}")
            await admin.request("DELETE", f"/api/v1/namespaces/{namespace}")
    watched = {("watch", "configmaps", "muster-network"), ("list", "configmaps", "muster-network")}
    assert granted - client.used - watched == set()


async def _serve(client: Client, admin: Client, namespace: str) -> None:
    """Serve until a change of the configuration has reached the hub."""
    registry = CollectorRegistry()
    text = "uplink: {{enabled: true, budget: {{in: {budget}G, out: 1G}}}}"
    first = {"data": {CONFIG_KEY: text.format(budget=1)}}
    try:
        await admin.patch(ConfigMap, "muster-network", first, namespace=namespace)
    except NotFound:
        meta = {"name": "muster-network", "namespace": namespace}
        await admin.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, **first})
    async with hub_server(client, namespace, "127.0.0.1", 0, registry=registry) as server:
        server.work.close()
        running = asyncio.create_task(UplinkController(client, namespace, server.hub, registry=registry).run())

        def budget() -> int:
            page = server.hub.page()
            return page.budget.in_bps // 10**9 if page is not None else 0

        try:
            await until("the budget is shared", lambda: budget() == 1)
            changed = {"data": {CONFIG_KEY: text.format(budget=2)}}
            await admin.patch(ConfigMap, "muster-network", changed, namespace=namespace)
            await until("the new budget is shared", lambda: budget() == 2)
        finally:
            running.cancel()
            await asyncio.wait([running])


async def _account(client: Client, server: ApiServer, role: dict[str, Any], namespace: str, folder: Path) -> Path:
    """Create an account with the role of the hub; return a kubeconfig with its token."""
    account = {"name": "controller", "namespace": namespace}
    subjects = [{"kind": "ServiceAccount", **account}]
    await client.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    group = "rbac.authorization.k8s.io"
    for kind, rules, meta in (
        ("Role", role["rules"], {"name": "hub", "namespace": namespace}),
        ("ClusterRole", CONTROLLER["rules"], {"name": namespace}),
    ):
        await client.create({"apiVersion": f"{group}/v1", "kind": kind, "metadata": meta, "rules": rules})
        reference = {"apiGroup": group, "kind": kind, "name": meta["name"]}
        binding = {"apiVersion": f"{group}/v1", "kind": f"{kind}Binding", "metadata": meta}
        await client.create({**binding, "roleRef": reference, "subjects": subjects})
    asked = TokenRequest(spec=TokenRequestSpec(expiration_seconds=3600))
    token = (await client.create_token("controller", asked, namespace=namespace)).status.token
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    made = folder / "account.kubeconfig"
    made.write_text(yaml.safe_dump(config))
    made.chmod(0o600)
    return made
