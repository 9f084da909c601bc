"""Places in YAML text: where each mapping, list and value begins and ends, so that lines can be added between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import yaml
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

_DEPTH_MAX: Final = 200

Place = tuple[int, int]
"""Line and column, from 0."""


@dataclass
class Node:
    """A part of a document.

    Attributes:
        kind: `alias` is a reference to another part.
        start: of its first character.
        end: after its last character; comments after it do not belong to it.
        flow: whether it is written in brackets.
        value: text of a scalar.
        pairs: keys and values of a mapping.
        items: of a list.
    """

    kind: Literal["mapping", "list", "scalar", "alias"]
    start: Place
    end: Place
    flow: bool = False
    value: str = ""
    pairs: list[tuple[Node, Node]] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)

    def get(self, key: str) -> Node | None:
        """Return the value of a key of a mapping."""
        return next((value for name, value in self.pairs if name.value == key), None)

    def text(self, key: str) -> str:
        """Return the scalar value of a key; "" without one."""
        found = self.get(key)
        return found.value if found is not None else ""


def documents(text: str) -> Iterator[Node]:
    """Yield the root of each document. Raises yaml.YAMLError."""
    lines = text.splitlines()
    events = iter(yaml.parse(text, Loader=yaml.SafeLoader))
    for event in events:
        if isinstance(event, DocumentStartEvent):
            root = _node(next(events), events, lines, 0)
            yield root
        elif isinstance(event, DocumentEndEvent):
            continue


def _node(event: Event, events: Iterator[Event], lines: list[str], depth: int) -> Node:
    if depth > _DEPTH_MAX:
        raise yaml.YAMLError(f"it is nested deeper than {_DEPTH_MAX} levels")
    start, end = _place(event.start_mark), _place(event.end_mark)
    if isinstance(event, AliasEvent):
        return Node("alias", start, end)
    if isinstance(event, ScalarEvent):
        return Node("scalar", start, _block_end(end, lines) if event.style in ("|", ">") else end, value=event.value)
    if isinstance(event, MappingStartEvent):
        node = Node("mapping", start, end, flow=bool(event.flow_style))
        while not isinstance(each := next(events), MappingEndEvent):
            key = _node(each, events, lines, depth + 1)
            node.pairs.append((key, _node(next(events), events, lines, depth + 1)))
        node.end = _end(each, node.flow, [value for _, value in node.pairs], end)
        return node
    if isinstance(event, SequenceStartEvent):
        node = Node("list", start, end, flow=bool(event.flow_style))
        while not isinstance(each := next(events), SequenceEndEvent):
            node.items.append(_node(each, events, lines, depth + 1))
        node.end = _end(each, node.flow, node.items, end)
        return node
    raise yaml.YAMLError(f"unexpected {type(event).__name__}")


def _end(event: Event, flow: bool, children: list[Node], otherwise: Place) -> Place:
    """Return the end of a collection. The parser puts that of a block after its comments, so it is that of a child."""
    if flow:
        return _place(event.end_mark)
    return children[-1].end if children else otherwise


def _block_end(end: Place, lines: list[str]) -> Place:
    """Return the end of a block scalar; the parser puts it at the next token."""
    line = end[0] if end[1] else end[0] - 1
    line = min(line, len(lines) - 1)
    while line > 0 and not lines[line].strip():
        line -= 1
    return line, len(lines[line])


def _place(mark: Any) -> Place:
    return mark.line, mark.column
