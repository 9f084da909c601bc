"""`muster guard`: runs the guard in front of Prometheus."""

from __future__ import annotations

from pathlib import Path

import click

from muster.cli.errors import BadInput, CliError
from muster.cli.processes.listening import address
from muster.kube.errors import BadConfig, ConfigError
from muster.kube.running import log_to_stderr, stop_on_signals


@click.command("guard")
@click.option(
    "--config",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file guard.yaml (docs/guard.md). It is read again when it changes.",
)
@click.option("--listen", default="127.0.0.1:9091", callback=address, show_default=True, help="Address for clients.")
@click.option("--metrics-listen", callback=address, help="Address of /metrics, /healthz and /readyz (not served).")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Kubeconfig of the cluster whose tokens are accepted (as kubectl finds it).",
)
@click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning"]), show_default=True)
def command(
    config: Path,
    listen: tuple[str, int],
    metrics_listen: tuple[str, int] | None,
    kubeconfig: Path | None,
    log_level: str,
) -> None:
    """Run a guard in front of Prometheus: it prices requests, and refuses or bounds the dear ones."""
    try:
        from muster.telemetry.guard.program import GuardOptions, run_guard
    except ModuleNotFoundError as error:
        raise CliError(f"the package {error.name} is missing", "pip install 'muster[telemetry]'") from None
    log_to_stderr(log_level)
    options = GuardOptions(config=config, listen=listen, metrics_listen=metrics_listen, kubeconfig=kubeconfig)

    async def run() -> None:
        await run_guard(options, stop_on_signals())

    try:
        import uvloop

        uvloop.run(run())
    except (BadConfig, ConfigError) as error:
        raise BadInput(str(error)) from None
