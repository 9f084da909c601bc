"""Caches the labels of namespaces, and which teams have nodes, from watches."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from muster.admission.mutate import Home
from muster.api.names import LABEL_SCHEDULER, SCHEDULER_NAME, TEAMS_CONFIG_MAP
from muster.kube.client import Client
from muster.kube.errors import ApiError, ConfigError
from muster.kube.health import Progress
from muster.kube.informer import Informer
from muster.kube.objects.core import ConfigMap, Namespace
from muster.kube.objects.meta import ObjectMeta
from muster.kube.planloop import complete
from muster.teams.config import from_data
from muster.teams.yaml_reader import TeamsConfigError

log = logging.getLogger(__name__)

_ASK_S: Final = 1.0


class Homes:
    """The cache of namespaces and of the allocation, updated while `run` runs.

    Args:
        client: the API server.
        system_namespace: the namespace of the allocation's ConfigMap.
        namespace_key: label of a namespace that names its team.
        progress: marked by the watches.
    """

    def __init__(
        self, client: Client, system_namespace: str, namespace_key: str, progress: Progress | None = None
    ) -> None:
        """Create an empty cache."""
        self._client, self._key = client, namespace_key
        self._namespaces = Informer(client, Namespace, transform=_labels_only, progress=progress)
        self._config = Informer(
            client,
            ConfigMap,
            namespace=system_namespace,
            field_selector=f"metadata.name={TEAMS_CONFIG_MAP}",
            progress=progress,
        )
        self._config.add_handler(self._changed)
        self._with_nodes: frozenset[str] | None = None

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        await asyncio.gather(self._namespaces.run(), self._config.run())

    async def known(self) -> None:
        """Wait until namespaces and the allocation are known, without a limit."""
        await complete("admission", self._namespaces, self._config)

    def not_ready(self) -> str | None:
        """Return what is missing; None when namespaces and the allocation are known."""
        if not self._namespaces.has_synced:
            return f"no list of namespaces: {self._namespaces.last_error or 'not yet'}"
        if not self._config.has_synced:
            return f"no list of ConfigMaps: {self._config.last_error or 'not yet'}"
        return None

    def get(self, namespace: str) -> Home | None:
        """Return the entry of a namespace; None if it is not known."""
        known = self._namespaces.get(namespace)
        return self._home(known) if known is not None else None

    async def ask(self, namespace: str) -> Home | None:
        """Ask the API server about a namespace that may be too new for the watch; None without an answer."""
        try:
            async with asyncio.timeout(_ASK_S):
                return self._home(await self._client.get(Namespace, namespace))
        except (ApiError, ConfigError, TimeoutError) as error:
            log.warning("namespace %s: %s", namespace, str(error) or "no answer")
            return None

    def without_nodes(self, team: str) -> bool:
        """Return whether the allocation is known and gives the team no nodes."""
        return self._with_nodes is not None and team not in self._with_nodes

    def _home(self, namespace: Namespace) -> Home:
        labels = namespace.metadata.labels
        return Home(team=labels.get(self._key, ""), ours=labels.get(LABEL_SCHEDULER) == SCHEDULER_NAME)

    def _changed(self, _: ConfigMap | None, new: ConfigMap | None) -> None:
        """Take a new allocation. If the ConfigMap is missing, empty or invalid, the previous one stays."""
        if new is None:
            return
        try:
            config = from_data(new.data)
        except TeamsConfigError as error:
            log.warning("ConfigMap %s: %s", TEAMS_CONFIG_MAP, error)
            return
        if not config.pools:
            return
        shares = [share for pool in config.pools for share in pool.shares]
        self._with_nodes = frozenset(share.team for share in shares if share.count or share.percent)


def _labels_only(namespace: Namespace) -> Namespace:
    meta = namespace.metadata
    kept = ObjectMeta(name=meta.name, resource_version=meta.resource_version, labels=meta.labels)
    return msgspec.structs.replace(namespace, metadata=kept)
