"""`muster readcache`: runs the read cache in front of the API server."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import click

from muster.api.names import SYSTEM_NAMESPACE
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.names import finite
from muster.cli.names import namespace as namespace_name
from muster.cli.processes.listening import address
from muster.kube.errors import ConfigError
from muster.kube.running import log_to_stderr, stop_on_signals
from muster.readcache.kindnames import DEFAULT_KINDS, split_name
from muster.readcache.program import ReadCacheOptions, run_readcache

_MEBIBYTE = 1 << 20


@click.command("readcache")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Kubeconfig of the cluster (as kubectl finds it).",
)
@click.option("--listen", default="127.0.0.1:6444", callback=address, show_default=True, help="Address for clients.")
@click.option("--metrics-listen", callback=address, help="Address of /metrics, /healthz and /readyz (not served).")
@click.option(
    "--tls-cert",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="PEM file with the certificate. Without it and --host, plain HTTP on a loopback address.",
)
@click.option("--tls-key", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="PEM file with its key.")
@click.option(
    "--host", "hosts", multiple=True, help="Name of the Service. The cache makes a certificate for it, in a Secret."
)
@click.option(
    "--namespace",
    default=SYSTEM_NAMESPACE,
    show_default=True,
    callback=namespace_name,
    help="Namespace of the Secrets for certificates.",
)
@click.option("--node-certificate", is_flag=True, help="Also keep the certificate of caches on nodes in a Secret.")
@click.option(
    "--client-certificates/--no-client-certificates",
    default=True,
    show_default=True,
    help="Accept client certificates of the cluster's authorities.",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    help="A kind to cache, as PLURAL[.VERSION][.GROUP]. Repeat it. Default: what agents of nodes read, no Secrets.",
)
@click.option("--audience", "audiences", multiple=True, help="Audience of accepted tokens (the API server's own).")
@click.option(
    "--decision-age",
    "decision_age_s",
    type=click.FloatRange(0, 3600),
    callback=finite,
    default=10.0,
    show_default=True,
    help="Seconds for which a decision about access is kept; 0 asks each time.",
)
@click.option(
    "--max-stale",
    "max_stale_s",
    type=click.FloatRange(0, 86400),
    callback=finite,
    default=300.0,
    show_default=True,
    help="Seconds for which old state is served while the API server is away.",
)
@click.option(
    "--log-memory",
    "log_mib",
    type=click.IntRange(16, 1 << 20),
    default=1024,
    show_default=True,
    help="MiB for the event logs of all kinds.",
)
@click.option(
    "--client-memory",
    "client_mib",
    type=click.IntRange(16, 1 << 20),
    default=512,
    show_default=True,
    help="MiB of bytes that wait for clients.",
)
@click.option(
    "--request-log",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for a line about each request, without tokens, for muster doctor; 4 files of 64 MiB are kept (none).",
)
@click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning"]), show_default=True)
def command(
    kubeconfig: Path | None,
    listen: tuple[str, int],
    metrics_listen: tuple[str, int] | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    hosts: tuple[str, ...],
    namespace: str,
    node_certificate: bool,
    client_certificates: bool,
    kinds: tuple[str, ...],
    audiences: tuple[str, ...],
    decision_age_s: float,
    max_stale_s: float,
    log_mib: int,
    client_mib: int,
    request_log: Path | None,
    log_level: str,
) -> None:
    """Run a cache for get, list and watch in front of the API server (the chart starts it)."""
    for name in kinds:
        try:
            split_name(name)
        except ValueError as error:
            raise BadInput(f"--kind: {error}") from None
    if (tls_cert is None) != (tls_key is None):
        raise BadInput("--tls-cert and --tls-key belong together", "give both, or none")
    if tls_cert is not None and hosts:
        raise BadInput("--tls-cert and --host are two ways to get a certificate", "give one of them")
    if tls_cert is None and not hosts and not _loopback(listen[0]):
        raise BadInput(
            f"--listen {listen[0]}: without TLS, tokens would cross the network in plain text",
            "give --host, or --tls-cert and --tls-key, or listen on 127.0.0.1",
        )
    log_to_stderr(log_level)
    options = ReadCacheOptions(
        kubeconfig=kubeconfig,
        listen=listen,
        metrics_listen=metrics_listen,
        tls=(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None,
        hosts=hosts,
        namespace=namespace,
        node_certificate=node_certificate,
        client_certificates=client_certificates,
        kinds=kinds or DEFAULT_KINDS,
        audiences=audiences,
        decision_age_s=decision_age_s,
        max_stale_s=max_stale_s,
        log_bytes=log_mib * _MEBIBYTE,
        client_bytes=client_mib * _MEBIBYTE,
        request_log=request_log,
    )
    try:
        import uvloop

        uvloop.run(_main(options))
    except ConfigError as error:
        raise CliError(str(error), exit_code=ExitCode.NO_CLUSTER) from None


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _main(options: ReadCacheOptions) -> None:
    await run_readcache(options, stop_on_signals())
