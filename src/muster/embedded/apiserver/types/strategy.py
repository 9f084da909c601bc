"""Strategies: how a kind is defaulted, validated, updated and deleted. The base class has the default behaviour."""

from __future__ import annotations

import dataclasses
import random

from muster.embedded.apiserver.status import FieldError
from muster.embedded.apiserver.types.quota import QuotaLedger
from muster.embedded.objects import Clock, Obj
from muster.embedded.store import Store


@dataclasses.dataclass
class Context:
    """The server's state that strategies may read."""

    store: Store
    clock: Clock
    random: random.Random
    quotas: QuotaLedger
    warnings: list[str] = dataclasses.field(default_factory=list)  # of the present request
    patching: bool = False  # whether that is a PATCH
    field_validation: str = "Warn"  # from the present request


@dataclasses.dataclass(frozen=True)
class DeleteOptions:
    """A DELETE's options, read."""

    grace_s: int | None = None
    propagation: str = ""
    uid: str = ""
    version: str = ""
    dry_run: bool = False
    accepted: bool = False  # answer 202 if the object is not removed at once (orphanDependents=false)


class Strategy:
    """The behaviour of an ordinary kind."""

    generation = False  # metadata.generation counts changes of the spec
    unconditional_update = True  # a PUT without resourceVersion is allowed
    create_on_update = False  # a PUT to a free name creates
    returns_deleted = False  # DELETE answers with the object rather than a Status
    label_names = False  # names are DNS labels (63 characters, no dots) rather than subdomains
    path_names = False  # names may be anything that is one path segment

    def default(self, context: Context, obj: Obj) -> None:
        """Set defaults, on create and on update."""

    def prepare_create(self, context: Context, obj: Obj) -> None:
        """Set fields that the server owns on a new object.

        Kinds with a status subresource drop a status in the request.
        """

    def admit_create(self, context: Context, obj: Obj, dry_run: bool) -> None:
        """Refuse or complete a new object, as admission plugins do.

        Raises:
            StatusError: it is refused.
        """

    def validate(self, context: Context, obj: Obj, old: Obj | None) -> list[FieldError]:
        """Return the errors of an object before it is written."""
        return []

    def prepare_update(self, context: Context, new: Obj, old: Obj) -> None:
        """Restore fields that an update must not change."""

    def prepare_status(self, context: Context, new: Obj, old: Obj) -> Obj:
        """Return the result of a write to the status subresource: the old object with the new status."""
        result: Obj = {**old, "metadata": dict(old["metadata"])}
        if "status" in new:
            result["status"] = new["status"]
        else:
            result.pop("status", None)
        result["metadata"]["resourceVersion"] = new["metadata"].get("resourceVersion", "")
        return result

    def validate_status(self, context: Context, obj: Obj, old: Obj) -> list[FieldError]:
        """Return the errors of a status before it is written."""
        return []

    def spec_changed(self, new: Obj, old: Obj) -> bool:
        """Returns whether the generation counts this change."""
        return bool(new.get("spec") != old.get("spec"))

    def grace_s(self, obj: Obj, asked: int | None) -> int | None:
        """Return the grace period of a deletion; None if the kind has no graceful deletion."""
        return None
