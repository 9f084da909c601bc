"""`muster completion`: shell completion scripts."""

from __future__ import annotations

import click

from muster.cli.errors import ExitCode


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print shell completion for SHELL: of commands, options and names of jobs.

    \b
    bash:  eval "$(muster completion bash)"     in ~/.bashrc
    zsh:   eval "$(muster completion zsh)"      in ~/.zshrc
    fish:  muster completion fish | source      in ~/.config/fish/config.fish
    """  # noqa: D301
    from click.shell_completion import get_completion_class

    from muster.cli.main import cli

    completion_class = get_completion_class(shell)
    assert completion_class is not None  # the argument allows only shells that click supports
    click.echo(completion_class(cli, {}, "muster", "_MUSTER_COMPLETE").source())
    return ExitCode.DONE
