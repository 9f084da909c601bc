"""`muster controller --scaling` with Auto Scaling groups: the program itself, moto's server, and nothing in between."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import boto3
import msgspec
import pytest

from muster.controlplane.children import Child
from muster.fleet.scaling.node_views import ANNOTATION_RECORD
from muster.fleet.scaling.status import STATUS_KEY, STATUS_MAP, ScalingStatus
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import NotFound
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.node import Node
from tests.support.apiserver import SOURCE, ApiServer
from tests.support.awsserver import CREDENTIALS, aws_server
from tests.support.namespaces import install_kinds, make_namespace
from tests.support.waiting import TIMEOUT_S, until

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with aws_server(tmp_path_factory.mktemp("moto")) as address:
        yield address


@pytest.fixture
async def client(api_server: ApiServer) -> AsyncIterator[Client]:
    async with Client(load_config(api_server.kubeconfig)) as made:
        await install_kinds(made)
        yield made


def config(group: str) -> str:
    pool = {
        "name": "h100",
        "provider": "aws",
        "group": group,
        "options": {"region": "us-east-1"},
        "min": 2,
        "max": 4,
        "pollSeconds": 1,
        "template": {"capacity": {"cpu": 96, "nvidia.com/gpu": 8}},
    }
    return msgspec.json.encode({"pools": [pool]}).decode()


async def test_the_program_scales_a_group_once_it_is_configured(
    api_server: ApiServer, client: Client, cloud: str, tmp_path: Path
) -> None:
    namespace = f"t{uuid.uuid4().hex[:10]}"
    await make_namespace(client, namespace)
    aws: Any = boto3.client(
        "autoscaling",
        endpoint_url=cloud,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    aws.create_launch_configuration(
        LaunchConfigurationName=namespace, ImageId="ami-12c6146b", InstanceType="p5.48xlarge"
    )
    aws.create_auto_scaling_group(
        AutoScalingGroupName=namespace,
        LaunchConfigurationName=namespace,
        MinSize=0,
        MaxSize=9,
        DesiredCapacity=0,
        AvailabilityZones=["us-east-1a"],
        NewInstancesProtectedFromScaleIn=True,
    )

    def desired() -> tuple[int, list[str]]:
        (group,) = aws.describe_auto_scaling_groups(AutoScalingGroupNames=[namespace])["AutoScalingGroups"]
        return group["DesiredCapacity"], sorted(each["InstanceId"] for each in group["Instances"])

    async def status() -> ScalingStatus | None:
        with contextlib.suppress(NotFound):
            found = await client.get(ConfigMap, STATUS_MAP, namespace)
            return msgspec.json.decode(found.data[STATUS_KEY], type=ScalingStatus)
        return None

    async def states() -> dict[str, int]:
        found = await status()
        return found.pools[0].states if found is not None and found.pools else {}

    command = [
        sys.executable,
        "-m",
        "muster.cli.main",
        "controller",
        f"--kubeconfig={api_server.kubeconfig}",
        f"--namespace={namespace}",
        "--scaling",
        "--lease-duration=3",
    ]
    env = {**os.environ, **CREDENTIALS, "AWS_ENDPOINT_URL": cloud, "PYTHONPATH": str(SOURCE)}
    controller = Child(command, tmp_path / "controller.log", env)
    node = ""
    try:
        text = {"scaling.yaml": config(namespace)}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "muster-scaling"}, "data": text}
        await client.create(body, kind=ConfigMap, namespace=namespace)

        async def launching() -> bool:
            assert controller.exit_code is None, controller.log_tail()
            return await states() == {"Launching": 2}

        await until("two instances were asked for", launching)
        size, instances = desired()
        assert size == 2
        node = f"ip-{namespace}"
        spec = {"providerID": f"aws:///us-east-1a/{instances[0]}"}
        await client.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "spec": spec})

        async def joining() -> bool:
            return await states() == {"Launching": 1, "Joining": 1}

        await until("one of them has a node", joining)
        found = await status()
        assert found is not None
        assert (found.pools[0].size, found.pools[0].conditions[0].status) == (2, "True")
        assert ANNOTATION_RECORD not in (await client.get(Node, node)).metadata.annotations
        client_side = await client.get(ConfigMap, STATUS_MAP, namespace)
        assert "secret" not in client_side.data[STATUS_KEY]
    finally:
        controller.stop(grace_s=TIMEOUT_S)
        if node:
            await client.delete(Node, node)
        aws.delete_auto_scaling_group(AutoScalingGroupName=namespace, ForceDelete=True)
        aws.delete_launch_configuration(LaunchConfigurationName=namespace)
        await client.request("DELETE", f"/api/v1/namespaces/{namespace}")
    assert controller.exit_code == 0, controller.log_tail()
