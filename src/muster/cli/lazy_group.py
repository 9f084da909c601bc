"""A group that imports a subcommand only when the subcommand is called or listed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """A click group.

    Attributes:
        modules: the module of each subcommand, in the order of the help. Each holds one click command named `command`.
    """

    modules: Mapping[str, str]

    def __init__(self, *args: Any, modules: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the subcommands."""
        return list(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand; None if there is none of this name.

        Raises:
            TypeError: the module's `command` is not a click command.
        """
        module = self.modules.get(cmd_name)
        if module is None:
            return None
        command = importlib.import_module(module).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}.command is not a click command")
        return command
