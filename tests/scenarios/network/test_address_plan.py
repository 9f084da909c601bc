"""Address plans and API servers: the objects of a plan are accepted, and ranges are read from running clusters."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.embedded.readiness import install_kinds
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig, load_config
from muster.kube.errors import AlreadyExists
from muster.kube.objects.core import ServiceAccount
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.network.plan.clusters import ServiceAddresses
from tests.support.apiserver import ApiServer
from tests.support.controlplane import RealCluster
from tests.support.kubectl import kubectl_program
from tests.support.musterprogram import Muster

REQUEST = """\
provider: metal
families: [IPv4, IPv6]
supernets: [10.0.0.0/8, fd12:3456::/32]
taken: [{cidr: 10.0.0.0/16, name: storage, reachable: true}]
researchers: 500
clusters:
- {name: hub, role: hub, nodes: 20, podsPerNode: 30, services: 200}
- {name: train, nodes: 7500, podsPerNode: 26, services: 3000, namespaces: [default, plan-team]}
- {name: infer, nodes: 500, podsPerNode: 110, services: 300}
"""


@pytest.fixture
def muster(tmp_path: Path) -> Muster:
    return Muster(tmp_path / "home")


def kubectl(cluster: Path, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [str(kubectl_program()), f"--kubeconfig={cluster}", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "HOME": str(cluster.parent)},
    )
    assert done.returncode == 0, done
    return done.stdout


@pytest.mark.real
async def test_the_objects_of_a_plan_are_accepted_by_kubernetes(
    real_control_plane: RealCluster, muster: Muster, tmp_path: Path
) -> None:
    """A server-side dry run validates, and an apply stores them as they are."""
    kubeconfig = real_control_plane.kubeconfig
    request = tmp_path / "clusters.yaml"
    request.write_text(REQUEST)
    async with Client(load_config(kubeconfig)) as client:
        await install_kinds(client)
    manifests = muster.ok("network", "plan", request, "--manifests", "train")
    objects = list(yaml.safe_load_all(manifests))
    assert [each["kind"] for each in objects] == ["NetworkPolicy"] * 2 + ["AddressPool"] * 2
    kubectl(kubeconfig, "create", "namespace", "plan-team")
    try:
        kubectl(kubeconfig, "apply", "--validate=strict", "-f", "-", stdin=manifests)
        stored = json.loads(kubectl(kubeconfig, "get", "networkpolicies", "-n", "plan-team", "-o", "json"))
        assert [each["spec"] for each in stored["items"]] == [objects[1]["spec"]]
        again = kubectl(kubeconfig, "apply", "-f", "-", stdin=manifests)
        assert again.count("unchanged") == len(objects)
    finally:
        kubectl(kubeconfig, "delete", "--ignore-not-found", "-f", "-", stdin=manifests)
        kubectl(kubeconfig, "delete", "namespace", "plan-team", "--wait=false")


@pytest.fixture
async def nodes(cluster_config: ClusterConfig) -> AsyncIterator[list[str]]:
    """Two nodes with blocks of both families, one with the block of a cluster elsewhere."""
    names = ["plan-0", "plan-1"]
    async with Client(cluster_config) as client:
        for number, name in enumerate(names):
            blocks = [f"10.200.{number}.0/24", f"fd77::{number}:0/112"]
            body = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name},
                "spec": {"podCIDR": blocks[0], "podCIDRs": blocks},
                "status": {"addresses": [{"type": "InternalIP", "address": f"10.201.0.{number}"}]},
            }
            await client.create(body, kind=Node)
        try:
            yield names
        finally:
            for name in names:
                await client.delete(Node, name)


ESTATE = """\
clusters:
- {name: other, podRanges: [10.200.1.0/25, 10.192.0.0/18], nodeRanges: [10.201.0.0/28], serviceRanges: [fd77::/64]}
"""


def test_ranges_of_a_running_cluster_are_compared_in_both_directions(
    api_server: ApiServer, nodes: list[str], muster: Muster, tmp_path: Path
) -> None:
    estate = tmp_path / "estate.yaml"
    estate.write_text(ESTATE)
    done = muster.run("network", "check", api_server.kubeconfig, estate, "-o", "json")
    assert done.returncode == 1, done
    said: dict[str, Any] = json.loads(done.stdout)
    name = api_server.kubeconfig.stem
    overlaps = {each["what"] for each in said["findings"] if each["id"] == "overlap"}
    assert overlaps == {
        # The two blocks of nodes aggregate: they are neighbours.
        f"the pods of {name} (10.200.0.0/23) contain the pods of other (10.200.1.0/25)",
        f"the nodes of other (10.201.0.0/28) contain the nodes of {name} (10.201.0.0/31)",
        f"the services of other (fd77::/64) contain the pods of {name} (fd77::/111)",
    }


def test_the_range_of_services_is_that_of_the_api_server(
    api_server: ApiServer, nodes: list[str], muster: Muster
) -> None:
    done = muster.run("network", "check", api_server.kubeconfig, "-o", "json")
    assert done.returncode == 0, done
    said = json.loads(done.stdout)
    (cluster,) = said["estate"]["clusters"]
    if api_server.kind == "real" and not said["notes"]:
        cidrs = json.loads(kubectl(api_server.kubeconfig, "get", "servicecidrs", "-o", "json"))["items"]
        assert cluster["serviceRanges"] == [cidr for each in cidrs for cidr in each["spec"]["cidrs"]]
    else:
        assert "ServiceCIDRs" in said["notes"][0]
    assert cluster["nodeBlocks"] == ["10.200.0.0/24", "fd77::0:0/112", "10.200.1.0/24", "fd77::1:0/112"]


def test_a_cluster_that_does_not_answer_is_an_error_with_its_file(muster: Muster, tmp_path: Path) -> None:
    broken = tmp_path / "gone.yaml"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "clusters": [cluster],
        "contexts": [context],
    }
    broken.write_text(yaml.safe_dump({**config, "users": [{"name": "u", "user": {}}]}))
    done = muster.run("network", "check", broken)
    assert done.returncode == 3
    assert f"{broken}: the cluster cannot be reached" in done.stderr


@pytest.fixture
async def cloud(cluster_config: ClusterConfig) -> AsyncIterator[str]:
    """Two pods, and an AWS node without a block, as its VPC CNI leaves it."""
    async with Client(cluster_config) as client:
        name = "plan-cloud"
        node = _object("Node", name)
        node["spec"] = {"providerID": "aws:///zone/i-1"}
        node["status"] = {"addresses": [{"type": "InternalIP", "address": "10.210.0.9"}]}
        await client.create(node, kind=Node)
        with contextlib.suppress(AlreadyExists):  # its controller does not run here
            await client.create(ServiceAccount(metadata=ObjectMeta(name="default", namespace="default")))
        for pod, address, host_network in (("plan-pod", "10.210.4.4", False), ("plan-host", "10.210.0.9", True)):
            body = _object("Pod", pod, "default")
            body["spec"] = {"containers": [{"name": "c", "image": "i"}], "hostNetwork": host_network, "nodeName": name}
            await client.create(body)
            status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
            await client.patch(Pod, pod, status, namespace="default", subresource="status")
        try:
            yield name
        finally:
            for pod in ("plan-pod", "plan-host"):
                await client.delete(Pod, pod, namespace="default", grace_s=0)
            await client.delete(Node, name)


def _object(kind: str, name: str, namespace: str = "") -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


def test_addresses_of_pods_stand_for_ranges_where_nodes_have_no_blocks(
    api_server: ApiServer, cloud: str, muster: Muster, tmp_path: Path
) -> None:
    estate = tmp_path / "estate.yaml"
    estate.write_text("provider: aws\nclusters: [{name: other, podRanges: [10.210.4.0/22]}]\n")
    done = muster.run("network", "check", api_server.kubeconfig, estate, "-o", "json")
    said = json.loads(done.stdout)
    seen = next(each for each in said["estate"]["clusters"] if each["name"] != "other")
    assert "10.210.4.4/32" in seen["podRanges"]  # beside pods of other tests on this server
    assert (said["estate"]["provider"], "podNetwork" in said["estate"]) == ("aws", False)
    assert any("nodes have no podCIDRs" in each for each in said["notes"])
    name = api_server.kubeconfig.stem
    assert f"the pods of other (10.210.4.0/22) contain the pods of {name} (10.210.4.4/32)" in [
        each["what"] for each in said["findings"]
    ]


async def test_cluster_ips_stand_for_the_range_of_services_where_it_is_not_shown(
    embedded_server: ApiServer, muster: Muster
) -> None:
    """As on Kubernetes 1.32 and older: the smallest range that holds them, and a note that it may be larger."""
    async with Client(load_config(embedded_server.kubeconfig)) as client:
        addresses = {"plan-a": ["10.97.0.10", "fd98::a"], "plan-b": ["10.97.3.7"], "plan-headless": ["None"]}
        for name, cluster_ips in addresses.items():
            service = _object("Service", name, "default")
            service["spec"] = {"ports": [{"port": 80}], "clusterIP": cluster_ips[0], "clusterIPs": cluster_ips}
            await client.create(service)
        try:
            said = json.loads(muster.run("network", "check", embedded_server.kubeconfig, "-o", "json").stdout)
        finally:
            for name in addresses:
                await client.delete(ServiceAddresses, name, namespace="default")
    assert said["estate"]["clusters"][0]["serviceRanges"] == ["10.97.0.0/22", "fd98::a/128"]
    assert "which may be larger" in said["notes"][-1]
