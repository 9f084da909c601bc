"""The chart's rights for blocks of addresses: exact, used, and limited to the agent's own node."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.api.address_block import AddressBlock, AddressPool
from muster.embedded.readiness import install_kinds
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import NotFound
from muster.kube.objects.auth import TokenRequest, TokenRequestSpec
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.network.addresses.block import Family
from muster.network.addresses.errors import Reason
from muster.network.addresses.providers.base import ProviderError
from muster.network.addresses.providers.static import StaticBlocks
from tests.scenarios.deploy.conftest import SYSTEM, Helm
from tests.support.accessreviews import until_allowed
from tests.support.apiserver import Api, ApiServer
from tests.support.controlplane import RealCluster
from tests.support.namespaces import make_namespace
from tests.support.waiting import until

pytestmark = pytest.mark.slow

TEMPLATE = "templates/network-addresses.yaml"
STATIC = {"pods": {"enabled": True, "networkPolicyEnforcer": "x"}}


def rendered(helm: Helm, folder: Path, config: dict[str, Any], **network: Any) -> str:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump({"network": {"enabled": True, "config": config, **network}}))
    return helm.template(f"--values={file}")


def objects(text: str) -> dict[str, dict[str, Any]]:
    """What the template has, by kind."""
    return {
        each["kind"]: each
        for each in yaml.safe_load_all(text)
        if each and each["metadata"]["name"] == "muster-network-addresses"
    }


@pytest.mark.parametrize(
    "config",
    [
        {"traffic": {"enabled": True}, "pods": {"enabled": False}},
        {"pods": {"enabled": True, "addresses": {"provider": "aws"}}},
    ],
    ids=str,
)
def test_rights_exist_only_for_blocks_of_pools(offline_helm: Helm, tmp_path: Path, config: dict[str, Any]) -> None:
    assert objects(rendered(offline_helm, tmp_path, config)) == {}


def test_socket_of_the_runtime_is_mounted_where_the_configuration_says(offline_helm: Helm, tmp_path: Path) -> None:
    config = {"pods": {"enabled": True, "addresses": {"runtimeSocket": "/run/crio/crio.sock"}}}
    text = rendered(offline_helm, tmp_path, config)
    found = [each for each in yaml.safe_load_all(text) if each and each["kind"] == "DaemonSet"]
    (agent,) = [each for each in found if each["metadata"]["name"] == "muster-network"]
    pod = agent["spec"]["template"]["spec"]
    assert {"name": "runtime", "hostPath": {"path": "/run/crio", "type": "Directory"}} in pod["volumes"]
    (container,) = pod["containers"]
    assert {"name": "runtime", "mountPath": "/run/crio", "readOnly": True} in container["volumeMounts"]


async def test_each_right_is_used_and_no_request_is_refused(
    offline_helm: Helm, api_server: ApiServer, tmp_path: Path
) -> None:
    made = objects(rendered(offline_helm, tmp_path, STATIC))
    role, binding, name = made["ClusterRole"], made["ClusterRoleBinding"], f"addresses-{uuid.uuid4().hex[:8]}"
    granted = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    async with Client(load_config(api_server.kubeconfig)) as admin, contextlib.AsyncExitStack() as after:
        await install_kinds(admin)
        await make_namespace(admin, name)
        after.push_async_callback(admin.request, "DELETE", f"/api/v1/namespaces/{name}")
        account = {"name": "agent", "namespace": name}
        binding["roleRef"]["name"] = role["metadata"]["name"] = binding["metadata"]["name"] = name
        binding["subjects"] = [{"kind": "ServiceAccount", **account}]
        await admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        for body, plural in ((role, "clusterroles"), (binding, "clusterrolebindings")):
            await admin.create(body)
            path = f"/apis/rbac.authorization.k8s.io/v1/{plural}/{name}"
            after.push_async_callback(admin.request, "DELETE", path)
        await admin.create(Node(metadata=ObjectMeta(name=name)))
        after.push_async_callback(admin.delete, Node, name)
        pool = {"metadata": {"name": name}, "spec": {"cidr": "10.77.0.0/27", "blockPrefix": 28}}
        kind = {"apiVersion": AddressPool.RESOURCE.api_version, "kind": "AddressPool"}
        await admin.create({**kind, **pool}, kind=AddressPool)
        after.push_async_callback(admin.delete, AddressPool, name)
        asked = TokenRequest(spec=TokenRequestSpec(expiration_seconds=3600))
        token = (await admin.create_token("agent", asked, namespace=name)).status.token
        client = await after.enter_async_context(Client(load_config(_kubeconfig(api_server, token, tmp_path))))
        await until_allowed(client, role["rules"][0])
        asks = Asks(client)
        blocks = StaticBlocks(asks, name)  # type: ignore[arg-type]
        added = (await blocks.add(Family.IPV4, 32, ())).blocks
        assert len(added) == 2
        assert (await blocks.add(Family.IPV4, 1, added)).short is not None  # which lists the pool
        assert len(await blocks.look(added)) == 2
        for block in added:
            await blocks.give_back(block)
    assert asks.used == granted


class Asks:
    """A client that notes (resource, verb) of its requests."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.used: set[tuple[str, str]] = set()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._client, name)

        def call(what: Any, *arguments: Any, **options: Any) -> Any:
            self.used.add((what.RESOURCE.plural, "list" if name == "list_all" else name))
            return real(what, *arguments, **options)

        return call


def _kubeconfig(server: ApiServer, token: str, folder: Path) -> Path:
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    made = folder / "account.kubeconfig"
    made.write_text(yaml.safe_dump(config))
    made.chmod(0o600)
    return made


@pytest.mark.real
async def test_agent_takes_and_gives_back_blocks_of_its_own_node_alone(
    offline_helm: Helm, real_control_plane: RealCluster, tmp_path: Path
) -> None:
    made = objects(rendered(offline_helm, tmp_path, STATIC))
    api = Api(real_control_plane.kubeconfig)
    account = f"system:serviceaccount:{SYSTEM}:muster-network"
    claim = "Impersonate-Extra-Authentication.kubernetes.io%2Fnode-name"
    path = AddressBlock.RESOURCE.path()

    def send(method: str, node: str, of: str, user: str = account, **query: str) -> tuple[int, str]:
        name = f"v4-10-88-{node or 'none'}"
        headers = {"Impersonate-User": user, "Impersonate-Group": "system:masters"}
        if node:
            headers[claim] = node
        body = None
        if method == "POST":
            kind = {"apiVersion": AddressBlock.RESOURCE.api_version, "kind": "AddressBlock"}
            body = {**kind, "metadata": {"name": name}, "spec": {"cidr": "10.88.0.0/28", "pool": "p", "nodeName": of}}
        target = path if body else f"{path}/v4-10-88-{of}"
        code, answer, _ = api.send(method, target, body, headers=headers, **query)
        return code, str(answer.get("message", ""))

    def refuses() -> bool:
        return send("POST", "a", "b", dryRun="All")[0] == 403

    async with Client(load_config(real_control_plane.kubeconfig)) as admin:
        await install_kinds(admin)
        for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
            await admin.create(made[kind])
        try:
            await until("the policy is in force", lambda: asyncio.to_thread(refuses))
            code, message = send("POST", "a", "b")
            assert (code, "bound to node a" in message) == (403, True)
            code, message = send("POST", "", "a")
            assert (code, "bound to no node" in message) == (403, True)
            assert send("POST", "a", "a")[0] == 201
            assert send("DELETE", "b", "a")[0] == 403
            assert send("DELETE", "a", "a")[0] == 200
            assert send("POST", "a", "a")[0] == 201
            assert send("DELETE", "", "a", "operator")[0] == 200
        finally:
            for plural in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
                await admin.request(
                    "DELETE", f"/apis/admissionregistration.k8s.io/v1/{plural}/muster-network-addresses"
                )
            with contextlib.suppress(NotFound):
                await admin.delete(AddressBlock, "v4-10-88-a")


async def test_refused_request_is_a_reason_that_names_the_role(api_server: ApiServer, tmp_path: Path) -> None:
    config = _kubeconfig(api_server, "not-a-token", tmp_path)
    async with Client(load_config(config)) as client:
        with pytest.raises(ProviderError, match="check the ClusterRole muster-network") as refused:
            await StaticBlocks(client, "node").look(())
    assert refused.value.reason is Reason.DENIED
