"""Fails and removes pods whose nodes no longer exist.

Source: kubernetes pkg/controller/podgc (gcOrphaned), which also waits this long before a node counts as gone.
"""

from __future__ import annotations

import contextlib

from muster.embedded.apiserver.core import ApiCore
from muster.embedded.apiserver.kinds.pods import set_condition
from muster.embedded.apiserver.status import StatusError
from muster.embedded.apiserver.types.strategy import DeleteOptions
from muster.embedded.item import Item

QUARANTINE_S = 40.0


class OrphanedPods:
    """Records since when the node of a pod is missing."""

    def __init__(self, core: ApiCore) -> None:
        self._core = core
        self._due: dict[str, float] = {}  # node -> when its pods are removed
        self._suspects: dict[str, None] = {}

    def changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        """Mark removed nodes, and pods that are bound to a missing node."""
        if resource == "nodes":
            if new is None and old is not None:
                self._suspects[old.name] = None
            elif new is not None:
                self._due.pop(new.name, None)
        elif resource == "pods" and new is not None:
            node = new.fields.get("spec.nodeName", "")
            if node and (old is None or old.fields.get("spec.nodeName") != node):
                self._suspects[node] = None

    def work(self, now: float) -> float | None:
        """Remove the pods of nodes missing for long enough."""
        nodes = self._core.store.define("nodes").items
        while self._suspects:
            name = next(iter(self._suspects))
            del self._suspects[name]
            if name not in nodes:
                self._due.setdefault(name, now + QUARANTINE_S)
        for name, due in list(self._due.items()):
            if due <= now:
                del self._due[name]
                if name not in nodes:
                    self._remove_pods(name, now)
        return min(self._due.values(), default=None)

    def _remove_pods(self, node: str, now: float) -> None:
        table, pods = self._core.store.define("pods"), self._core.registry.of_storage("pods")
        for key in table.indexed("spec.nodeName", node):
            item = table.items[key]
            obj = item.object()
            status = obj.setdefault("status", {})
            if status.get("phase") not in ("Succeeded", "Failed"):
                status["phase"] = "Failed"
                message = "PodGC: node no longer exists"
                set_condition(status, "DisruptionTarget", "True", now, "DeletionByPodGC", message)
                self._core.store.put("pods", key, obj)
            if pods is not None:
                with contextlib.suppress(StatusError):
                    self._core.deletes.delete(pods, key, item.name, DeleteOptions(grace_s=0, uid=item.uid))
