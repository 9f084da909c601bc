"""Keeps the status of PodDisruptionBudgets.

Source: kubernetes pkg/controller/disruption.
"""

from __future__ import annotations

from muster.embedded.apiserver.core import ApiCore
from muster.embedded.apiserver.types.budgets import EVICTION_FORGOTTEN_S, STORAGE, Count, count
from muster.embedded.item import Item
from muster.embedded.objects import Obj, items, parse_time, section, timestamp


class BudgetStatus:
    """Recomputes budgets after each change of a pod in their namespace."""

    def __init__(self, core: ApiCore) -> None:
        self._store = core.store
        self._dirty: dict[str, None] = {}

    def changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        """Mark the budgets of the namespace."""
        item = new or old
        if item is None:
            return
        if resource == STORAGE and new is not None:
            self._dirty[new.key] = None
        elif resource == "pods":
            table = self._store.define(STORAGE)
            if table.items:
                self._dirty.update(dict.fromkeys(table.range(item.namespace)))

    def work(self, now: float) -> float | None:
        """Write each outdated status."""
        table = self._store.define(STORAGE)
        while self._dirty:
            key = next(iter(self._dirty))
            del self._dirty[key]
            item = table.items.get(key)
            if item is None:
                continue
            obj = item.object()
            status = self._status(obj, count(self._store, obj, now), now)
            if obj.get("status") != status:
                obj["status"] = status
                self._store.put(STORAGE, key, obj)
        return None

    def _status(self, obj: Obj, counted: Count, now: float) -> Obj:
        before = section(obj, "status")
        pods = self._store.define("pods").items
        namespace = obj["metadata"]["namespace"]
        disrupted = {
            name: when
            for name, when in section(before, "disruptedPods").items()
            if f"{namespace}/{name}" in pods and (parse_time(when) or 0) + EVICTION_FORGOTTEN_S > now
        }
        allowed = counted.allowed > 0
        condition: Obj = {
            "type": "DisruptionAllowed",
            "status": "True" if allowed else "False",
            "observedGeneration": obj["metadata"].get("generation", 1),
            "lastTransitionTime": timestamp(now),
            "reason": "SufficientPods" if allowed else "InsufficientPods",
            "message": "",
        }
        for old in items(before, "conditions"):
            if old.get("type") == "DisruptionAllowed" and old.get("status") == condition["status"]:
                condition["lastTransitionTime"] = old.get("lastTransitionTime")
        status: Obj = {
            "observedGeneration": obj["metadata"].get("generation", 1),
            "disruptionsAllowed": counted.allowed,
            "currentHealthy": counted.healthy,
            "desiredHealthy": counted.desired,
            "expectedPods": counted.expected,
            "conditions": [condition],
        }
        if disrupted:
            status["disruptedPods"] = disrupted
        return status
