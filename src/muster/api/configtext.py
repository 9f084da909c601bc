"""Parses YAML from a ConfigMap into strict structs; each error names its line and what to change."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec
import yaml

from muster.api.marked import NotYaml, Place, document, place_of, plain, twice
from muster.api.misfits import misfits
from muster.kube.errors import BadConfig

T = TypeVar("T")

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


class ConfigTextError(BadConfig):
    """The text is invalid. The message has one line for each problem, with what to change."""


def place_text(place: Place, file: str = "") -> str:
    """Format a position: `FILE:LINE:COLUMN: ` in a file, otherwise `line N: `; "" if the position is unknown."""
    if not place.line:
        return f"{file}: " if file else ""
    return f"{file}:{place.line}:{place.column}: " if file else f"line {place.line}: "


class ConfigText(Generic[T]):
    """A parsed configuration text whose fields match a struct.

    Args:
        text: YAML, or a YAML node that was composed already.
        kind: a struct that forbids unknown fields.
        page: the page that describes the fields; error messages refer to it.
        file: the file of the text. "" for a ConfigMap: its lines are counted from its key.

    Raises:
        ConfigTextError: the text is not YAML, names a key twice, or does not have the fields of `kind`.
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
        """Raise ConfigTextError if there are problems: pairs of a path (`$.pools[0].name`) and what to change."""
        found = [f"{self.where(path)}{what}" for path, what in problems]
        if found:
            raise ConfigTextError("\n".join(found))

    def where(self, path: str) -> str:
        """Return `line N: PATH: ` of the value; if the text lacks it, of its innermost existing part."""
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
