"""The subset of JSONPath that printer columns use.

`.spec.x`, `.items[0].y`, `.conditions[?(@.type=="Ready")].status`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

Step = Callable[[Any], Any]
_TOKEN = re.compile(
    r"""\.(?P<name>(?:[^.\[\]\\]|\\.)+)|\[(?P<index>-?\d+)\]|\[['"](?P<quoted>[^'"]+)['"]\]"""
    r"""|\[\?\(@\.(?P<key>[\w.]+)\s*==\s*['"](?P<value>[^'"]*)['"]\)\]"""
)


@functools.lru_cache(maxsize=512)
def compile_path(path: str) -> tuple[Step, ...] | None:
    """Compile a path; None if it is not in this subset."""
    steps: list[Step] = []
    position = 0
    while position < len(path):
        found = _TOKEN.match(path, position)
        if found is None:
            return None
        position = found.end()
        if found["index"] is not None:
            steps.append(_at(int(found["index"])))
        elif found["key"] is not None:
            steps.append(_where(found["key"], found["value"]))
        else:
            steps.append(_field(found["quoted"] or found["name"].replace("\\.", ".")))
    return tuple(steps)


def read(obj: Any, path: str) -> Any:
    """Return the value at a path of an object; None if there is no value."""
    steps = compile_path(path)
    if steps is None:
        return None
    for step in steps:
        obj = step(obj)
        if obj is None:
            return None
    return obj


def _field(name: str) -> Step:
    return lambda value: value.get(name) if isinstance(value, dict) else None


def _at(index: int) -> Step:
    return lambda value: value[index] if isinstance(value, list) and -len(value) <= index < len(value) else None


def _where(key: str, wanted: str) -> Step:
    def step(value: Any) -> Any:
        if not isinstance(value, list):
            return None
        return next((item for item in value if isinstance(item, dict) and str(item.get(key)) == wanted), None)

    return step
