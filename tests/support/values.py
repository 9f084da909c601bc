"""Compares objects by everything that can be read from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from muster.scheduler.forecast.run_times import RunTimes

COMPUTED = {RunTimes: {"_members", "_groups", "_chains"}}
"""Attributes that an immutable object computes when they are first needed. They do not belong to its value."""
VALUES = (type(None), bool, int, float, str, bytes)


def value_of(item: Any, above: tuple[int, ...] = ()) -> Any:
    """Everything that can be read from an item, in a form that compares by value."""
    if isinstance(item, VALUES):
        return item
    if id(item) in above:
        return "itself"
    above = (*above, id(item))
    if isinstance(item, Mapping):
        entries = tuple((value_of(key, above), value_of(each, above)) for key, each in item.items())
        more = tuple((name, value_of(each, above)) for name, each in getattr(item, "__dict__", {}).items())
        return "mapping", entries, more
    if isinstance(item, set | frozenset):
        return "set", frozenset(value_of(each, above) for each in item)
    if isinstance(item, list | tuple):
        return tuple(value_of(each, above) for each in item)
    if isinstance(item, msgspec.Struct):
        fields = [(name, getattr(item, name)) for name in item.__struct_fields__]
    else:
        slots = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
        fields = [(name, getattr(item, name)) for name in slots if hasattr(item, name)]
        fields += getattr(item, "__dict__", {}).items()
        if not fields:
            return type(item).__name__, repr(item)
    computed = COMPUTED.get(type(item), ())
    return type(item).__name__, tuple((name, value_of(each, above)) for name, each in fields if name not in computed)
