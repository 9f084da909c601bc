"""Finds all API servers of a cluster behind its one address: each has metrics of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

from muster.api.reader import USER_AGENT, Reader
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.errors import ApiError

_SLICES: Final = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
_WHAT: Final = "API servers other than the one that answers"
_NAME: Final = "kubernetes.default.svc"
"""Each API server's certificate has this name, since pods connect with it (Kubernetes docs: "PKI certificates")."""
_PATIENCE_S: Final = 3.0
_SERVERS_MAX: Final = 9


async def open_servers(reader: Reader, stack: AsyncExitStack) -> tuple[Client, ...]:
    """Return a client for each API server, and always at least the one of the kubeconfig.

    The addresses are those of the Service `kubernetes`. They are used only if the kubeconfig has the cluster's own
    authority: then a server that is not of the cluster cannot receive the credentials.

    Args:
        reader: the cluster.
        stack: closes the clients.
    """
    listed = await reader.list(
        _SLICES, what=_WHAT, params={"labelSelector": "kubernetes.io/service-name=kubernetes"}, limit=10
    )
    if listed is None:
        return (reader.client,)
    addresses = addresses_of(listed.items)
    if len(addresses) < 2:
        return (reader.client,)
    config = reader.client.config
    if not config.ca_data or config.insecure_skip_tls_verify:
        reader.note(_WHAT, "the kubeconfig has no certificate-authority-data, so the credentials stay with its address")
        return (reader.client,)
    opened = await asyncio.gather(*(_open(reader, config, address, stack) for address in addresses[:_SERVERS_MAX]))
    clients = tuple(client for client in opened if client is not None)
    return clients or (reader.client,)


async def _open(reader: Reader, config: ClusterConfig, address: str, stack: AsyncExitStack) -> Client | None:
    direct = replace(config, server=address, tls_server_name=_NAME)
    client = await stack.enter_async_context(Client(direct, user_agent=USER_AGENT, retry_for_s=0))
    reader.cost.requests += 1
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await client.request("GET", "/version")
    except (ApiError, TimeoutError) as error:
        reader.note(f"the API server at {address}", str(error) or f"no answer within {_PATIENCE_S:g} s")
        return None
    return client


def addresses_of(slices: Sequence[object]) -> list[str]:
    """Return the URLs of the ready API servers in EndpointSlices of the Service `kubernetes`."""
    found: list[str] = []
    for item in slices:
        if not isinstance(item, dict):
            continue
        ports = [port["port"] for port in item.get("ports") or () if port.get("name") in ("https", None, "")]
        for endpoint in item.get("endpoints") or ():
            if not ports or (endpoint.get("conditions") or {}).get("ready") is False:
                continue
            for address in endpoint.get("addresses") or ():
                host = f"[{address}]" if ":" in address else address
                found.append(f"https://{host}:{ports[0]}")
    return sorted(set(found))
