"""Adds steps to a list in YAML text. Comments and order stay, since only text is added."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from muster.telemetry.usage.proposal.droprules import DropRule
from muster.telemetry.usage.proposal.yamlplaces import Node


@dataclass(frozen=True)
class Style:
    """Names of the fields in one kind of file.

    Attributes:
        key: of the list of steps.
        source_labels: of the labels of a step.
    """

    key: str
    source_labels: str

    def step(self, rule: DropRule) -> dict[str, object]:
        """Return a rule as data."""
        return {self.source_labels: list(rule.source_labels), "regex": rule.regex, "action": "drop"}


@dataclass(frozen=True)
class Insertion:
    """Text to add.

    Attributes:
        line: after this line, from 0, if `column` is -1; otherwise within it.
        column: before this character; -1 for whole lines.
        text: whole lines without their ends, or a part of a line.
    """

    line: int
    column: int
    text: tuple[str, ...]


def insertion(owner: Node, style: Style, rules: Sequence[tuple[DropRule, str]], dash_indent: int) -> Insertion | None:
    """Return what to add to a mapping so that its list of steps ends with these rules.

    Args:
        owner: the mapping that has the list, or gets it.
        style: names of the fields.
        rules: each with a comment.
        dash_indent: columns between a key and the dashes of its list, 0 or 2.

    Returns:
        None if the list is written in a way to which nothing can be added, such as a reference.
    """
    existing = owner.get(style.key)
    steps = ", ".join(json.dumps(style.step(rule), ensure_ascii=not rule.regex.isprintable()) for rule, _ in rules)
    if existing is None:
        if owner.flow:
            if not owner.pairs:
                return None
            line, column = owner.pairs[-1][1].end
            return Insertion(line, column, (f", {json.dumps(style.key)}: [{steps}]",))
        indent = owner.start[1]
        lines = (f"{' ' * indent}{style.key}:", *_lines(style, rules, indent + dash_indent))
        return Insertion(owner.end[0], -1, lines)
    if existing.kind != "list":
        return None
    if existing.flow:
        if existing.items:
            line, column = existing.items[-1].end
            return Insertion(line, column, (f", {steps}",))
        return Insertion(existing.start[0], existing.start[1] + 1, (steps,))
    return Insertion(existing.end[0], -1, tuple(_lines(style, rules, existing.start[1])))


def _lines(style: Style, rules: Sequence[tuple[DropRule, str]], indent: int) -> list[str]:
    space = " " * indent
    found = []
    for rule, comment in rules:
        found += [
            f"{space}# {comment}",
            f"{space}- {style.source_labels}: [{', '.join(rule.source_labels)}]",
            f"{space}  regex: {scalar(rule.regex)}",
            f"{space}  action: drop",
        ]
    return found


def scalar(text: str) -> str:
    """Return a text as a YAML scalar in quotes."""
    return "'" + text.replace("'", "''") + "'" if text.isprintable() else json.dumps(text)


def with_insertions(text: str, insertions: Sequence[Insertion]) -> str:
    """Return a text with additions; each is placed by the lines of the text as it was."""
    lines = text.splitlines(keepends=True)
    for each in sorted(insertions, key=lambda each: (each.line, each.column), reverse=True):
        line = lines[each.line]
        if each.column >= 0:
            lines[each.line] = line[: each.column] + "".join(each.text) + line[each.column :]
            continue
        ending = "\r\n" if line.endswith("\r\n") else "\n"
        if not line.endswith("\n"):
            lines[each.line] = line + ending
        lines[each.line + 1 : each.line + 1] = [part + ending for part in each.text]
    return "".join(lines)
