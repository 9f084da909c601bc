"""Watches namespaces' labels and DaemonSets, which the scheduler needs besides nodes, pods and gangs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from muster.kube.client import Client
from muster.kube.errors import ApiError, Forbidden, NotFound
from muster.kube.informers import Informers, SharedInformer
from muster.kube.objects.core import Namespace
from muster.scheduler.nodes.daemons import DaemonSet
from muster.scheduler.state import ClusterState

log = logging.getLogger(__name__)
_ASKED = 60
_ASK_AGAIN_S = 1.0


async def surroundings(
    client: Client,
    informers: Informers,
    state: ClusterState,
    *,
    clock: Callable[[], float],
    changed: Callable[[], None],
) -> list[SharedInformer[Any]]:
    """Return informers that update `state`.

    If the API server does not serve DaemonSets, they are not watched.
    """

    def namespace_changed(old: Namespace | None, new: Namespace | None) -> None:
        if new is not None:
            state.set_namespace(new.name, new.metadata.labels, clock())
        elif old is not None:
            state.set_namespace(old.name, None, clock())
        changed()

    def daemons_changed(old: DaemonSet | None, new: DaemonSet | None) -> None:
        if new is not None:
            _take_in(state, new)
        elif old is not None:
            state.remove_daemons(old.uid)
        changed()

    namespaces = informers.of(Namespace)
    namespaces.add_handler(namespace_changed)
    if not await _has_daemons(client):
        return [namespaces]
    daemons = informers.of(DaemonSet)
    daemons.add_handler(daemons_changed)
    return [namespaces, daemons]


async def list_surroundings(client: Client, state: ClusterState, now: float) -> None:
    """List namespaces and DaemonSets once.

    Without permission, namespace labels and DaemonSets stay unknown. Raises ApiError.
    """
    try:
        for namespace in (await client.list_all(Namespace)).items:
            state.set_namespace(namespace.name, namespace.metadata.labels, now)
        for daemons in (await client.list_all(DaemonSet)).items:
            _take_in(state, daemons)
    except (Forbidden, NotFound):
        return


def _take_in(state: ClusterState, daemons: DaemonSet) -> None:
    if daemons.metadata.deletion_timestamp is None:
        state.set_daemons(daemons)
    else:
        state.remove_daemons(daemons.uid)


async def _has_daemons(client: Client) -> bool:
    """Return whether DaemonSets are served; retries for at most a minute if the API server cannot answer."""
    for _ in range(_ASKED):
        try:
            await client.list(DaemonSet, limit=1)
        except NotFound:
            return False
        except Forbidden:
            return True  # their informer reports the error
        except ApiError as error:
            log.warning("listing DaemonSets: %s", error)
            await asyncio.sleep(_ASK_AGAIN_S)
        else:
            return True
    return True
