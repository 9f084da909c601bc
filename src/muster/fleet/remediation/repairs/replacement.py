"""Replaces machines through the provider of the node's scaling pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from muster.api.configtext import ConfigTextError
from muster.fleet.providers.base import Provider
from muster.fleet.scaling.config import CONFIG_KEY, EXTERNAL, parse_config
from muster.fleet.scaling.snapshot import Instance, PoolSpec
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.node import Node


class Replacer(Protocol):
    """Replaces machines."""

    def can(self, node: Node) -> bool:
        """Return whether the node's machine can be replaced."""

    async def replace(self, node: Node) -> None:
        """Request a replacement; repeating it changes nothing. Raises ProviderError."""


class ByProvider:
    """Asks the scaling providers, for pools in the ConfigMap `muster-scaling`.

    Args:
        providers: by name.
        require_leading: called immediately before a machine is deleted; raises NotLeading if it must not be.
    """

    def __init__(self, providers: Mapping[str, Provider], require_leading: Callable[[str], None]) -> None:
        self._providers = providers
        self._require_leading = require_leading
        self._pools: tuple[PoolSpec, ...] = ()

    def config_changed(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        """Handle a change of that ConfigMap. If it is not valid, the pools stay as they were."""
        if new is None:
            self._pools = ()
            return
        try:
            known = frozenset(self._providers) | {EXTERNAL}
            self._pools = parse_config(new.data.get(CONFIG_KEY, ""), known)
        except ConfigTextError:
            return  # scaling reports what is wrong with it

    def can(self, node: Node) -> bool:
        """Return whether the node has a pool's labels and the pool's provider is configured."""
        return self._pool(node) is not None

    async def replace(self, node: Node) -> None:
        """Delete the node's instance and have the provider start another one. Raises ProviderError, NotLeading."""
        pool = self._pool(node)
        if pool is None:
            return
        provider = self._providers[pool.provider]
        group = await provider.look(pool)
        for each in group.instances:
            if _is_of(node, each):
                if not each.terminating:
                    self._require_leading(f"the deletion of {each.id}")
                    await provider.delete(pool, each.id, replace=True)
                return

    def _pool(self, node: Node) -> PoolSpec | None:
        for pool in self._pools:
            labels = pool.template.labels
            if pool.provider in self._providers and labels and labels.items() <= node.metadata.labels.items():
                return pool
        return None


def _is_of(node: Node, instance: Instance) -> bool:
    """Return whether the instance is the node's machine. The provider ID decides if there is one."""
    if instance.id == node.name or _is_id(node.spec.provider_id, instance.id):
        return True
    return not node.spec.provider_id and instance.node_name == node.name


def _is_id(provider_id: str, instance: str) -> bool:
    return provider_id == instance or provider_id.endswith(f"/{instance}")
