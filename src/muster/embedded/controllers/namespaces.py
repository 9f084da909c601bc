"""Creates the default objects of namespaces, and empties namespaces and custom kinds that are being deleted.

Source: kubernetes pkg/controller/namespace, pkg/controller/serviceaccount; k8s.io/apiextensions-apiserver finalizer.
"""

from __future__ import annotations

import contextlib

from muster.embedded.apiserver.core import CRDS, ApiCore
from muster.embedded.apiserver.kinds.crds import CLEANUP_FINALIZER
from muster.embedded.apiserver.status import StatusError
from muster.embedded.apiserver.types.strategy import DeleteOptions
from muster.embedded.item import Item
from muster.embedded.objects import items

FURNITURE = {"serviceaccounts": "default", "configmaps": "kube-root-ca.crt"}


class Namespaces:
    """Creates default objects, and empties terminating namespaces and kinds."""

    def __init__(self, core: ApiCore) -> None:
        self._core = core
        self._going: dict[str, None] = {}  # namespaces that may have become empty
        self._kinds: dict[str, None] = {}  # custom kinds that may have become empty
        self._bare: dict[str, None] = {}  # namespaces that may lack default objects

    def changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        """Mark terminating namespaces and kinds, and those in which an object was removed."""
        item = new or old
        if item is None:
            return
        if resource == "namespaces":
            if new is not None:
                (self._going if new.terminating else self._bare)[new.name] = None
            return
        if resource == CRDS:
            if new is not None and new.terminating:
                self._kinds[new.name] = None
            return
        if item.namespace and self._terminating(item.namespace):
            self._going[item.namespace] = None
        if new is None:
            if FURNITURE.get(resource) == item.name:
                self._bare[item.namespace] = None
            if resource in self._core.store.define(CRDS).items:
                self._kinds[resource] = None

    def work(self, now: float) -> float | None:
        """Empty terminating namespaces and kinds, and create missing default objects."""
        while self._going or self._kinds or self._bare:
            while self._bare:
                name = next(iter(self._bare))
                del self._bare[name]
                if name in self._core.store.define("namespaces").items and not self._terminating(name):
                    self._core.furnish(name)
            while self._going:
                name = next(iter(self._going))
                del self._going[name]
                self._empty_namespace(name)
            while self._kinds:
                name = next(iter(self._kinds))
                del self._kinds[name]
                self._empty_kind(name)
        return None

    def _terminating(self, name: str) -> bool:
        item = self._core.store.define("namespaces").items.get(name)
        return item is not None and item.terminating

    def _empty_namespace(self, name: str) -> None:
        item = self._core.store.define("namespaces").items.get(name)
        if item is None or not item.terminating:
            return
        left = 0
        for resource in self._core.registry.stored():
            table = self._core.store.tables.get(resource.storage)
            if not resource.namespaced or table is None:
                continue
            for key in list(table.range(name)):
                left += not self._delete(resource.storage, table.items[key])
        namespaces = self._core.registry.of_storage("namespaces")
        if not left and namespaces is not None:
            old, new = item.object(), item.object()
            new["spec"] = {}
            self._core.writes.commit(namespaces, item, new, old)

    def _empty_kind(self, name: str) -> None:
        crd = self._core.store.define(CRDS).items.get(name)
        kind = self._core.registry.of_storage(CRDS)
        if crd is None or not crd.terminating or kind is None:
            return
        table = self._core.store.define(name)
        left = [item for item in list(table.items.values()) if not self._delete(name, item)]
        old, new = crd.object(), crd.object()
        finalizers = items(new["metadata"], "finalizers")
        if not left and CLEANUP_FINALIZER in finalizers:
            finalizers.remove(CLEANUP_FINALIZER)
            if not finalizers:
                del new["metadata"]["finalizers"]
            self._core.writes.commit(kind, crd, new, old)

    def _delete(self, storage: str, item: Item) -> bool:
        """Delete an object, unless it is being deleted already. Returns whether it is gone."""
        resource = self._core.registry.of_storage(storage)
        if item.terminating or resource is None:
            return False
        with contextlib.suppress(StatusError):
            return self._core.deletes.delete(resource, item.key, item.name, DeleteOptions(propagation="Background"))[1]
        return False
