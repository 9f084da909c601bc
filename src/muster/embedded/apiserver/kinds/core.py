"""Strategies of the smaller namespaced kinds, and of kinds without special rules."""

from __future__ import annotations

import base64
import binascii

from muster.embedded.apiserver.status import (
    FieldError,
    forbidden_field,
    invalid,
)
from muster.embedded.apiserver.types import names
from muster.embedded.apiserver.types.strategy import Context, Strategy
from muster.embedded.objects import Obj, items, section

CONFIG_BYTES = 1 << 20


class ReturningStrategy(Strategy):
    """Kinds whose DELETE answers with the object."""

    returns_deleted = True


class SpecStrategy(Strategy):
    """Kinds whose spec has a generation, and whose updates need a resourceVersion."""

    generation = True
    unconditional_update = False


class StoredStrategy(Strategy):
    """Leases: an update may create them, and needs a resourceVersion otherwise."""

    unconditional_update = False
    create_on_update = True


class RbacStrategy(Strategy):
    """RBAC objects: names are free, updates create. They are stored, not enforced."""

    path_names = True
    create_on_update = True


class ServiceStrategy(Strategy):
    """Services: stored without an address."""

    returns_deleted = True
    create_on_update = True

    def default(self, context: Context, obj: Obj) -> None:
        """Fill in the type, session affinity and port protocols."""
        spec = obj.setdefault("spec", {})
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        for port in items(spec, "ports"):
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port.get("port"))

    def prepare_create(self, context: Context, obj: Obj) -> None:
        """A new service has no load balancer yet."""
        obj["status"] = {"loadBalancer": {}}


class ConfigMapStrategy(Strategy):
    """ConfigMaps."""

    def default(self, context: Context, obj: Obj) -> None:
        """Leave out empty fields."""
        _drop_empty(obj)

    def validate(self, context: Context, obj: Obj, old: Obj | None) -> list[FieldError]:
        """Check keys, size and immutability."""
        errors = _immutable(obj, old, ("data", "binaryData"))
        size = 0
        for part in ("data", "binaryData"):
            for key, value in section(obj, part).items():
                errors += [invalid(f"{part}[{key}]", key, problem) for problem in names.config_key_problems(key)]
                size += len(str(value))
        return errors + _size(size, "")


class SecretStrategy(Strategy):
    """Secrets: `stringData` is merged into `data`."""

    def default(self, context: Context, obj: Obj) -> None:
        """Fill in the type and encode stringData."""
        obj.setdefault("type", "Opaque")
        plain = obj.pop("stringData", None)
        if plain:
            data = obj.setdefault("data", {})
            data.update((key, base64.b64encode(str(value).encode()).decode()) for key, value in plain.items())
        _drop_empty(obj)

    def validate(self, context: Context, obj: Obj, old: Obj | None) -> list[FieldError]:
        """Check keys, encoding, size and immutability."""
        errors = _immutable(obj, old, ("data",))
        size = 0
        for key, value in section(obj, "data").items():
            errors += [invalid(f"data[{key}]", key, problem) for problem in names.config_key_problems(key)]
            try:
                size += len(base64.b64decode(str(value or ""), validate=True))
            except binascii.Error:
                errors.append(invalid(f"data[{key}]", "<secret contents redacted>", "illegal base64 data"))
        if old is not None and obj.get("type") != old.get("type"):
            errors.append(invalid("type", obj.get("type"), "field is immutable"))
        return errors + _size(size, "data")


def _drop_empty(obj: Obj) -> None:
    for part in ("data", "binaryData"):
        if part in obj and not obj[part]:
            del obj[part]


def _immutable(obj: Obj, old: Obj | None, parts: tuple[str, ...]) -> list[FieldError]:
    if old is None or not old.get("immutable"):
        return []
    errors = []
    if not obj.get("immutable"):
        errors.append(forbidden_field("immutable", "field is immutable when `immutable` is set"))
    changed = [part for part in parts if section(obj, part) != section(old, part)]
    return errors + [forbidden_field(part, "field is immutable when `immutable` is set") for part in changed]


def _size(size: int, field: str) -> list[FieldError]:
    if size <= CONFIG_BYTES:
        return []
    return [FieldError("FieldValueTooLong", field, f"Too long: may not be more than {CONFIG_BYTES} bytes")]


class ServiceAccountStrategy(Strategy):
    """ServiceAccounts."""

    returns_deleted = True


class EventStrategy(Strategy):
    """Events, kept in their core/v1 form."""

    create_on_update = True

    def default(self, context: Context, obj: Obj) -> None:
        """Fill in fields that neither version has."""
        obj.setdefault("reportingComponent", "")
        obj.setdefault("reportingInstance", "")
        obj.setdefault("source", {})
        obj.setdefault("eventTime", None)
        obj.setdefault("firstTimestamp", None)
        obj.setdefault("lastTimestamp", None)
        obj.setdefault("type", "")

    def validate(self, context: Context, obj: Obj, old: Obj | None) -> list[FieldError]:
        """An event must be in the namespace of its object (for cluster-scoped objects: default)."""
        about = section(obj, "involvedObject").get("namespace") or ""
        own = obj["metadata"].get("namespace", "")
        if (about or "default") != own and not (about == "" and own == "kube-system"):
            return [invalid("involvedObject.namespace", about, "does not match event.namespace")]
        return []
