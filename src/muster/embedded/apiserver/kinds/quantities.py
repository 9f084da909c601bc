"""Quantities as the server stores them."""

from __future__ import annotations

from typing import Any

from muster.embedded.objects import Obj
from muster.kube.objects.quantity import QuantityError, canonical_quantity


def canonical(quantities: Obj) -> None:
    """Write quantities as the server does: `1000m` is `1`."""
    for name, value in quantities.items():
        quantities[name] = canonical_or_same(value)


def canonical_or_same(value: Any) -> Any:
    """Return the canonical form of a quantity; another value is returned unchanged."""
    try:
        return canonical_quantity(value if isinstance(value, str) else str(value))
    except QuantityError:
        return value
