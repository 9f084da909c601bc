"""Compares objects by everything that can be read from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from muster.scheduler.forecast.run_times import RunTimes

COMPUTED = {RunTimes: {"_members", "_groups", "_chains"}}
"""Attributes that an immutable object computes when they are first needed. They do not belong to its value."""
VALUES = (type(None), bool, int, float, str, bytes)


def value_of(item: Any) -> Any:
    """Everything that can be read from an item, in a form that compares by value."""
    return _Reading().value_of(item)


class _Reading:
    """Reads each object once: a snapshot holds the same pods and nodes in many places."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}  # each object beside its value, so that no other gets its id
        self._above: set[int] = set()

    def value_of(self, item: Any) -> Any:
        if isinstance(item, VALUES):
            return item
        key = id(item)
        if key in self._known:
            return self._known[key][1]
        if key in self._above:
            return "itself"
        self._above.add(key)
        value = self._read(item)
        self._above.remove(key)
        self._known[key] = item, value
        return value

    def _read(self, item: Any) -> Any:
        value_of = self.value_of
        if isinstance(item, Mapping):
            entries = tuple([(value_of(key), value_of(each)) for key, each in item.items()])
            more = tuple([(name, value_of(each)) for name, each in getattr(item, "__dict__", {}).items()])
            return "mapping", entries, more
        if isinstance(item, set | frozenset):
            return "set", frozenset([value_of(each) for each in item])
        if isinstance(item, list | tuple):
            return tuple([value_of(each) for each in item])
        if isinstance(item, msgspec.Struct):
            fields = [(name, getattr(item, name)) for name in item.__struct_fields__]
        else:
            slots = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
            fields = [(name, getattr(item, name)) for name in slots if hasattr(item, name)]
            fields += getattr(item, "__dict__", {}).items()
            if not fields:
                return type(item).__name__, repr(item)
        computed = COMPUTED.get(type(item), ())
        return type(item).__name__, tuple([(name, value_of(each)) for name, each in fields if name not in computed])
