"""Waits until informer caches are complete, without a limit: one unreadable cache must not stop other controllers."""

from __future__ import annotations

import logging
from typing import Any

from muster.kube.informer import Informer

log = logging.getLogger(__name__)

SYNC_TIMEOUT_S = 120.0
"""The interval of the warning that a cache is still incomplete."""


async def complete(name: str, *informers: Informer[Any]) -> None:
    """Wait until each informer has its first list. `name` is the waiting controller."""
    for informer in informers:
        while not informer.has_synced:
            try:
                await informer.wait_synced(SYNC_TIMEOUT_S)
            except TimeoutError as error:
                log.warning("%s: %s", name, error)
