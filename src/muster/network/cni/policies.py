"""NetworkPolicies of the cluster: without a program that enforces them, pods would have more access than they say."""

from __future__ import annotations

from typing import Final

import msgspec

from muster.kube.client import Client
from muster.kube.errors import NotFound

_PATH: Final = "/apis/networking.k8s.io/v1/networkpolicies"


class _Listed(msgspec.Struct):
    items: list[msgspec.Raw]


async def has_network_policies(client: Client) -> bool:
    """Return whether a NetworkPolicy exists in any namespace. Raises ApiError."""
    try:
        body = await client.request("GET", _PATH, params={"limit": "1"})
    except NotFound:  # an API server without this kind
        return False
    return bool(msgspec.json.decode(body, type=_Listed).items)
