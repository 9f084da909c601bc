"""Strategic merge patch: lists of objects merge by a key that depends on where they are.

Source: the `patchStrategy` and `patchMergeKey` tags of k8s.io/api, and k8s.io/apimachinery
`pkg/util/strategicpatch`. Only the built-in kinds served here are covered; a list not named below is replaced whole.
"""

from __future__ import annotations

from typing import Any

from muster.embedded.objects import Obj, copy

# Field name -> merge key; ports depend on where they are.
_MERGE_KEYS: dict[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "conditions": "type",
    "ownerReferences": "uid",
    "addresses": "type",
    "podIPs": "ip",
    "hostIPs": "ip",
    "secrets": "name",
    "schedulingGates": "name",
}
_PORT_KEYS = {"containers": "containerPort", "initContainers": "containerPort", "spec": "port"}
_SETS = frozenset({"finalizers", "podCIDRs"})  # lists of plain values that merge


def merge_key(name: str, parent: str) -> str:
    """Return the merge key of a list; empty if the list is replaced."""
    if name == "ports":
        return _PORT_KEYS.get(parent, "")
    return _MERGE_KEYS.get(name, "")


def strategic_merge(document: Any, patch: Any, parent: str = "") -> Any:
    """Apply a strategic merge patch to a copy of the document."""
    if not isinstance(patch, dict):
        return copy(patch)
    directive = patch.get("$patch")
    if directive not in (None, "merge", "replace", "delete"):
        raise ValueError(f"unknown patch type: {directive}")
    if directive == "replace":
        return {key: copy(value) for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    result: Obj = dict(document) if isinstance(document, dict) else {}
    retain = patch.get("$retainKeys")
    if retain is not None:
        if not isinstance(retain, list):
            raise TypeError("invalid patch format of retainKeys")
        result = {key: value for key, value in result.items() if key in retain}
    orders: dict[str, list[Any]] = {}
    for key, value in patch.items():
        if key in ("$patch", "$retainKeys"):
            continue
        if key.startswith("$setElementOrder/"):
            if not isinstance(value, list):
                raise TypeError(f"{key} has to be a list")
            orders[key.partition("/")[2]] = value
        elif key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            if isinstance(result.get(name) or [], list):
                result[name] = [item for item in result.get(name) or [] if item not in value]
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list):
            result[key] = _merge_list(result.get(key), value, key, parent)
        elif isinstance(value, dict):
            result[key] = strategic_merge(result.get(key), value, key)
        else:
            result[key] = value
    for name, order in orders.items():
        if isinstance(result.get(name), list):
            result[name] = _ordered(result[name], order, merge_key(name, parent))
    return result


def _merge_list(current: Any, patch: list[Any], name: str, parent: str) -> list[Any]:
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [copy(item) for item in patch if not (isinstance(item, dict) and "$patch" in item)]
    if name in _SETS:
        existing = list(current or [])
        return existing + [item for item in patch if item not in existing]
    key = merge_key(name, parent)
    if not key or not all(isinstance(item, dict) for item in patch):
        return [copy(item) for item in patch]
    merged = [copy(item) for item in current or []]
    added = []
    for item in patch:
        identity = item.get(key)
        if identity is None:
            raise ValueError(f"map: {item} does not contain declared merge key: {key}")
        position = next((i for i, old in enumerate(merged) if old.get(key) == identity), None)
        if item.get("$patch") == "delete":
            merged = [old for old in merged if old.get(key) != identity]
        elif position is not None:
            merged[position] = strategic_merge(merged[position], item, name)
        else:
            added.append(strategic_merge({}, item, name))
    return merged + added


def _ordered(values: list[Any], order: list[Any], key: str) -> list[Any]:
    def identity(item: Any) -> Any:
        return item.get(key) if isinstance(item, dict) else item

    wanted = [identity(item) for item in order]
    listed = sorted(
        (item for item in values if identity(item) in wanted), key=lambda item: wanted.index(identity(item))
    )
    others = [item for item in values if identity(item) not in wanted]
    return listed + others if not others or not listed else _interleave(values, listed, wanted, identity)


def _interleave(values: list[Any], listed: list[Any], wanted: list[Any], identity: Any) -> list[Any]:
    # Items that `$setElementOrder` does not name keep their positions; the named items fill the other positions in the
    # given order.
    queue = iter(listed)
    return [next(queue) if identity(item) in wanted else item for item in values]
