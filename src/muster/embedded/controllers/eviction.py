"""Taint-based eviction: deletes pods on nodes whose NoExecute taints they do not tolerate any longer.

Source: kubernetes pkg/controller/tainteviction.
"""

from __future__ import annotations

import contextlib
import heapq

from muster.embedded.apiserver.core import ApiCore
from muster.embedded.apiserver.kinds.pods import set_condition
from muster.embedded.apiserver.status import StatusError
from muster.embedded.apiserver.types.strategy import DeleteOptions
from muster.embedded.item import Item
from muster.embedded.objects import Obj, items, section


class TaintEviction:
    """Keeps a deadline for each pod that must be deleted."""

    def __init__(self, core: ApiCore) -> None:
        self._core = core
        self._tainted: dict[str, list[Obj]] = {}  # node -> its NoExecute taints
        self._nodes: dict[str, None] = {}
        self._pods: dict[str, None] = {}
        self._deadlines: dict[str, tuple[str, float, float]] = {}  # pod key -> UID, seen at, deadline
        self._alarms: list[tuple[float, str]] = []

    def changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        """Mark changed nodes and newly bound pods."""
        if resource == "nodes":
            item = new or old
            if item is not None and (
                old is None or new is None or old.fields.get("taints") != new.fields.get("taints")
            ):
                self._nodes[item.name] = None
        elif resource == "pods":
            if new is None:
                if old is not None:
                    self._deadlines.pop(old.key, None)
            elif new.fields.get("spec.nodeName") in self._tainted and not new.terminating:
                self._pods[new.key] = None

    def work(self, now: float) -> float | None:
        """Set deadlines of marked pods, and delete pods past their deadline."""
        pods = self._core.store.define("pods")
        while self._nodes:
            name = next(iter(self._nodes))
            del self._nodes[name]
            self._read_node(name)
            self._pods.update(dict.fromkeys(pods.indexed("spec.nodeName", name)))
        while self._pods:
            key = next(iter(self._pods))
            del self._pods[key]
            if key in pods.items:
                self._set_alarm(pods.items[key], now)
        while self._alarms and self._alarms[0][0] <= now:
            when, key = heapq.heappop(self._alarms)
            uid, _, deadline = self._deadlines.get(key, ("", 0.0, -1.0))
            if deadline == when:
                del self._deadlines[key]
                self._evict(key, uid, now)
        return self._alarms[0][0] if self._alarms else None

    def _read_node(self, name: str) -> None:
        item = self._core.store.define("nodes").items.get(name)
        taints = items(section(item.object(), "spec"), "taints") if item is not None else []
        executing = [taint for taint in taints if taint.get("effect") == "NoExecute"]
        if executing:
            self._tainted[name] = executing
        else:
            self._tainted.pop(name, None)

    def _set_alarm(self, item: Item, now: float) -> None:
        taints = self._tainted.get(item.fields.get("spec.nodeName", ""), [])
        seconds = tolerated_s(taints, items(section(item.object(), "spec"), "tolerations")) if taints else None
        known = self._deadlines.get(item.key)
        if seconds is None or item.terminating:
            self._deadlines.pop(item.key, None)
            return
        since = known[1] if known is not None and known[0] == item.uid else now
        deadline = since + seconds
        if known is None or known[0] != item.uid or known[2] != deadline:
            self._deadlines[item.key] = (item.uid, since, deadline)
            heapq.heappush(self._alarms, (deadline, item.key))

    def _evict(self, key: str, uid: str, now: float) -> None:
        item = self._core.store.define("pods").items.get(key)
        pods = self._core.registry.of_storage("pods")
        if item is None or item.uid != uid or item.terminating or pods is None:
            return
        obj = item.object()
        message = "Taint manager: deleting due to NoExecute taint"
        status = obj.setdefault("status", {})
        if set_condition(status, "DisruptionTarget", "True", now, "DeletionByTaintManager", message):
            self._core.store.put("pods", key, obj)
        with contextlib.suppress(StatusError):
            self._core.deletes.delete(pods, key, item.name, DeleteOptions(uid=uid))


def tolerated_s(taints: list[Obj], tolerations: list[Obj]) -> float | None:
    """Return for how long the taints are tolerated: 0 for not at all, None for ever."""
    shortest: float | None = None
    for taint in taints:
        fitting = [toleration for toleration in tolerations if _tolerates(toleration, taint)]
        if not fitting:
            return 0.0
        for toleration in fitting[:1]:
            seconds = toleration.get("tolerationSeconds")
            if seconds is not None:
                shortest = min(max(0.0, float(seconds)), shortest if shortest is not None else float("inf"))
    return shortest


def _tolerates(toleration: Obj, taint: Obj) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")
