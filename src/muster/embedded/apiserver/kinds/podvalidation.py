"""Validates pods with kube-apiserver's messages. Only the common rules are checked.

Source: kubernetes pkg/apis/core/validation/validation.go.
"""

from __future__ import annotations

from typing import Any

from muster.embedded.apiserver.status import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid,
    not_found_field,
    required,
    unsupported,
)
from muster.embedded.apiserver.types import names
from muster.embedded.objects import Obj, copy, items, section
from muster.kube.objects.quantity import QuantityError, parse_quantity

_UPDATABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` "
    "(only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
    "previously negative)"
)
_EFFECTS = ["NoExecute", "NoSchedule", "PreferNoSchedule"]


def validate_pod(obj: Obj) -> list[FieldError]:
    """Check a pod."""
    spec = section(obj, "spec")
    errors: list[FieldError] = []
    volumes: set[str] = set()
    for index, volume in enumerate(items(spec, "volumes")):
        errors += _name(f"spec.volumes[{index}].name", volume.get("name", ""), volumes)
        sources = [key for key in volume if key != "name"]
        if len(sources) > 1:
            errors.append(
                forbidden_field(f"spec.volumes[{index}].{sources[1]}", "may not specify more than 1 volume type")
            )
    if not items(spec, "containers"):
        errors.append(required("spec.containers"))
    seen: set[str] = set()
    for list_name in ("initContainers", "containers"):
        for index, container in enumerate(items(spec, list_name)):
            errors += _container(f"spec.{list_name}[{index}]", container, seen, volumes)
    errors += _one_of("spec.restartPolicy", spec.get("restartPolicy"), ["Always", "OnFailure", "Never"])
    policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]
    errors += _one_of("spec.dnsPolicy", spec.get("dnsPolicy"), policies)
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= 2**31 - 1:
        errors.append(invalid("spec.activeDeadlineSeconds", deadline, "must be between 1 and 2147483647, inclusive"))
    for name in ("nodeName", "serviceAccountName", "priorityClassName"):
        value = spec.get(name) or ""
        if value:
            errors += [invalid(f"spec.{name}", value, problem) for problem in names.subdomain_problems(value)]
    errors += names.validate_labels(spec.get("nodeSelector"), "spec.nodeSelector")
    for index, toleration in enumerate(items(spec, "tolerations")):
        errors += _toleration(f"spec.tolerations[{index}]", toleration)
    hostname = spec.get("hostname") or ""
    if hostname:
        errors += [invalid("spec.hostname", hostname, problem) for problem in names.label_problems(hostname)]
    return errors


def _name(field: str, value: str, seen: set[str]) -> list[FieldError]:
    if not value:
        return [required(field)]
    if value in seen:
        return [duplicate(field, value)]
    seen.add(value)
    return [invalid(field, value, problem) for problem in names.label_problems(value)]


def _one_of(field: str, value: Any, allowed: list[Any]) -> list[FieldError]:
    return [] if value in allowed else [unsupported(field, value, allowed)]


def _container(field: str, container: Obj, seen: set[str], volumes: set[str]) -> list[FieldError]:
    errors = _name(f"{field}.name", container.get("name", ""), seen)
    if not container.get("image"):
        errors.append(required(f"{field}.image"))
    elif container["image"].strip() != container["image"]:
        errors.append(invalid(f"{field}.image", container["image"], "must not have leading or trailing whitespace"))
    policy = container.get("imagePullPolicy")
    errors += _one_of(f"{field}.imagePullPolicy", policy, ["Always", "IfNotPresent", "Never"])
    for index, variable in enumerate(items(container, "env")):
        name = variable.get("name", "")
        if not name:
            errors.append(required(f"{field}.env[{index}].name"))
        else:
            problems = names.env_name_problems(name)
            errors += [invalid(f"{field}.env[{index}].name", name, problem) for problem in problems]
        if variable.get("value") and variable.get("valueFrom"):
            what = "may not be specified when `value` is not empty"
            errors.append(invalid(f"{field}.env[{index}].valueFrom", "", what))
    paths: set[str] = set()
    for index, mount in enumerate(items(container, "volumeMounts")):
        errors += _mount(f"{field}.volumeMounts[{index}]", mount, volumes, paths)
    for index, port in enumerate(items(container, "ports")):
        number = port.get("containerPort")
        if not number:
            errors.append(required(f"{field}.ports[{index}].containerPort"))
        elif not 1 <= number <= 65535:
            what = "must be between 1 and 65535, inclusive"
            errors.append(invalid(f"{field}.ports[{index}].containerPort", number, what))
    return errors + _resources(f"{field}.resources", section(container, "resources"))


def _mount(field: str, mount: Obj, volumes: set[str], paths: set[str]) -> list[FieldError]:
    errors = []
    name, path = mount.get("name", ""), mount.get("mountPath", "")
    if not name:
        errors.append(required(f"{field}.name"))
    elif name not in volumes:
        errors.append(not_found_field(f"{field}.name", name))
    if not path:
        errors.append(required(f"{field}.mountPath"))
    elif path in paths:
        errors.append(invalid(f"{field}.mountPath", path, "must be unique"))
    paths.add(path)
    return errors


def _resources(field: str, resources: Obj) -> list[FieldError]:
    errors = []
    requests, limits = section(resources, "requests"), section(resources, "limits")
    for part, quantities in (("limits", limits), ("requests", requests)):
        for name, value in quantities.items():
            where = f"{field}.{part}"
            if "/" not in name and name not in _STANDARD and not name.startswith(("hugepages-", "requests.")):
                what = "must be a standard resource for containers"
                errors.append(invalid(where, name, "must be a standard resource type or fully qualified"))
                errors.append(invalid(where, name, what))
            amount = _parsed(value)
            if amount is not None and amount < 0:
                errors.append(invalid(f"{where}[{name}]", value, "must be greater than or equal to 0"))
            if amount is not None and _extended(name) and amount != int(amount):
                errors.append(invalid(f"{where}[{name}]", value, "must be an integer"))
    for name, value in requests.items():
        request, limit = _parsed(value), _parsed(limits.get(name))
        where = f"{field}.requests"
        if limit is None:
            if _extended(name):
                errors.append(required(f"{field}.limits", "Limit must be set for non overcommitable resources"))
        elif request is not None and request != limit and _extended(name):
            errors.append(invalid(where, value, f"must be equal to {name} limit of {limits[name]}"))
        elif request is not None and request > limit:
            errors.append(invalid(where, value, f"must be less than or equal to {name} limit of {limits[name]}"))
    return errors


_STANDARD = ("cpu", "memory", "ephemeral-storage")


def _extended(name: str) -> bool:
    return "/" in name and not name.startswith("kubernetes.io/")


def _parsed(value: Any) -> Any:
    if value is None:
        return None
    try:
        return parse_quantity(value)
    except QuantityError:
        return None


def _toleration(field: str, toleration: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    key, operator = toleration.get("key") or "", toleration.get("operator") or ""
    effect = toleration.get("effect") or ""
    if key:
        errors += [invalid(f"{field}.key", key, problem) for problem in names.qualified_name_problems(key)]
    elif operator != "Exists":
        what = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        errors.append(invalid(f"{field}.operator", operator, what))
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        what = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        errors.append(invalid(f"{field}.effect", effect, what))
    if operator not in ("", "Equal", "Exists", "Lt", "Gt"):
        errors.append(unsupported(f"{field}.operator", operator, ["Equal", "Exists"]))
    if operator == "Exists" and toleration.get("value"):
        what = "value must be empty when `operator` is 'Exists'"
        errors.append(invalid(f"{field}.operator", dict(toleration), what))
    if effect and effect not in _EFFECTS:
        errors.append(unsupported(f"{field}.effect", effect, _EFFECTS))
    return errors


def validate_pod_update(new: Obj, old: Obj) -> list[FieldError]:
    """Check that an update does not change immutable fields."""
    spec, before = section(new, "spec"), section(old, "spec")
    if spec == before:
        return []
    errors: list[FieldError] = []
    munged: Obj = copy(spec)
    for name in ("containers", "initContainers"):
        now, then = items(munged, name), items(before, name)
        if len(now) != len(then):
            return [forbidden_field(f"spec.{name}", "pod updates may not add or remove containers")]
        for container, original in zip(now, then, strict=True):
            container["image"] = original.get("image")
    gone = [
        item
        for item in items(before, "tolerations")
        if _without_seconds(item) not in map(_without_seconds, items(spec, "tolerations"))
    ]
    if gone:
        errors.append(
            forbidden_field("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")
        )
    gates = [gate for gate in items(spec, "schedulingGates") if gate not in items(before, "schedulingGates")]
    if gates:
        errors.append(
            forbidden_field("spec.schedulingGates", "only deletion is allowed, but found new scheduling gate")
        )
    free = ["activeDeadlineSeconds", "tolerations", "schedulingGates"]
    if items(before, "schedulingGates"):
        free += ["nodeSelector", "affinity"]
    for name in free:
        munged.pop(name, None)
    rest = {key: value for key, value in before.items() if key not in free}
    if munged != rest:
        changed = sorted(key for key in {*munged, *rest} if munged.get(key) != rest.get(key))
        what = f"pod updates may not change fields other than {_UPDATABLE}\nchanged: {', '.join(changed)}"
        errors.append(forbidden_field("spec", what))
    return errors


def _without_seconds(toleration: Obj) -> Obj:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}
