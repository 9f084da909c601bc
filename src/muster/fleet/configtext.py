"""YAML of a ConfigMap read into strict structs; whatever is wrong is said with its line and what to change."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec
import yaml

from muster.api.marked import NotYaml, Place, document, place_of, plain, twice
from muster.api.misfits import misfits

T = TypeVar("T")

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


class ConfigTextError(ValueError):
    """The text cannot be used: a line for each thing that is wrong, with what to change."""


def place_text(place: Place, file: str = "") -> str:
    """Say where: `FILE:LINE:COLUMN: ` where it is from a file, else `line N: `; nothing where nobody knows."""
    if not place.line:
        return f"{file}: " if file else ""
    return f"{file}:{place.line}:{place.column}: " if file else f"line {place.line}: "


class ConfigText(Generic[T]):
    """A text that has the fields of its kind.

    Args:
        text: YAML, or what was composed of it.
        kind: a struct that forbids unknown fields.
        page: where its fields are described, for what is said of errors.
        file: where the text is from; "" for a ConfigMap, whose lines are counted from its key.

    Raises:
        ConfigTextError: it is no YAML, names a key twice, or does not have the fields of `kind`.
    """

    def __init__(self, text: str | yaml.Node, kind: type[T], page: str, file: str = "") -> None:
        self._file = file
        try:
            self._root = text if isinstance(text, yaml.Node) else document(text)
            data = plain(self._root) if self._root is not None else None
            again = sorted((place_of(key), key.value) for key, _ in twice(self._root))
        except NotYaml as error:
            raise ConfigTextError(f"{place_text(error.place, file)}not YAML: {error.what}; mend it") from None
        if again:
            said = (f"{place_text(place, file)}{key} is there twice; keep one" for place, key in again)
            raise ConfigTextError("\n".join(said))
        try:
            self.value: T = msgspec.convert({} if data is None else data, kind)
        except msgspec.ValidationError as error:
            raise ConfigTextError("\n".join(self._misfits(kind, page) or [self._missing(error, page)])) from None

    def _misfits(self, kind: type[T], page: str) -> list[str]:
        return [
            f"{_named(place_text(place_of(node), self._file), path)}{what}; {hint or f'see {page} for this field'}"
            for node, path, what, hint in (misfits(self._root, kind) if self._root is not None else ())
        ]

    def _missing(self, error: msgspec.ValidationError, page: str) -> str:
        what, _, path = str(error).partition(" - at `")
        return f"{self.where(path.rstrip('`'))}{what}; see {page} for this field"

    def check(self, problems: Iterable[tuple[str, str]]) -> None:
        """Raise ConfigTextError where there are any: (path as in `$.pools[0].name`, what is wrong and what to do)."""
        found = [f"{self.where(path)}{what}" for path, what in problems]
        if found:
            raise ConfigTextError("\n".join(found))

    def where(self, path: str) -> str:
        """Return `line N: PATH: ` of the value, or of the innermost part of the path that is there."""
        node: Any = self._root
        place = place_of(node) if node is not None else Place(1, 1)
        for field, index in _STEP.findall(path):
            if isinstance(node, yaml.MappingNode):
                found = [(key, value) for key, value in node.value if key.value == field]
                if not found:
                    break
                place, node = place_of(found[0][0]), found[0][1]
            elif isinstance(node, yaml.SequenceNode) and index.isdigit() and int(index) < len(node.value):
                node = node.value[int(index)]
                place = place_of(node)
            else:
                break
        return _named(place_text(place, self._file), path.removeprefix("$").removeprefix("."))


def _named(where: str, path: str) -> str:
    return f"{where}{path}: " if path else where
