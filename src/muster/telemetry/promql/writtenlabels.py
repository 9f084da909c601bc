"""How long labels get that an expression itself writes.

`label_join` and `label_replace` copy labels into others. Nested in themselves, each can double a label, so a short
expression makes every series of its result megabytes long.
"""

from __future__ import annotations

from typing import Any, Final

import promql_parser

from muster.telemetry.promql.nodes import string_of

_VALUE_BYTES: Final = 64
"""Of a label that the server has stored."""
_MOST: Final = 1 << 40

_Sizes = dict[str, int]


def written_bytes(root: Any) -> int:
    """Return how many bytes of labels the expression writes into one series at most, in any part of it.

    Args:
        root: of the tree of promql-parser.
    """
    greatest = 0

    def visit(node: Any) -> _Sizes:
        """Return the bytes of each label that the part below writes."""
        nonlocal greatest
        sizes: _Sizes = {}
        for inner in _inner(node):
            for label, size in visit(inner).items():
                sizes[label] = max(size, sizes.get(label, 0))
        written = _written(node, sizes)
        if written is not None:
            label, size = written
            sizes[label] = min(size + len(label.encode()), _MOST)
            greatest = max(greatest, min(sum(sizes.values()), _MOST))
        return sizes

    visit(root)
    return greatest


def _inner(node: Any) -> tuple[Any, ...]:
    match node:
        case promql_parser.Call():
            return tuple(node.args)
        case promql_parser.AggregateExpr():
            return (node.expr,)
        case promql_parser.BinaryExpr():
            return (node.lhs, node.rhs)
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            return (node.expr,)
    return ()


def _written(node: Any, sizes: _Sizes) -> tuple[str, int] | None:
    """Return the label that this node writes, and the greatest size of its value."""
    match node:
        case promql_parser.Call() if node.func.name == "label_join":
            label, separator, *sources = (string_of(each) for each in node.args[1:])
            joined = sum(sizes.get(each, _VALUE_BYTES) for each in sources)
            return label, joined + len(separator.encode()) * len(sources)
        case promql_parser.Call() if node.func.name == "label_replace":
            label, replacement, source, _ = (string_of(each) for each in node.args[1:])
            copies = replacement.count("$")
            return label, len(replacement.encode()) + copies * sizes.get(source, _VALUE_BYTES)
        case promql_parser.AggregateExpr() if str(node.op).lower() == "count_values":
            return string_of(node.param), _VALUE_BYTES
    return None
