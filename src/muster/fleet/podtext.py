"""Resource quantities and tolerations in ConfigMaps, for pods that Muster creates on nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from muster.api.configschema import schema
from muster.api.names import TAINT_JOINING, TAINT_PREFLIGHT, TAINT_QUARANTINE
from muster.kube.objects.affinity import Toleration
from muster.kube.objects.quantity import QuantityError, milli

_STATES = (TAINT_JOINING, TAINT_PREFLIGHT, TAINT_QUARANTINE, "node.kubernetes.io/")
"""Taints that describe the state of a node. A pod that tolerates them could start on a node that must stay empty."""


OPERATORS: Final = ("Equal", "Exists")
EFFECTS: Final = ("", "NoSchedule", "NoExecute", "PreferNoSchedule")


class TolerationText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A toleration in a configuration text."""

    key: Annotated[str, schema(minLength=1)] = ""
    operator: Annotated[str, schema(enum=OPERATORS)] = "Equal"
    value: str = ""
    effect: Annotated[str, schema(enum=EFFECTS)] = ""

    def toleration(self) -> Toleration:
        """Return the toleration as pods have it."""
        return Toleration(key=self.key, operator=self.operator, value=self.value, effect=self.effect)


def wrong_quantity(value: str | float) -> Iterator[str]:
    """Yield what is wrong with a quantity of a resource."""
    try:
        if milli(value) <= 0:
            yield f"{value} is not possible; write more than 0"
    except QuantityError as error:
        yield str(error)


def wrong_toleration(toleration: TolerationText) -> Iterator[str]:
    """Yield what is wrong with a toleration. Only permanent taints may be tolerated."""
    if not toleration.key:
        yield "has no key and so tolerates every taint, those of joining and broken nodes too; name the key"
    elif toleration.key.startswith(_STATES):
        yield f"{toleration.key} marks nodes that must stay empty for now; remove the toleration"
    if toleration.operator not in OPERATORS:
        yield f"operator {toleration.operator!r} is not valid; use Equal or Exists"
    elif toleration.operator == "Exists" and toleration.value:
        yield "operator Exists does not allow a value; remove the value, or use operator Equal"
    if toleration.effect not in EFFECTS:
        yield (
            f"effect {toleration.effect!r} is not valid; use NoSchedule, NoExecute or PreferNoSchedule, or leave the "
            "effect out"
        )
