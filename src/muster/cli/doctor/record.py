"""`muster doctor record`: a proxy in front of the API server that records requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.errors import CliError, ExitCode
from muster.cli.output import note
from muster.cli.processes.listening import address
from muster.cli.target import Target, cluster_options
from muster.kube.running import stop_on_signals

if TYPE_CHECKING:
    from muster.doctor.pricing.sidecar import Share
    from muster.kube.connection.config import ClusterConfig

_FLUSH_S = 1.0


@click.command("record")
@click.option("--listen", default="127.0.0.1:16443", show_default=True, callback=address, help="Address to serve on.")
@click.option(
    "--share",
    required=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder for ca.crt, which clients must trust; in a pod also for the token and the namespace.",
)
@click.option("--output", required=True, metavar="FILE", help="Where to write the requests; - is standard output.")
@click.option("--node", envvar="NODE_NAME", default="", metavar="NAME", help="The node, for tokens without it.")
@cluster_options()
def record_command(listen: tuple[str, int], share: Path, output: str, node: str, target: Target) -> int:
    """Pass requests on to the API server, and record who asks for what.

    Callers use their own tokens; the recorder has no rights and records no tokens. The records are read by
    `muster doctor price --audit-log FILE` and `muster doctor --audit-log FILE`. To run it beside a DaemonSet, see
    `muster doctor price --print-sidecar`.
    """
    from muster.doctor.pricing.sidecar import Share
    from muster.kube.connection.config import load_config
    from muster.kube.errors import ConfigError

    try:
        config = load_config(target.kubeconfig or None, target.context or None)
    except ConfigError as error:
        raise CliError(str(error), exit_code=ExitCode.NO_CLUSTER) from None
    try:
        return asyncio.run(_record(config, listen, Share(share, _account()), output, node))
    except OSError as error:
        raise CliError(f"cannot record: {error}", "choose another --listen, --share or --output") from error


def _account() -> Path | None:
    """The folder of the pod's service account; None outside of a pod."""
    from muster.kube.connection.config import SERVICE_ACCOUNT_DIR, SERVICE_ACCOUNT_DIR_VARIABLE

    folder = Path(os.environ.get(SERVICE_ACCOUNT_DIR_VARIABLE, SERVICE_ACCOUNT_DIR))
    return folder if "KUBERNETES_SERVICE_HOST" in os.environ and folder.is_dir() else None


async def _record(config: ClusterConfig, listen: tuple[str, int], share: Share, output: str, node: str) -> int:
    import msgspec

    from muster.kube.requestlog import RequestLine, RequestLog
    from muster.readcache.recorder import recording_server

    log = None if output == "-" else RequestLog(Path(output))
    encode = msgspec.json.Encoder().encode

    def write(line: RequestLine) -> None:
        if log is not None:
            log.write(line)
        else:
            sys.stdout.buffer.write(encode(line) + b"\n")

    flush = log.flush if log is not None else sys.stdout.buffer.flush
    stop = stop_on_signals()
    server = recording_server(config, write, node=node, context=share.tls())
    try:
        host, port = server.listen(*listen)
        share.publish()
        note(f"recording requests on https://{host}:{port} ; clients must trust {share.authority}")
        following = asyncio.create_task(share.follow(stop))
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _FLUSH_S)
            flush()
        await following
    finally:
        await server.stop()
        if log is not None:
            log.close()
        flush()
    return ExitCode.DONE
