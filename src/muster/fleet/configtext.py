"""YAML of a ConfigMap read into strict structs; whatever is wrong is said with its line and what to change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import msgspec
import yaml

T = TypeVar("T")

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


class ConfigTextError(ValueError):
    """The text cannot be used: a line for each thing that is wrong, with what to change."""


class ConfigText(Generic[T]):
    """A text that has the fields of its kind.

    Args:
        text: YAML.
        kind: a struct that forbids unknown fields.
        page: where its fields are described, for what is said of errors.

    Raises:
        ConfigTextError: it is no YAML, names a key twice, or does not have the fields of `kind`.
    """

    def __init__(self, text: str, kind: type[T], page: str) -> None:
        try:
            self._root = yaml.compose(text, Loader=yaml.SafeLoader)
            data = yaml.safe_load(text)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f"line {mark.line + 1}: " if mark is not None else ""
            raise ConfigTextError(f"{where}not YAML: {error.problem or error.context}; mend it") from None
        except (yaml.YAMLError, RecursionError) as error:
            raise ConfigTextError(f"not YAML: {error}; mend it") from None
        twice = sorted(_twice(self._root))
        if twice:
            raise ConfigTextError("\n".join(f"line {line}: {key} is there twice; keep one" for line, key in twice))
        try:
            self.value: T = msgspec.convert({} if data is None else data, kind)
        except msgspec.ValidationError as error:
            what, _, path = str(error).partition(" - at `")
            raise ConfigTextError(f"{self.where(path.rstrip('`'))}{what}; see {page} for this field") from None

    def check(self, problems: Iterable[tuple[str, str]]) -> None:
        """Raise ConfigTextError where there are any: (path as in `$.pools[0].name`, what is wrong and what to do)."""
        found = [f"{self.where(path)}{what}" for path, what in problems]
        if found:
            raise ConfigTextError("\n".join(found))

    def where(self, path: str) -> str:
        """Return `line N: PATH: ` of the value, or of the innermost part of the path that is there."""
        node: Any = self._root
        line = node.start_mark.line + 1 if node is not None else 1
        for field, index in _STEP.findall(path):
            if isinstance(node, yaml.MappingNode):
                found = [(key, value) for key, value in node.value if key.value == field]
                if not found:
                    break
                line, node = found[0][0].start_mark.line + 1, found[0][1]
            elif isinstance(node, yaml.SequenceNode) and index.isdigit() and int(index) < len(node.value):
                node = node.value[int(index)]
                line = node.start_mark.line + 1
            else:
                break
        name = path.removeprefix("$").removeprefix(".")
        return f"line {line}: {name}: " if name else f"line {line}: "


def _twice(node: Any) -> Iterator[tuple[int, str]]:
    if isinstance(node, yaml.MappingNode):
        seen: set[Any] = set()
        for key, value in node.value:
            if key.value in seen:
                yield key.start_mark.line + 1, str(key.value)
            if isinstance(key.value, str):
                seen.add(key.value)
            yield from _twice(value)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _twice(each)
