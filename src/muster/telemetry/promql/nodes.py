"""Reads nodes of promql-parser's tree."""

from __future__ import annotations

from typing import Any

import promql_parser


def bare(node: Any) -> Any:
    """Return the node within parentheses."""
    while isinstance(node, promql_parser.ParenExpr):
        node = node.expr
    return node


def string_of(node: Any) -> str:
    """Return the value of a string, "" for other nodes."""
    found = bare(node)
    return str(found.val) if isinstance(found, promql_parser.StringLiteral) else ""
