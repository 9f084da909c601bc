"""Our kinds on an API server, and namespaces of a test's own in which pods can be made."""

from __future__ import annotations

import contextlib
import functools
import json
from pathlib import Path
from typing import Any

import yaml

from muster.api.names import GROUP, VERSION
from muster.api.node_health import NodeHealth
from muster.api.node_remediation import NodeRemediation
from muster.api.placement import Placement
from muster.api.preflight import Preflight
from muster.api.training_job import TrainingJob
from muster.kube.client import Client
from muster.kube.errors import AlreadyExists, ApiError, NotFound
from muster.kube.objects.core import ServiceAccount
from tests.support.waiting import until

CRDS = Path(__file__).parents[2] / "deploy/chart/muster/files/crds"


@functools.cache
def _definitions() -> list[Any]:
    """Read once: most scenarios ask for them."""
    return [yaml.load(path.read_text(), yaml.CSafeLoader) for path in sorted(CRDS.glob("*.yaml"))]


async def _served(client: Client) -> set[str]:
    """The plural names of our kinds that the server already has."""
    try:
        answer = await client.request("GET", f"/apis/{GROUP}/{VERSION}")
    except NotFound:
        return set()
    return {resource["name"] for resource in json.loads(answer)["resources"]}


async def install_kinds(client: Client) -> None:
    """Create the chart's CustomResourceDefinitions where they are not, and wait until the kinds are served.

    A real API server checks a definition for 50 ms, also where it then refuses it because there is one of that name.
    """
    served = await _served(client)
    for definition in _definitions():
        if definition["spec"]["names"]["plural"] not in served:
            with contextlib.suppress(AlreadyExists):
                await client.create(definition)
    for kind in (NodeHealth, NodeRemediation, Placement, Preflight, TrainingJob):
        ask = functools.partial(client.request, "GET", kind.RESOURCE.path(None), params={"limit": "1"})
        await until(f"{kind.RESOURCE.plural} are served", ask, ignoring=(ApiError,))


async def make_namespace(client: Client, name: str) -> None:
    """Create it and wait for its default service account, without which pods are refused."""
    await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    await until("a service account", lambda: client.get(ServiceAccount, "default", name), ignoring=(NotFound,))
