"""Publishes the key that verifies tickets, in ConfigMap muster-cache: node caches mount it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import aiohttp

from muster.api.cache_ticket import CACHE_CONFIG_MAP, TICKET_KEY, TicketSigner, merged_public_keys
from muster.api.names import LABEL_MANAGED_BY, MANAGED_BY
from muster.kube.client import Client
from muster.kube.errors import AlreadyExists, ApiError, NotFound
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta

log = logging.getLogger(__name__)

_AGAIN_S: Final = 600.0
_FIRST_RETRY_S: Final = 2.0
_LONGEST_RETRY_S: Final = 60.0


async def publish(client: Client, namespace: str, public_key: str) -> None:
    """Write the key as the first one, unless it is. The key before it stays for a while. Raises ApiError."""
    try:
        there = await client.get(ConfigMap, CACHE_CONFIG_MAP, namespace)
    except NotFound:
        meta = ObjectMeta(name=CACHE_CONFIG_MAP, namespace=namespace, labels={LABEL_MANAGED_BY: MANAGED_BY})
        text = merged_public_keys(public_key, "")
        await client.create(ConfigMap(metadata=meta, data={TICKET_KEY: text}))
        return
    known = there.data.get(TICKET_KEY, "")
    text = merged_public_keys(public_key, known)
    if text != known:
        await client.patch(ConfigMap, CACHE_CONFIG_MAP, {"data": {TICKET_KEY: text}}, namespace=namespace)


async def keep_published(client: Client, namespace: str, cluster_secret: bytes) -> None:
    """Publish the key, and again after a change by others. Retries with backoff; never returns."""
    public_key = TicketSigner(cluster_secret).public_key
    retry_s = _FIRST_RETRY_S
    while True:
        try:
            await publish(client, namespace, public_key)
        except AlreadyExists:
            continue
        except (ApiError, OSError, aiohttp.ClientError) as error:
            log.warning(
                "the key that verifies tickets of jobs is not in ConfigMap %s/%s: %s; node caches cannot share blocks "
                "between nodes until it is",
                namespace,
                CACHE_CONFIG_MAP,
                error,
            )
            await asyncio.sleep(retry_s)
            retry_s = min(_LONGEST_RETRY_S, retry_s * 2)
            continue
        retry_s = _FIRST_RETRY_S
        await asyncio.sleep(_AGAIN_S)
