"""Parses the addresses on which a process listens."""

from __future__ import annotations

import click


def address(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """Read HOST:PORT; None stays None. Raises BadParameter."""
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{value!r} is not HOST:PORT, as in 127.0.0.1:8443")
    return host.strip("[]"), int(port)
