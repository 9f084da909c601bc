"""Prepares a new API server for jobs: Muster's kinds, its namespace, ready nodes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import aiohttp

from muster.api.crd import KINDS, definition
from muster.api.names import API_VERSION, SYSTEM_NAMESPACE
from muster.kube.client import MERGE_PATCH, Client
from muster.kube.errors import AlreadyExists, ApiError
from muster.kube.objects.node import Node

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_JSON = {"Content-Type": "application/json"}
_POLL_S = 0.1
_KINDS_S = 30.0


class NotReadyError(Exception):
    """A part did not become ready in time; the message names it."""


async def poll(what: str, check: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
    """Wait until `check` is true; API errors count as not yet. Raises NotReadyError after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    last = ""
    while True:
        try:
            if await check():
                return
            last = ""
        except (ApiError, OSError, aiohttp.ClientError) as error:
            last = f": {error}"
        if time.monotonic() > deadline:
            raise NotReadyError(f"{what} not ready after {timeout_s:.0f} s{last}")
        await asyncio.sleep(_POLL_S)


async def answers(client: Client) -> bool:
    """Returns whether the API server is ready."""
    return await client.request("GET", "/readyz") is not None


async def install_kinds(client: Client) -> list[str]:
    """Create or update our CustomResourceDefinitions and the system namespace, and wait until they are served.

    Returns the names of those that were missing.
    """
    missing = []
    for kind in KINDS:
        body = definition(kind)
        try:
            await client.request("POST", _CRDS, body=json.dumps(body).encode(), headers=_JSON)
            missing.append(str(body["metadata"]["name"]))
        except AlreadyExists:
            path = f"{_CRDS}/{body['metadata']['name']}"
            await client.request("PATCH", path, body=json.dumps(body).encode(), headers={"Content-Type": MERGE_PATCH})
    await ensure_namespace(client, SYSTEM_NAMESPACE)
    wanted = {kind.resource.plural for kind in KINDS}

    async def served() -> bool:
        listed = json.loads(await client.request("GET", f"/apis/{API_VERSION}"))
        return wanted <= {resource["name"] for resource in listed["resources"]}

    await poll("Muster's kinds", served, _KINDS_S)
    return missing


async def ensure_namespace(client: Client, name: str) -> None:
    """Create a namespace if it is missing."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    with contextlib.suppress(AlreadyExists):
        await client.request("POST", "/api/v1/namespaces", body=json.dumps(body).encode(), headers=_JSON)


async def ready_nodes(client: Client) -> set[str]:
    """The names of the nodes that are Ready."""
    nodes = (await client.list(Node)).items
    return {
        node.name
        for node in nodes
        if any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)
    }


async def healthy(port: int) -> bool:
    """Returns whether a process's /readyz on this machine answers 200."""
    timeout = aiohttp.ClientTimeout(total=5)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"http://127.0.0.1:{port}/readyz") as response,
    ):
        return response.status == HTTPStatus.OK
