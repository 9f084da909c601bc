"""Waiting for caches, for as long as it takes: what a controller may not read must not take others down with it."""

from __future__ import annotations

import logging
from typing import Any

from muster.kube.informer import Informer

log = logging.getLogger(__name__)

SYNC_TIMEOUT_S = 120.0
"""How often it is said that a cache is still incomplete, and why."""


async def complete(name: str, *informers: Informer[Any]) -> None:
    """Wait until each has its first list; `name` is who waits."""
    for informer in informers:
        while not informer.has_synced:
            try:
                await informer.wait_synced(SYNC_TIMEOUT_S)
            except TimeoutError as error:
                log.warning("%s: %s", name, error)
