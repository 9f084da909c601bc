"""The rules of a kind: how it is defaulted, validated, changed and deleted. The base class serves plain kinds."""

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
    warnings: list[str] = dataclasses.field(default_factory=list)  # of the request being answered
    patching: bool = False  # whether that is a PATCH
    field_validation: str = "Warn"  # what the request being answered asks for


@dataclasses.dataclass(frozen=True)
class DeleteOptions:
    """A DELETE's options, read."""

    grace_s: int | None = None
    propagation: str = ""
    uid: str = ""
    version: str = ""
    dry_run: bool = False
    accepted: bool = False  # answer 202 where the object does not go at once (orphanDependents=false)


class Strategy:
    """A kind without peculiarities."""

    generation = False  # metadata.generation counts changes of the spec
    unconditional_update = True  # a PUT without resourceVersion is allowed
    create_on_update = False  # a PUT to a free name creates
    returns_deleted = False  # DELETE answers with the object rather than a Status
    label_names = False  # names are DNS labels (63 characters, no dots) rather than subdomains
    path_names = False  # names may be anything that is one path segment

    def default(self, context: Context, obj: Obj) -> None:
        """Fill in what is left out, on create and on update."""

    def prepare_create(self, context: Context, obj: Obj) -> None:
        """Set what the server owns on a new object; kinds with a status subresource drop a status sent along."""

    def admit_create(self, context: Context, obj: Obj, dry_run: bool) -> None:
        """Refuse or complete a new object, as admission plugins do.

        Raises:
            StatusError: it is refused.
        """

    def validate(self, context: Context, obj: Obj, old: Obj | None) -> list[FieldError]:
        """Return what is wrong with an object about to be written."""
        return []

    def prepare_update(self, context: Context, new: Obj, old: Obj) -> None:
        """Put back what an update may not touch."""

    def prepare_status(self, context: Context, new: Obj, old: Obj) -> Obj:
        """Return the object a write to the status subresource makes: the old one with the new status."""
        result: Obj = {**old, "metadata": dict(old["metadata"])}
        if "status" in new:
            result["status"] = new["status"]
        else:
            result.pop("status", None)
        result["metadata"]["resourceVersion"] = new["metadata"].get("resourceVersion", "")
        return result

    def validate_status(self, context: Context, obj: Obj, old: Obj) -> list[FieldError]:
        """Return what is wrong with a status about to be written."""
        return []

    def spec_changed(self, new: Obj, old: Obj) -> bool:
        """Returns whether the generation counts this change."""
        return bool(new.get("spec") != old.get("spec"))

    def grace_s(self, obj: Obj, asked: int | None) -> int | None:
        """Return how long a deletion waits, None where this kind knows no graceful deletion."""
        return None
