"""Reads from the ConfigMap `muster-preflight` whether nodes need tests before they are used."""

from __future__ import annotations

from muster.api.names import SYSTEM_NAMESPACE
from muster.fleet.preflight.config import CONFIG_MAP, REQUIRED_KEY
from muster.kube.client import Client
from muster.kube.errors import ApiError
from muster.kube.objects.core import ConfigMap


async def read_trusting(client: Client, namespace: str = SYSTEM_NAMESPACE) -> str | None:
    """Return Muster's own namespace if nodes need tests; None if they do not, or the caller may not read it."""
    try:
        listed = await client.list(ConfigMap, namespace, field_selector=f"metadata.name={CONFIG_MAP}")
    except ApiError:
        return None
    required = any(config.data.get(REQUIRED_KEY) == "true" for config in listed.items)
    return namespace if required else None
