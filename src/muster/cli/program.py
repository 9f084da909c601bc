"""The program's name, for the commands that messages suggest."""

from __future__ import annotations

import click


def prefix() -> str:
    """`muster`, or `kubectl muster` when called as kubectl's plugin."""
    context = click.get_current_context(silent=True)
    return (context.find_root().info_name if context else None) or "muster"
