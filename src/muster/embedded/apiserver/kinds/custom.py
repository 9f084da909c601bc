"""Objects of custom kinds: pruned, defaulted and validated by the schema of their CustomResourceDefinition."""

from __future__ import annotations

from muster.embedded.apiserver import schemas
from muster.embedded.apiserver.status import FieldError, bad_request, invalid, invalid_object
from muster.embedded.apiserver.strategy import Context, Strategy
from muster.embedded.objects import Obj, copy, encode


class CustomStrategy(Strategy):
    """One version of a custom kind."""

    generation = True
    unconditional_update = False

    def __init__(self, kind: str, version: str, schema: Obj, *, has_status: bool) -> None:
        self.schema = schema
        self._kind, self._version, self._has_status = kind, version, has_status

    def default(self, context: Context, obj: Obj) -> None:
        """Prune and default; unknown fields are refused, warned of or ignored as the request asks.

        Raises:
            StatusError: 400 for unknown fields under strict validation.
        """
        dropped = schemas.prune(obj, self.schema)
        if dropped:
            texts = [f'unknown field "{path}"' for path in dropped]
            if context.field_validation == "Strict":
                problem = f"strict decoding error: {', '.join(texts)}"
                if context.patching:
                    raise invalid_object("", "", "", [invalid("patch", encode(obj).decode(), problem)])
                what = f'{self._kind} in version "{self._version}" cannot be handled as a {self._kind}: '
                raise bad_request(what + problem)
            if context.field_validation != "Ignore":
                context.warnings.extend(texts)
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
        """Check against the schema."""
        return schemas.validate(obj, self.schema)

    def validate_status(self, context: Context, obj: Obj, old: Obj) -> list[FieldError]:
        """Check the whole object: the status is part of it."""
        return schemas.validate(obj, self.schema)

    def spec_changed(self, new: Obj, old: Obj) -> bool:
        """Everything but metadata, and the status where it has its own subresource, counts."""
        apart = {"metadata", "status"} if self._has_status else {"metadata"}
        return any(new.get(key) != old.get(key) for key in {*new, *old} - apart)
