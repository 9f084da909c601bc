"""Deletes Events an hour after their last write, as kube-apiserver does by default (--event-ttl)."""

from __future__ import annotations

from muster.embedded.apiserver.core import ApiCore
from muster.embedded.item import Item

EVENT_TTL_S = 3600.0


class EventExpiry:
    """Removes old events."""

    def __init__(self, core: ApiCore) -> None:
        self._store = core.store
        self._clock = core.context.clock
        self._written: dict[str, float] = {}  # in the order written

    def changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        """Record the write."""
        if resource != "events":
            return
        item = new or old
        if item is not None:
            self._written.pop(item.key, None)
            if new is not None:
                self._written[new.key] = self._clock.now()

    def work(self, now: float) -> float | None:
        """Remove old events."""
        while self._written:
            key, written = next(iter(self._written.items()))
            if written + EVENT_TTL_S > now:
                return written + EVENT_TTL_S
            del self._written[key]
            if key in self._store.define("events").items:
                self._store.delete("events", key)
        return None
