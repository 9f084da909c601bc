"""Strategies of namespaces, nodes, priority classes and quotas."""

from __future__ import annotations

from typing import Any

from muster.embedded.apiserver.kinds.quantities import canonical
from muster.embedded.apiserver.status import (
    FieldError,
    forbidden,
    forbidden_field,
    invalid,
    required,
)
from muster.embedded.apiserver.types import names
from muster.embedded.apiserver.types.strategy import Context, Strategy
from muster.embedded.objects import Obj, items, micro_timestamp, section

SYSTEM_CLASSES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
HIGHEST_USER_PRIORITY = 1_000_000_000
NOT_READY_TAINT = "node.kubernetes.io/not-ready"


class NamespaceStrategy(Strategy):
    """Namespaces: active until they are deleted, and removed after a controller has emptied them."""

    label_names = True
    returns_deleted = True

    def prepare_create(self, context: Context, obj: Obj) -> None:
        """A new namespace is active, and labelled with its name."""
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}

    def default(self, context: Context, obj: Obj) -> None:
        """Every namespace carries its own name as a label."""
        meta = obj["metadata"]
        if meta.get("name"):
            meta.setdefault("labels", {})["kubernetes.io/metadata.name"] = meta["name"]

    def prepare_update(self, context: Context, new: Obj, old: Obj) -> None:
        """Keep the spec, because its finalizers have a separate subresource."""
        new["spec"] = old.get("spec", {})


class NodeStrategy(Strategy):
    """Nodes: a new one is tainted not-ready, as admission does (TaintNodesByCondition)."""

    def default(self, context: Context, obj: Obj) -> None:
        """A node always has a spec and a status."""
        obj.setdefault("spec", {})
        obj.setdefault("status", {})

    def prepare_create(self, context: Context, obj: Obj) -> None:
        """Add the taint, and set the allocatable resources."""
        taints = obj["spec"].setdefault("taints", [])
        if not any(taint.get("key") == NOT_READY_TAINT and taint.get("effect") == "NoSchedule" for taint in taints):
            taints.append({"key": NOT_READY_TAINT, "effect": "NoSchedule"})
        self._allocatable(obj)

    def prepare_status(self, context: Context, new: Obj, old: Obj) -> Obj:
        """A node's status also carries labels and annotations of the kubelet."""
        result = super().prepare_status(context, new, old)
        for name in ("labels", "annotations"):
            if name in new["metadata"]:
                result["metadata"][name] = new["metadata"][name]
        self._allocatable(result)
        return result

    def _allocatable(self, obj: Obj) -> None:
        status = section(obj, "status")
        for name in ("capacity", "allocatable"):
            canonical(section(status, name))
        if status.get("capacity") and not status.get("allocatable"):
            status["allocatable"] = dict(status["capacity"])

    def validate(self, context: Context, obj: Obj, old: Obj | None) -> list[FieldError]:
        """Check taints."""
        errors: list[FieldError] = []
        seen: set[tuple[Any, Any]] = set()
        for index, taint in enumerate(items(section(obj, "spec"), "taints")):
            field = f"metadata.taints[{index}]"  # the typing error is in kube-apiserver's message too
            key, effect = taint.get("key", ""), taint.get("effect", "")
            errors += [invalid(f"{field}.key", key, problem) for problem in names.qualified_name_problems(key)]
            value = taint.get("value", "") or ""
            errors += [invalid(f"{field}.value", value, problem) for problem in names.label_value_problems(value)]
            if not effect:
                errors.append(required(f"{field}.effect"))
            elif effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
                allowed = '"NoSchedule", "PreferNoSchedule", "NoExecute"'
                message = f'Unsupported value: "{effect}": supported values: {allowed}'
                errors.append(FieldError("FieldValueNotSupported", f"{field}.effect", message))
            if effect == "NoExecute" and not taint.get("timeAdded"):
                taint["timeAdded"] = micro_timestamp(context.clock.now())[:19] + "Z"
            if (key, effect) in seen:
                message = f'Duplicate value: {{"key":"{key}","effect":"{effect}"}}'
                errors.append(FieldError("FieldValueDuplicate", field, message))
            seen.add((key, effect))
        if old is not None and section(old, "spec").get("providerID"):
            before, after = section(old, "spec")["providerID"], section(obj, "spec").get("providerID")
            if before != after:
                errors.append(
                    forbidden_field("spec.providerID", 'node updates may not change providerID except from "" to valid')
                )
        return errors


class PriorityClassStrategy(Strategy):
    """PriorityClasses: value and preemption policy never change."""

    generation = True

    def default(self, context: Context, obj: Obj) -> None:
        """Preempts unless it says otherwise."""
        obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
        obj.setdefault("value", 0)

    def spec_changed(self, new: Obj, old: Obj) -> bool:
        """Return False: priority classes have no generation."""
        return False

    def admit_create(self, context: Context, obj: Obj, dry_run: bool) -> None:
        """Only one class may be the default.

        Raises:
            StatusError: there is another.
        """
        if not obj.get("globalDefault"):
            return
        table = context.store.define("priorityclasses.scheduling.k8s.io")
        for item in table.items.values():
            if item.object().get("globalDefault"):
                why = f"PriorityClass {item.name} is already marked as default. Only one default can exist"
                name = obj["metadata"].get("name", "")
                raise forbidden("priorityclasses", "scheduling.k8s.io", name, why)

    def validate(self, context: Context, obj: Obj, old: Obj | None) -> list[FieldError]:
        """Check the value's bounds, the reserved prefix and immutability."""
        errors: list[FieldError] = []
        name = obj["metadata"].get("name", "")
        if name.startswith("system-"):
            if name not in SYSTEM_CLASSES or SYSTEM_CLASSES[name] != obj["value"]:
                detail = (
                    "priority class names with 'system-' prefix are reserved for system use only. "
                    f"error: {name} is not a known system priority class"
                )
                errors.append(forbidden_field("metadata.name", detail))
        elif obj["value"] > HIGHEST_USER_PRIORITY:
            detail = f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
            errors.append(forbidden_field("value", detail))
        if obj["preemptionPolicy"] not in ("PreemptLowerPriority", "Never"):
            allowed = '"Never", "PreemptLowerPriority"'
            message = f'Unsupported value: "{obj["preemptionPolicy"]}": supported values: {allowed}'
            errors.append(FieldError("FieldValueNotSupported", "preemptionPolicy", message))
        if old is not None:
            for field, what in (
                ("value", "may not be changed in an update."),
                ("preemptionPolicy", "field is immutable"),
            ):
                if obj[field] != old.get(field):
                    make = forbidden_field(field, what) if field == "value" else invalid(field, obj[field], what)
                    errors.append(make)
        return errors


class QuotaStrategy(Strategy):
    """ResourceQuotas."""

    returns_deleted = True

    def prepare_create(self, context: Context, obj: Obj) -> None:
        """A controller fills the status in."""
        obj["status"] = {}

    def default(self, context: Context, obj: Obj) -> None:
        """Write quantities canonically."""
        canonical(section(obj.setdefault("spec", {}), "hard"))
