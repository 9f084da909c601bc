"""Reads the volume claims of waiting pods. Few pods have claims, so they are read on demand and not watched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from muster.kube.client import Client
from muster.kube.objects.meta import split_key
from muster.kube.objects.storage import PersistentVolume, PersistentVolumeClaim
from muster.scheduler.actions.binder import read
from muster.scheduler.pods.volumes import StorageClass, claim_state
from muster.scheduler.state import ClusterState

PERIOD_S = 1.0
TIMEOUT_S = 10.0
"""The time limit of one request."""


async def follow_claims(
    client: Client,
    state: ClusterState,
    *,
    clock: Callable[[], float],
    changed: Callable[[], None],
) -> None:
    """Keep the claims of pending pods up to date until cancelled."""
    while True:
        for key in state.claims_wanted():
            if await look_up_claim(client, state, key, clock=clock, timeout_s=TIMEOUT_S):
                changed()
        await asyncio.sleep(PERIOD_S)


async def look_up_claim(
    client: Client, state: ClusterState, key: str, *, clock: Callable[[], float], timeout_s: float
) -> bool:
    """Read one claim, its volume and its class. Return whether it changed."""
    namespace, name = split_key(key)
    claim = await read(client, PersistentVolumeClaim, name, namespace, timeout_s)
    volume = storage_class = None
    if claim is not None and claim.spec.volume_name:
        volume = await read(client, PersistentVolume, claim.spec.volume_name, None, timeout_s)
    elif claim is not None and claim.spec.storage_class_name:
        storage_class = await read(client, StorageClass, claim.spec.storage_class_name, None, timeout_s)
    found = claim_state(claim, volume, storage_class)
    if state.claims.known.get(key) == found:
        return False
    state.set_claim(key, found, clock())
    return True
