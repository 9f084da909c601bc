"""`muster down`: removes a cluster on this machine with all its processes, files and contexts."""

from __future__ import annotations

import click

from muster.cli.errors import CliError, ExitCode
from muster.cli.local.up import layout_of, translated, waiting
from muster.cli.names import not_empty
from muster.cli.output import note


@click.command()
@click.option("--name", default="", callback=not_empty, help="Name of the cluster, if there are several.")
def command(name: str) -> int:
    """Stop the cluster on this machine and remove all of it: processes, jobs, files, the kubeconfig context."""
    from muster.cli.local.kubeconfig import remove_from_all
    from muster.embedded import cluster
    from muster.embedded.layout import DEFAULT_NAME

    layout = layout_of(name)
    spec = layout.read_spec()
    if spec is None:
        if layout.root.exists():
            raise CliError(
                f"{layout.root} is not a cluster's folder: it has no {layout.spec_file.name}",
                "nothing was removed",
                ExitCode.CONFLICT,
            )
        note(f"no cluster '{name or DEFAULT_NAME}' on this machine: nothing to remove")
        return ExitCode.DONE
    with waiting(f"removing the cluster '{spec.name}'") as on_stage, translated():
        on_stage("stopping its processes")
        cluster.stop(layout)
    remove_from_all(spec.context)
    click.echo(f"the cluster '{spec.name}' is gone")
    return ExitCode.DONE
