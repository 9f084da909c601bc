"""YAML of a ConfigMap read into strict structs; whatever is wrong is said with its line and what to change."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec
import yaml

from muster.api.marked import NotYaml, document, place_of, plain, twice

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
            self._root = document(text)
            data = plain(self._root) if self._root is not None else None
        except NotYaml as error:
            where = f"line {error.place.line}: " if error.place.line else ""
            raise ConfigTextError(f"{where}not YAML: {error.what}; mend it") from None
        again = sorted((place_of(key).line, key.value) for key, _ in twice(self._root))
        if again:
            raise ConfigTextError("\n".join(f"line {line}: {key} is there twice; keep one" for line, key in again))
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
        line = place_of(node).line if node is not None else 1
        for field, index in _STEP.findall(path):
            if isinstance(node, yaml.MappingNode):
                found = [(key, value) for key, value in node.value if key.value == field]
                if not found:
                    break
                line, node = place_of(found[0][0]).line, found[0][1]
            elif isinstance(node, yaml.SequenceNode) and index.isdigit() and int(index) < len(node.value):
                node = node.value[int(index)]
                line = place_of(node).line
            else:
                break
        name = path.removeprefix("$").removeprefix(".")
        return f"line {line}: {name}: " if name else f"line {line}: "
