"""`muster data`: training data in object stores, and the caches of nodes."""

from __future__ import annotations

import click

from muster.cli.data.evict import evict_command
from muster.cli.data.ls import ls_command
from muster.cli.data.status import status_command
from muster.cli.data.warm import warm_command


@click.group("command")
def command() -> None:
    """List training data, and inspect, fill and empty the data caches of nodes.

    SOURCE is a URL (s3://BUCKET/PREFIX, gs://, az://, a folder), or the name of a job: its spec.data. Commands that
    read a store use your own credentials, from the environment or --credentials. No command reads Secrets.
    """


for each in (ls_command, warm_command, status_command, evict_command):
    command.add_command(each)
