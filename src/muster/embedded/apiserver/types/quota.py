"""Counts what the pods of a namespace use, and refuses pods that exceed a ResourceQuota.

Source: kubernetes pkg/quota/v1/evaluator/core/pods.go and the ResourceQuota admission plugin.
"""

from __future__ import annotations

from fractions import Fraction

from muster.embedded.apiserver.status import forbidden
from muster.embedded.item import Item
from muster.embedded.objects import Obj, items, section
from muster.embedded.store import Store
from muster.kube.objects.quantity import QuantityError, format_quantity, parse_quantity

Amount = int | Fraction
Usage = dict[str, Amount]
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
STORAGE = "resourcequotas"


def pod_usage(pod: Obj) -> Usage:
    """Return the usage of one pod: itself, and its containers' requests and limits; nothing if it has finished."""
    if section(pod, "status").get("phase") in ("Succeeded", "Failed"):
        return {"count/pods": 1}
    spec = section(pod, "spec")
    used: Usage = {"pods": 1, "count/pods": 1}
    for part in ("requests", "limits"):
        total: Usage = {}
        for container in items(spec, "containers"):
            for name, value in _amounts(container, part).items():
                total[name] = total.get(name, 0) + value
        for container in items(spec, "initContainers"):
            for name, value in _amounts(container, part).items():
                total[name] = max(total.get(name, 0), value)
        for name, value in _quantities(section(spec, "overhead")).items():
            total[name] = total.get(name, 0) + value
        for name, value in total.items():
            used[f"{part}.{name}"] = value
            if part == "requests" and name in _COMPUTE:
                used[name] = value
    return used


def _amounts(container: Obj, part: str) -> Usage:
    return _quantities(section(section(container, "resources"), part))


def _quantities(found: Obj) -> Usage:
    amounts: Usage = {}
    for name, value in found.items():
        try:
            amounts[name] = parse_quantity(value)
        except QuantityError:
            continue
    return amounts


class QuotaLedger:
    """Usage of each namespace that has a quota, fed by the store's changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._namespaces: dict[str, Usage] = {}
        self.dirty: dict[str, None] = {}  # keys of quotas whose status may be outdated
        store.listeners.append(self._changed)

    def used(self, namespace: str) -> Usage:
        """Return what the pods of a namespace use now."""
        usage = self._namespaces.get(namespace)
        if usage is None:
            usage = self._namespaces[namespace] = {}
            pods = self._store.define("pods")
            for key in pods.range(namespace):
                _add(usage, pod_usage(pods.items[key].object()), 1)
        return usage

    def admit(self, pod: Obj) -> None:
        """Check that every quota of the namespace has room for a new pod.

        Raises:
            StatusError: 403, with the exceeded resource.
        """
        namespace = pod["metadata"]["namespace"]
        table = self._store.define(STORAGE)
        name = pod["metadata"].get("name", "")
        for key in table.range(namespace):
            quota = table.items[key].object()
            if not in_scope(quota, pod):
                continue
            hard = _quantities(section(section(quota, "spec"), "hard"))
            quota_name = quota["metadata"]["name"]
            wanted = pod_usage(pod)
            missing = sorted(resource for resource in hard if _must_be_named(resource) and _unnamed(pod, resource))
            if missing:
                containers = ",".join(item.get("name", "") for item in items(section(pod, "spec"), "containers"))
                text = "; ".join(f"{resource} for: {containers}" for resource in missing)
                raise forbidden("pods", "", name, f"failed quota: {quota_name}: must specify {text}")
            used = self.used(namespace) if not _scoped(quota) else self._scoped_usage(namespace, quota)
            over = sorted(
                resource
                for resource, limit in hard.items()
                if wanted.get(resource, 0) and used.get(resource, 0) + wanted[resource] > limit
            )
            if over:
                texts = [
                    ",".join(
                        f"{resource}={shown(source.get(resource, 0), hard_text(quota, resource))}" for resource in over
                    )
                    for source in (wanted, used)
                ]
                limited = ",".join(
                    f"{resource}={section(section(quota, 'spec'), 'hard')[resource]}" for resource in over
                )
                why = f"exceeded quota: {quota_name}, requested: {texts[0]}, used: {texts[1]}, limited: {limited}"
                raise forbidden("pods", "", name, why)

    def status_of(self, quota: Obj) -> Obj:
        """Compute the status of a quota."""
        hard = section(section(quota, "spec"), "hard")
        namespace = quota["metadata"]["namespace"]
        used = self._scoped_usage(namespace, quota) if _scoped(quota) else self.used(namespace)
        counted = {name: shown(self._amount(namespace, name, used), hard[name]) for name in hard}
        return {"hard": dict(hard), "used": counted}

    def _amount(self, namespace: str, name: str, used: Usage) -> Amount:
        plain = name.removeprefix("count/")
        if name not in used and plain in self._store.tables and plain != "pods":
            return self._store.tables[plain].count(namespace)
        return used.get(name, 0)

    def _scoped_usage(self, namespace: str, quota: Obj) -> Usage:
        usage: Usage = {}
        pods = self._store.define("pods")
        for key in pods.range(namespace):
            pod = pods.items[key].object()
            if in_scope(quota, pod):
                _add(usage, pod_usage(pod), 1)
        return usage

    def _changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        item = new or old
        if item is None:
            return
        if resource == STORAGE:
            if new is not None:
                self.dirty[new.key] = None
            return
        if resource == "pods":
            self._pod_changed(item.namespace, old, new)
        if old is None or new is None or resource == "pods":
            table = self._store.tables.get(STORAGE)
            if table is not None and item.namespace:
                self.dirty.update(dict.fromkeys(table.range(item.namespace)))

    def _pod_changed(self, namespace: str, old: Item | None, new: Item | None) -> None:
        usage = self._namespaces.get(namespace)
        if usage is None:
            return
        if old is not None and new is not None and _same_usage(old, new):
            return
        if old is not None:
            _add(usage, pod_usage(old.object()), -1)
        if new is not None:
            _add(usage, pod_usage(new.object()), 1)


def _same_usage(old: Item, new: Item) -> bool:
    finished = ("Succeeded", "Failed")
    return (old.fields.get("status.phase") in finished) == (new.fields.get("status.phase") in finished)


def _add(usage: Usage, more: Usage, sign: int) -> None:
    for name, value in more.items():
        usage[name] = usage.get(name, 0) + sign * value


def shown(value: Amount, like: object) -> str:
    """Write an amount in the family (binary or decimal) of the quota's own figure."""
    return format_quantity(value, binary=str(like).endswith("i"))


def hard_text(quota: Obj, resource: str) -> str:
    """Return the quota's own figure."""
    return str(section(section(quota, "spec"), "hard").get(resource, ""))


def _must_be_named(resource: str) -> bool:
    plain = resource.partition(".")[2] if resource.startswith(("requests.", "limits.")) else resource
    return plain in _COMPUTE


def _unnamed(pod: Obj, resource: str) -> bool:
    part, _, plain = resource.rpartition(".")
    part = part or "requests"
    return any(plain not in _amounts(container, part) for container in items(section(pod, "spec"), "containers"))


def _scoped(quota: Obj) -> bool:
    spec = section(quota, "spec")
    return bool(spec.get("scopes") or spec.get("scopeSelector"))


def in_scope(quota: Obj, pod: Obj) -> bool:
    """Returns whether a quota counts a pod."""
    spec, pod_spec = section(quota, "spec"), section(pod, "spec")
    rules = [{"scopeName": scope, "operator": "Exists"} for scope in items(spec, "scopes")]
    rules += items(section(spec, "scopeSelector"), "matchExpressions")
    for rule in rules:
        scope, operator, values = rule.get("scopeName"), rule.get("operator"), items(rule, "values")
        best_effort = section(pod, "status").get("qosClass") == "BestEffort"
        terminating = pod_spec.get("activeDeadlineSeconds") is not None
        priority = pod_spec.get("priorityClassName") or ""
        holds = {
            "BestEffort": best_effort,
            "NotBestEffort": not best_effort,
            "Terminating": terminating,
            "NotTerminating": not terminating,
            "PriorityClass": _operator(str(operator), priority, values),
        }
        if not holds.get(str(scope), True):
            return False
    return True


def _operator(operator: str, value: str, values: list[str]) -> bool:
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    return bool(value) is (operator == "Exists")
