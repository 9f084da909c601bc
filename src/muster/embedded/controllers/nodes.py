"""Node lifecycle: marks nodes without Lease renewals as unknown, and sets taints by conditions.

Source: kubernetes pkg/controller/nodelifecycle. Zones and eviction rates are left out: every node is judged alone.
"""

from __future__ import annotations

import dataclasses

from muster.embedded.apiserver.core import ApiCore
from muster.embedded.apiserver.kinds.pods import set_condition
from muster.embedded.item import Item
from muster.embedded.objects import Obj, items, section, timestamp

MONITOR_PERIOD_S = 5.0
LEASES = "leases.coordination.k8s.io"
LEASE_NAMESPACE = "kube-node-lease"
NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_CONDITION_TAINTS = {
    "MemoryPressure": "node.kubernetes.io/memory-pressure",
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
    "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
}
_OWNED = {NOT_READY, UNREACHABLE, UNSCHEDULABLE, *_CONDITION_TAINTS.values()}
_HEARTBEAT_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


@dataclasses.dataclass
class _Seen:
    lease: int  # version of the Lease
    heartbeat: str
    at: float  # when the Lease or the status last changed, by our clock


class NodeLifecycle:
    """Watches heartbeats and sets taints."""

    def __init__(self, core: ApiCore, grace_s: float) -> None:
        self._store = core.store
        self._grace_s = grace_s
        self._seen: dict[str, _Seen] = {}
        self._dirty: dict[str, None] = {}
        self._next_check = 0.0

    def changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        """Mark nodes whose taints may have to change."""
        if resource != "nodes":
            return
        if new is None:
            if old is not None:
                self._seen.pop(old.name, None)
        else:
            self._dirty[new.name] = None

    def work(self, now: float) -> float | None:
        """Check every node's heartbeat at intervals, and changed nodes at once."""
        nodes = self._store.define("nodes").items
        if now >= self._next_check:
            self._next_check = now + MONITOR_PERIOD_S
            for item in list(nodes.values()):
                self._check(item, now)
        while self._dirty:
            name = next(iter(self._dirty))
            del self._dirty[name]
            if name in nodes:
                self._taint(nodes[name], now)
        return self._next_check if nodes else None

    def _check(self, item: Item, now: float) -> None:
        lease = self._store.define(LEASES).items.get(f"{LEASE_NAMESPACE}/{item.name}")
        version, heartbeat = lease.version if lease is not None else 0, item.fields.get("heartbeat", "")
        seen = self._seen.get(item.name)
        if seen is None or seen.lease != version or seen.heartbeat != heartbeat:
            self._seen[item.name] = _Seen(version, heartbeat, now)
            return
        if now - seen.at > self._grace_s and item.fields.get("ready") != "Unknown":
            self._unknown(item, now)

    def _unknown(self, item: Item, now: float) -> None:
        obj = item.object()
        conditions = obj.setdefault("status", {}).setdefault("conditions", [])
        for type_ in _HEARTBEAT_CONDITIONS:
            found = next((condition for condition in conditions if condition.get("type") == type_), None)
            if found is None:
                found = {"type": type_, "lastHeartbeatTime": obj["metadata"].get("creationTimestamp")}
                conditions.append(found)
                why = ("NodeStatusNeverUpdated", "Kubelet never posted node status.")
            elif found.get("status") == "Unknown":
                continue
            else:
                why = ("NodeStatusUnknown", "Kubelet stopped posting node status.")
            found.update(status="Unknown", reason=why[0], message=why[1], lastTransitionTime=timestamp(now))
        stored = self._store.put("nodes", item.key, obj)
        self._seen[item.name].heartbeat = stored.fields.get("heartbeat", "")

    def _taint(self, item: Item, now: float) -> None:
        obj = item.object()
        spec = obj.setdefault("spec", {})
        current = items(spec, "taints")
        wanted = _wanted(obj)
        if not section(obj, "status").get("conditions"):
            # It never reported: keep the taint from admission.
            wanted |= {(taint["key"], taint["effect"]) for taint in current if taint.get("key") == NOT_READY}
        kept = [taint for taint in current if taint.get("key") not in _OWNED or _identity(taint) in wanted]
        have = {_identity(taint) for taint in kept}
        added: list[Obj] = []
        for key, effect in sorted(wanted - have):
            taint: Obj = {"key": key, "effect": effect}
            if effect == "NoExecute" or key in (NOT_READY, UNREACHABLE):
                taint["timeAdded"] = timestamp(now)
            added.append(taint)
        if added or len(kept) != len(current):
            spec["taints"] = kept + added
            if not spec["taints"]:
                del spec["taints"]
            self._store.put("nodes", item.key, obj)
        if item.fields.get("ready") in ("False", "Unknown"):
            self._mark_pods(item.name, now)

    def _mark_pods(self, node: str, now: float) -> None:
        pods = self._store.define("pods")
        for key in pods.indexed("spec.nodeName", node):
            obj = pods.items[key].object()
            status = obj.setdefault("status", {})
            conditions = items(status, "conditions")
            ready = any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)
            if ready:
                set_condition(status, "Ready", "False", now, "NodeNotReady", "Node is not ready")
                self._store.put("pods", key, obj)


def _identity(taint: Obj) -> tuple[str, str]:
    return taint.get("key", ""), taint.get("effect", "")


def _wanted(obj: Obj) -> set[tuple[str, str]]:
    conditions = {item.get("type"): item.get("status") for item in items(section(obj, "status"), "conditions")}
    wanted: set[tuple[str, str]] = set()
    key = {"False": NOT_READY, "Unknown": UNREACHABLE}.get(str(conditions.get("Ready")))
    if key:
        wanted |= {(key, "NoSchedule"), (key, "NoExecute")}
    for type_, taint in _CONDITION_TAINTS.items():
        if conditions.get(type_) == "True":
            wanted.add((taint, "NoSchedule"))
    if section(obj, "spec").get("unschedulable"):
        wanted.add((UNSCHEDULABLE, "NoSchedule"))
    return wanted
