"""muster chart: prints the Helm chart of this version, for use without a checkout."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from muster.chart.files import ChartMissingError, chart
from muster.cli.errors import CliError, ExitCode
from muster.cli.names import not_empty
from muster.cli.output import note


@click.command()
@click.argument("folder", type=click.Path(file_okay=False), callback=not_empty)
def command(folder: str) -> None:
    """Write the Helm chart of this version into FOLDER, which must be empty or not exist yet.

    The command then prints the helm command that installs the chart from FOLDER.
    """
    target = Path(folder)
    try:
        source = chart()
        if target.is_dir() and any(target.iterdir()):
            raise CliError(f"{folder} is not empty", "name a new folder", ExitCode.CONFLICT)
        shutil.copytree(source, target, dirs_exist_ok=True)
    except ChartMissingError as error:
        raise CliError(str(error), exit_code=ExitCode.NOT_FOUND) from None
    except OSError as error:
        raise CliError(f"the chart cannot be written to {folder}: {error.strerror}", "name another folder") from None
    click.echo(folder)
    note(
        f"next: helm install muster {folder} --namespace muster-system --create-namespace --set image.repository=IMAGE"
    )
    note("IMAGE is Muster's image in a registry that your nodes can read, without a tag; docs/install.md builds it")
