"""What the scheduler knows of the cluster besides nodes, pods and gangs: the labels of namespaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.kube.client import Client
from muster.kube.core import Namespace
from muster.kube.errors import Forbidden
from muster.kube.informer import Informer
from muster.scheduler.state import ClusterState


def surroundings(
    client: Client, state: ClusterState, *, clock: Callable[[], float], changed: Callable[[], None], **options: Any
) -> list[Informer[Any]]:
    """Return informers that keep `state` up to date; `options` are those of Informer."""

    def namespace_changed(old: Namespace | None, new: Namespace | None) -> None:
        if new is not None:
            state.set_namespace(new.name, new.metadata.labels, clock())
        elif old is not None:
            state.set_namespace(old.name, None, clock())
        changed()

    namespaces = Informer(client, Namespace, **options)
    namespaces.add_handler(namespace_changed)
    return [namespaces]


async def list_surroundings(client: Client, state: ClusterState, now: float) -> None:
    """Look once. Who may not list namespaces knows them by name only. Raises ApiError."""
    try:
        namespaces = (await client.list_all(Namespace)).items
    except Forbidden:
        return
    for namespace in namespaces:
        state.set_namespace(namespace.name, namespace.metadata.labels, now)
