"""Objects of custom kinds: pruned, defaulted and validated by the schema of their CustomResourceDefinition."""

from __future__ import annotations

from typing import NamedTuple

from muster.api.rules import BY_CEL, Rule
from muster.embedded.apiserver.status import FieldError, invalid
from muster.embedded.apiserver.types import schemas
from muster.embedded.apiserver.types.strategy import Context, Strategy
from muster.embedded.apiserver.verbs.incoming import report_unknown
from muster.embedded.objects import Obj, copy, items, section

_BLOCKING = (
    "FieldValueRequired",
    "FieldValueNotSupported",
    "FieldValueTypeInvalid",
    "FieldValueTooLong",
    "FieldValueTooMany",
)
_NOT_CHECKED = (
    "some validation rules were not checked because the object was invalid; correct the existing errors to complete "
    "validation"
)


class _Placed(NamedTuple):
    """A rule, and the path of its `self` in the object; "" for the object itself."""

    rule: Rule
    at: str

    def broken(self, obj: Obj, old: Obj | None) -> FieldError | None:
        """Return an error if the rule does not hold.

        A rule about a part that an update does not change is ignored: an object from before the rule stays usable
        (Kubernetes docs, Custom Resource Definitions, "Validation ratcheting").
        """
        if self.rule.transition and old is None:
            return None
        mine = section(obj, self.at) if self.at else obj
        before = (section(old, self.at) if self.at else old) if old is not None else {}
        if self.rule.holds(mine, before) or (old is not None and not self.rule.transition and mine == before):
            return None
        path = f"{self.at}{self.rule.field}".lstrip(".")
        return FieldError("FieldValueInvalid", path or "<nil>", f"Invalid value: {self.rule.message}")


def _rules_of(schema: Obj, at: str) -> list[_Placed]:
    """Return Muster's rules at this place of a schema; other CEL is not evaluated."""
    known = (BY_CEL.get(str(each.get("rule"))) for each in items(schema, "x-kubernetes-validations"))
    return [_Placed(rule, at) for rule in known if rule is not None]


class CustomStrategy(Strategy):
    """One version of a custom kind."""

    generation = True
    unconditional_update = False

    def __init__(self, kind: str, version: str, schema: Obj, *, has_status: bool) -> None:
        self.schema = schema
        self._rules = _rules_of(schema, "") + _rules_of(section(section(schema, "properties"), "spec"), "spec")
        self._kind, self._version, self._has_status = kind, version, has_status

    def default(self, context: Context, obj: Obj) -> None:
        """Prune unknown fields and set defaults.

        As the request asks, unknown fields are an error, a warning, or ignored.

        Raises:
            StatusError: 400 for unknown fields under strict validation.
        """
        dropped = schemas.prune(obj, self.schema)
        if dropped:
            report_unknown(context, obj, self._version, self._kind, dropped)
        schemas.default(obj, self.schema)

    def prepare_create(self, context: Context, obj: Obj) -> None:
        """A status has its own subresource."""
        if self._has_status:
            obj.pop("status", None)

    def prepare_status(self, context: Context, new: Obj, old: Obj) -> Obj:
        """Only the status changes; it is pruned and defaulted too."""
        result = super().prepare_status(context, new, copy(old))  # pruning and defaulting change it in place
        self.default(context, result)
        return result

    def validate(self, context: Context, obj: Obj, old: Obj | None) -> list[FieldError]:
        """Check against the schema, then the rules."""
        return self._check(obj, old)

    def validate_status(self, context: Context, obj: Obj, old: Obj) -> list[FieldError]:
        """Check the whole object: the status is part of it."""
        return self._check(obj, old)

    def _check(self, obj: Obj, old: Obj | None) -> list[FieldError]:
        """Check the rules only if the object matches the schema (Kubernetes: customresource/strategy.go)."""
        errors = schemas.validate(obj, self.schema)
        if not self._rules:
            return errors
        if any(error.reason in _BLOCKING for error in errors):
            return [*errors, invalid("<nil>", None, _NOT_CHECKED)]
        return errors + [error for each in self._rules if (error := each.broken(obj, old)) is not None]

    def spec_changed(self, new: Obj, old: Obj) -> bool:
        """Compare all fields except metadata, and except the status if it has a subresource."""
        apart = {"metadata", "status"} if self._has_status else {"metadata"}
        return any(new.get(key) != old.get(key) for key in {*new, *old} - apart)
