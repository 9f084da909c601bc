"""Our kinds on an API server, and namespaces of a test's own in which pods can be made."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import yaml

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
    return [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]


async def install_kinds(client: Client) -> None:
    """Create the chart's CustomResourceDefinitions where they are not, and wait until the kinds are served."""
    for definition in _definitions():
        with contextlib.suppress(AlreadyExists):
            await client.create(definition)
    for kind in (NodeHealth, NodeRemediation, Placement, Preflight, TrainingJob):
        url = kind.RESOURCE.path(None)
        await until(f"{url} is served", lambda url=url: client.request("GET", url), ignoring=(ApiError,))  # type: ignore[misc]


async def make_namespace(client: Client, name: str) -> None:
    """Create it and wait for its default service account, without which pods are refused."""
    await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    await until("a service account", lambda: client.get(ServiceAccount, "default", name), ignoring=(NotFound,))
