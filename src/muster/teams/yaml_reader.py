"""Reads the YAML of the teams ConfigMap value by value, and collects problems with line numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import yaml

from muster.api.marked import NotYaml, document, place_of

_STRING = "tag:yaml.org,2002:str"
_NULL = "tag:yaml.org,2002:null"
_WORDS = {
    "tag:yaml.org,2002:bool": "true or false",
    "tag:yaml.org,2002:int": "a number",
    "tag:yaml.org,2002:float": "a number",
    "tag:yaml.org,2002:timestamp": "a date",
    _NULL: "nothing",
}


class Problem(msgspec.Struct, frozen=True):
    """One problem: the line (from 1; 0 for the whole text), what is wrong, and what to change."""

    line: int
    what: str
    change: str

    def __str__(self) -> str:
        return f"{f'line {self.line}: ' if self.line else ''}{self.what}; {self.change}"


class TeamsConfigError(ValueError):
    """The text is invalid; `problems` are in the order of their lines."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        super().__init__("\n".join(map(str, self.problems)))


class Entry:
    """One YAML value of the text."""

    __slots__ = ("node",)

    def __init__(self, node: yaml.Node) -> None:
        self.node = node

    @property
    def line(self) -> int:
        """Line where it begins, from 1."""
        return place_of(self.node).line


class Reader:
    """Reads a YAML text and collects its problems; raises TeamsConfigError at once for invalid YAML."""

    def __init__(self, text: str) -> None:
        self.problems: list[Problem] = []
        try:
            self._root = document(text)
        except NotYaml as error:
            raise TeamsConfigError([Problem(error.place.line, f"no YAML: {error.what}", "mend it")]) from None

    @property
    def empty(self) -> bool:
        """Whether the text has only comments and null."""
        return self._root is None or self._root.tag == _NULL

    def root(self) -> Entry:
        """The root value; only for a text that is not empty."""
        assert self._root is not None
        return Entry(self._root)

    def wrong(self, at: Entry, what: str, change: str) -> None:
        """Record a problem."""
        self.problems.append(Problem(at.line, what, change))

    def check(self) -> None:
        """Raise TeamsConfigError if there are problems."""
        if self.problems:
            raise TeamsConfigError(self.problems)

    def mapping(self, entry: Entry, name: str, fields: Sequence[str] = ()) -> Mapping[str, Entry]:
        """Return the values by key, only of `fields` if given; empty for another type of value."""
        node = entry.node
        if not isinstance(node, yaml.MappingNode):
            example = f"its fields are {', '.join(fields)}" if fields else "write it as {key: value}"
            self.wrong(entry, f"{name} is not a mapping", example)
            return {}
        found: dict[str, Entry] = {}
        for key, value in node.value:
            at = Entry(key)
            if not isinstance(key, yaml.ScalarNode):
                self.wrong(at, f"a key of {name} is not text", "write keys as plain words")
            elif key.value in found:
                self.wrong(at, f"{key.value} is there twice in {name}", "keep one of them")
            elif fields and key.value not in fields:
                self.wrong(at, f"{name} has no field {key.value!r}", f"its fields are {', '.join(fields)}")
            else:
                found[key.value] = Entry(value)
        return found

    def sequence(self, entry: Entry, name: str) -> Sequence[Entry]:
        """Return the values of a list; null counts as empty."""
        node = entry.node
        if node.tag == _NULL:
            return ()
        if not isinstance(node, yaml.SequenceNode):
            self.wrong(entry, f"{name} is not a list", "write each entry after a dash")
            return ()
        return [Entry(each) for each in node.value]

    def plain(self, entry: Entry, name: str) -> str | None:
        """Return a scalar as written; None for another type of value."""
        node = entry.node
        if not isinstance(node, yaml.ScalarNode) or node.tag == _NULL:
            self.wrong(entry, f"{name} has no value", "write one after the colon, on the same line")
            return None
        return str(node.value)

    def text(self, entry: Entry, name: str) -> str | None:
        """Return a string; None if YAML reads another type, as with `yes` or 1."""
        value = self.plain(entry, name)
        if value is not None and entry.node.tag != _STRING:
            other = _WORDS.get(entry.node.tag, "no text")
            self.wrong(entry, f"{name} is {other} to YAML: {value}", f'quote it: "{value}"')
            return None
        return value
