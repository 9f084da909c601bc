"""`muster admission`: runs the webhook that restricts pods to their team's nodes."""

from __future__ import annotations

import re
from pathlib import Path

import click

from muster.admission.program import AdmissionOptions, run_admission
from muster.api.names import LABEL_TEAM, SYSTEM_NAMESPACE
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.names import namespace as namespace_name
from muster.cli.processes.listening import address
from muster.kube.errors import ConfigError
from muster.kube.running import log_to_stderr, stop_on_signals

_LABEL = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


@click.command("admission")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Kubeconfig of the cluster (as kubectl finds it).",
)
@click.option("--listen", default="127.0.0.1:0", callback=address, show_default=True, help="Address for webhook calls.")
@click.option("--metrics-listen", callback=address, help="Address of /metrics, /healthz and /readyz (not served).")
@click.option(
    "--namespace", default=SYSTEM_NAMESPACE, show_default=True, callback=namespace_name, help="Namespace of the Secret."
)
@click.option(
    "--host", "hosts", multiple=True, help="Host name that the API server uses to call the webhook (the Service's)."
)
@click.option("--team-key", default=LABEL_TEAM, show_default=True, help="Label and taint that name a team.")
@click.option("--namespace-key", default="", help="Label of namespaces that names their team (the team key).")
@click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning"]), show_default=True)
def command(
    kubeconfig: Path | None,
    listen: tuple[str, int],
    metrics_listen: tuple[str, int] | None,
    namespace: str,
    hosts: tuple[str, ...],
    team_key: str,
    namespace_key: str,
    log_level: str,
) -> None:
    """Run the webhook that fills in team, toleration and node affinity (the chart starts it)."""
    for option, key in (("--team-key", team_key), ("--namespace-key", namespace_key or team_key)):
        if not _LABEL.fullmatch(key):
            raise BadInput(f"{option} {key!r} is not a label key", "use NAME or DOMAIN/NAME, as in muster.dev/team")
    log_to_stderr(log_level)
    options = AdmissionOptions(
        kubeconfig=kubeconfig,
        listen=listen,
        metrics_listen=metrics_listen,
        namespace=namespace,
        hosts=hosts,
        team_key=team_key,
        namespace_key=namespace_key,
    )
    try:
        import uvloop

        uvloop.run(_main(options))
    except ConfigError as error:
        raise CliError(str(error), exit_code=ExitCode.NO_CLUSTER) from None


async def _main(options: AdmissionOptions) -> None:
    await run_admission(options, stop_on_signals())
