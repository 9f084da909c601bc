"""YAML that keeps the line of every value, so that errors in a text are reported by line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import yaml

T = TypeVar("T")


class Place(NamedTuple):
    """A position in a text, counted from 1; 0 if unknown."""

    line: int
    column: int


class NotYaml(ValueError):
    """The text is not valid YAML: `what` is the reason, `place` the position."""

    def __init__(self, what: str, place: Place) -> None:
        self.what, self.place = what, place
        super().__init__(f"line {place.line}: {what}" if place.line else what)


def documents(text: str) -> list[yaml.Node]:
    """Return the documents of a text. Raises NotYaml."""
    return _read(text, lambda: list(yaml.compose_all(text, yaml.SafeLoader)))


def document(text: str) -> yaml.Node | None:
    """Return the only document; None if there are only comments. Raises NotYaml, also if there is a second document."""
    return _read(text, lambda: yaml.compose(text, Loader=yaml.SafeLoader))


def plain(node: yaml.Node) -> Any:
    """Convert to lists, dicts and scalars. Raises NotYaml for text that YAML reads as an impossible date or number."""
    return _read("", lambda: _Constructor("").construct_document(node))


def place_of(node: yaml.Node) -> Place:
    """Return where a value or a key begins."""
    return _at(node.start_mark)


def twice(node: yaml.Node | None) -> Iterator[tuple[yaml.Node, int]]:
    """Yield each repeated key, and the line of its first use. YAML itself would use the last value."""
    waiting, seen = [node], set[int]()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:  # an alias repeats a node, perhaps inside itself
            continue
        seen.add(id(each))
        if isinstance(each, yaml.MappingNode):
            lines: dict[str, int] = {}
            for key, value in each.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in lines:
                        yield key, lines[key.value]
                    lines[key.value] = place_of(key).line
                waiting.append(value)
        elif isinstance(each, yaml.SequenceNode):
            waiting += each.value


class _Constructor(yaml.SafeLoader):
    """SafeLoader with errors that name the place. SafeLoader itself raises ValueError for `2026-99-99` or `!!int x`."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, AttributeError, OverflowError):
            kind = node.tag.rpartition(":")[2]
            problem = (
                f"{node.value} looks like a {kind}, but is not valid" if isinstance(node, yaml.ScalarNode) else kind
            )
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None
        return _characters(value, node) if isinstance(value, str) else value


def _characters(text: str, node: yaml.Node) -> str:
    """Join the two escapes by which JSON writes a character beyond U+FFFF (RFC 8259, section 7)."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise yaml.MarkedYAMLError(
            problem="an escape encodes half of a character", problem_mark=node.start_mark
        ) from None


def _at(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1) if mark is not None else Place(0, 0)


def _read(text: str, how: Callable[[], T]) -> T:
    try:
        return how()
    except yaml.MarkedYAMLError as error:
        problem = error.problem or error.context or "cannot be read"
        raise NotYaml(problem, _at(error.problem_mark or error.context_mark)) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = Place(before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise NotYaml(f"character U+{error.character:04X} is not allowed in YAML", place) from None
    except RecursionError:
        raise NotYaml("nested too deeply", Place(0, 0)) from None


def value_at(root: yaml.Node, *path: str) -> yaml.Node | None:
    """Return the value at a path of keys below `root`; None if there is none."""
    node: yaml.Node | None = root
    for name in path:
        items = node.value if isinstance(node, yaml.MappingNode) else ()
        node = next((value for key, value in items if getattr(key, "value", None) == name), None)
    return node
