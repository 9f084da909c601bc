"""Keeps the status of ResourceQuotas up to date."""

from __future__ import annotations

from muster.embedded.apiserver.core import ApiCore
from muster.embedded.apiserver.types.quota import STORAGE
from muster.embedded.item import Item


class QuotaStatus:
    """Writes the usage that the quota ledger has counted into the status of each ResourceQuota."""

    def __init__(self, core: ApiCore) -> None:
        self._store = core.store
        self._ledger = core.context.quotas
        self._ledger.dirty.update(dict.fromkeys(self._store.define(STORAGE).items))

    def changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        """Do nothing: the ledger gets changes from the store."""

    def work(self, now: float) -> float | None:
        """Write each outdated status."""
        table = self._store.define(STORAGE)
        while self._ledger.dirty:
            key = next(iter(self._ledger.dirty))
            del self._ledger.dirty[key]
            item = table.items.get(key)
            if item is None:
                continue
            obj = item.object()
            status = self._ledger.status_of(obj)
            if obj.get("status") != status:
                obj["status"] = status
                self._store.put(STORAGE, key, obj)
        return None
