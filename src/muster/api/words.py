"""Words for people that messages of several parts share."""

from __future__ import annotations


def counted(count: int, what: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {what}{'s' if count != 1 else ''}"
