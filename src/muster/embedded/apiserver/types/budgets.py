"""Pod disruption budgets: how many pods may be evicted.

Unlike in kube-controller-manager, the expected pods are all pods that the selector finds, whatever owns them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from muster.embedded.apiserver.verbs.selection import label_selector_of
from muster.embedded.item import Item
from muster.embedded.objects import Obj, items, parse_time, section
from muster.embedded.store import Store

STORAGE = "poddisruptionbudgets.policy"
EVICTION_FORGOTTEN_S = 120.0  # an eviction without a deletion is forgotten after this time, as in Kubernetes


@dataclasses.dataclass(frozen=True)
class Count:
    """The counts of a budget."""

    expected: int
    healthy: int
    desired: int
    allowed: int


def budgets_for(store: Store, pod: Obj) -> list[Obj]:
    """Return the budgets that cover a pod."""
    meta = section(pod, "metadata")
    table = store.define(STORAGE)
    found = []
    for key in table.range(meta.get("namespace", "")):
        budget = table.items[key].object()
        if label_selector_of(section(budget, "spec").get("selector")).matches(meta.get("labels") or {}):
            found.append(budget)
    return found


def count(store: Store, budget: Obj, now: float) -> Count:
    """Count a budget's pods."""
    spec, status = section(budget, "spec"), section(budget, "status")
    disrupted = section(status, "disruptedPods")
    pods = store.define("pods")
    expected = healthy = 0
    selector = label_selector_of(spec.get("selector"))
    for key in pods.range(budget["metadata"]["namespace"]):
        item = pods.items[key]
        if item.fields.get("status.phase") in ("Succeeded", "Failed"):
            continue
        if not selector.matches(item.labels):
            continue
        expected += 1
        evicted = parse_time(disrupted.get(item.name))
        going = item.terminating or (evicted is not None and now < evicted + EVICTION_FORGOTTEN_S)
        healthy += not going and _ready(item)
    if spec.get("maxUnavailable") is not None:
        desired = max(0, expected - _amount(spec["maxUnavailable"], expected))
    else:
        desired = _amount(spec.get("minAvailable", 0), expected)
    return Count(expected, healthy, desired, max(0, healthy - desired) if expected else 0)


def _ready(item: Item) -> bool:
    conditions = items(section(item.object(), "status"), "conditions")
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)


def _amount(value: Any, total: int) -> int:
    if isinstance(value, str) and value.endswith("%"):
        return math.ceil(int(value[:-1]) * total / 100)
    return int(value)
