"""Strategy of pods: defaults, admission, validation of updates, and deletion."""

from __future__ import annotations

from muster.embedded.apiserver.kinds.cluster import SYSTEM_CLASSES
from muster.embedded.apiserver.kinds.poddefaults import (
    default_spec,
    default_tolerations,
    mount_token,
    quality_of_service,
)
from muster.embedded.apiserver.kinds.podvalidation import validate_pod, validate_pod_update
from muster.embedded.apiserver.status import FieldError, forbidden, forbidden_field
from muster.embedded.apiserver.types.strategy import Context, Strategy
from muster.embedded.objects import Obj, copy, items, section, timestamp


class PodStrategy(Strategy):
    """Pods."""

    generation = True
    returns_deleted = True

    def default(self, context: Context, obj: Obj) -> None:
        """Fill in the spec."""
        spec = obj.get("spec")
        if not isinstance(spec, dict):
            spec = obj["spec"] = {}
        default_spec(spec)

    def prepare_create(self, context: Context, obj: Obj) -> None:
        """A new pod is pending."""
        spec = obj["spec"]
        obj["status"] = {"phase": "Pending", "qosClass": quality_of_service(spec)}
        if items(spec, "schedulingGates"):
            obj["status"]["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                    "lastProbeTime": None,
                    "lastTransitionTime": timestamp(context.clock.now()),
                }
            ]

    def admit_create(self, context: Context, obj: Obj, dry_run: bool) -> None:
        """Service account, priority, tolerations, quota.

        Raises:
            StatusError: 403 if one of them refuses the pod.
        """
        spec = obj["spec"]
        self._priority(context, obj, spec)
        self._service_account(context, obj, spec)
        default_tolerations(spec)
        context.quotas.admit(obj)

    def _priority(self, context: Context, obj: Obj, spec: Obj) -> None:
        table = context.store.define("priorityclasses.scheduling.k8s.io")
        name = spec.get("priorityClassName") or ""
        found: Obj | None = None
        if name:
            item = table.items.get(name)
            if item is None and name not in SYSTEM_CLASSES:
                raise forbidden(
                    "pods", "", obj["metadata"].get("name", ""), f"no PriorityClass with name {name} was found"
                )
            found = item.object() if item is not None else {"value": SYSTEM_CLASSES[name]}
        else:
            for item in table.items.values():
                candidate = item.object()
                if candidate.get("globalDefault"):
                    found = candidate
                    spec["priorityClassName"] = item.name
        value = found.get("value", 0) if found else 0
        policy = (found or {}).get("preemptionPolicy") or "PreemptLowerPriority"
        if spec.get("priority") is not None and spec["priority"] != value:
            why = (
                f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; priority "
                f"admission controller computed {value} from the given PriorityClass name"
            )
            raise forbidden("pods", "", obj["metadata"].get("name", ""), why)
        spec["priority"] = value
        spec.setdefault("preemptionPolicy", policy)

    def _service_account(self, context: Context, obj: Obj, spec: Obj) -> None:
        name = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        namespace = obj["metadata"]["namespace"]
        item = context.store.define("serviceaccounts").items.get(f"{namespace}/{name}")
        if item is None:
            why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
            raise forbidden("pods", "", obj["metadata"].get("name", ""), why)
        account = item.object()
        if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
            spec["imagePullSecrets"] = account["imagePullSecrets"]
        mount_token(spec, account, context.random)

    def validate(self, context: Context, obj: Obj, old: Obj | None) -> list[FieldError]:
        """Validate the spec. In an update, also check that immutable fields are unchanged."""
        errors = validate_pod(obj)
        return errors + (validate_pod_update(obj, old) if old is not None and not errors else [])

    def prepare_status(self, context: Context, new: Obj, old: Obj) -> Obj:
        """The status subresource also changes labels, annotations and finalizers, as in kube-apiserver."""
        result = super().prepare_status(context, new, old)
        for name in ("labels", "annotations", "finalizers"):
            if name in new["metadata"]:
                result["metadata"][name] = copy(new["metadata"][name])
            else:
                result["metadata"].pop(name, None)
        before = section(old, "status")
        status = result.setdefault("status", {})
        if not status.get("qosClass") and before.get("qosClass"):
            status["qosClass"] = before["qosClass"]
        return result

    def validate_status(self, context: Context, obj: Obj, old: Obj) -> list[FieldError]:
        """Refuse a change of the pod's node."""
        before, after = section(old, "spec").get("nodeName"), section(obj, "spec").get("nodeName")
        return [forbidden_field("spec.nodeName", "may not be changed directly")] if before != after else []

    def grace_s(self, obj: Obj, asked: int | None) -> int:
        """Return the grace period; 0 for pods that do not run."""
        spec, status = section(obj, "spec"), section(obj, "status")
        if not spec.get("nodeName") or status.get("phase") in ("Failed", "Succeeded"):
            return 0
        period = asked if asked is not None else spec.get("terminationGracePeriodSeconds", 30)
        return 1 if period < 0 else int(period)


def set_condition(status: Obj, type_: str, value: str, now: float, reason: str = "", message: str = "") -> bool:
    """Set a condition of a pod or node; the transition time moves with its status. Returns whether anything changed."""
    conditions = status.setdefault("conditions", [])
    wanted: Obj = {"type": type_, "status": value}
    if reason:
        wanted["reason"] = reason
    if message:
        wanted["message"] = message
    for index, condition in enumerate(conditions):
        if condition.get("type") == type_:
            same = condition.get("status") == value
            wanted = {"lastProbeTime": condition.get("lastProbeTime"), **wanted}
            wanted["lastTransitionTime"] = condition.get("lastTransitionTime") if same else timestamp(now)
            changed = any(condition.get(key, "") != wanted.get(key, "") for key in ("status", "reason", "message"))
            conditions[index] = wanted if changed else condition
            return changed
    conditions.append({"lastProbeTime": None, **wanted, "lastTransitionTime": timestamp(now)})
    return True
