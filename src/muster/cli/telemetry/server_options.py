"""Options about a Prometheus server: its address, credentials and tenant; and errors of it for the user."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.names import not_empty

if TYPE_CHECKING:
    from muster.telemetry.prometheus.client import PrometheusClient
    from muster.telemetry.prometheus.errors import PrometheusError

_FILE = click.Path(path_type=Path, dir_okay=False)


class ServerOptions(NamedTuple):
    """The user's options about a server. `url` is empty if the command works without one."""

    url: str = ""
    token_file: Path | None = None
    user: str = ""
    password_file: Path | None = None
    ca_file: Path | None = None
    tenant: str = ""

    def client(self, timeout_s: float = 30.0, max_bytes: int = 64 << 20) -> PrometheusClient:
        """Return a client that is not open yet. Raises BadInput if the options cannot be used."""
        from muster.telemetry.prometheus.client import TENANT_HEADER, PrometheusClient

        if bool(self.user) != bool(self.password_file):
            raise BadInput("a user and a password belong together", "give both --user and --password-file")
        if self.user and self.token_file:
            raise BadInput("a server has one kind of credentials", "give --token-file, or --user and --password-file")
        try:
            return PrometheusClient(
                self.url,
                headers={TENANT_HEADER: self.tenant} if self.tenant else None,
                token_file=self.token_file,
                user=self.user,
                password_file=self.password_file,
                ca_file=self.ca_file,
                timeout_s=timeout_s,
                max_bytes=max_bytes,
            )
        except ValueError as error:
            raise BadInput(str(error)) from error


def server_options(*, required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of a server. The command's parameter is `server`, a ServerOptions."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(
            *args: Any,
            prometheus: str | None,
            token_file: Path | None,
            user: str,
            password_file: Path | None,
            ca_file: Path | None,
            tenant: str,
            **kwargs: Any,
        ) -> Any:
            server = ServerOptions(prometheus or "", token_file, user, password_file, ca_file, tenant)
            if not server.url and server != ServerOptions():
                raise BadInput("options about a server without its address have no effect", "add --prometheus URL")
            return function(*args, server=server, **kwargs)

        options = (
            click.option(
                "--prometheus",
                metavar="URL",
                required=required,
                callback=not_empty,
                help="Address of the server, as in http://127.0.0.1:9090.",
            ),
            click.option("--token-file", type=_FILE, help="File with a bearer token for the server."),
            click.option("--user", default="", metavar="NAME", callback=not_empty, help="User for the server."),
            click.option("--password-file", type=_FILE, help="File with the user's password."),
            click.option("--ca-file", type=_FILE, help="Authorities of the server's certificate (PEM)."),
            click.option(
                "--tenant", default="", metavar="ID", callback=not_empty, help="Tenant, for Mimir (X-Scope-OrgID)."
            ),
        )
        for option in reversed(options):
            call = option(call)
        return call

    return add


def from_prometheus_error(error: PrometheusError) -> CliError:
    """Translate an error of the server for the user."""
    if error.reason == "timeout":
        return CliError(error.message, "try again when the server has less work", ExitCode.TIMED_OUT)
    if error.reason == "unreachable":
        return CliError(error.message, "check --prometheus and the files of credentials", ExitCode.NO_CLUSTER)
    if error.reason == "untrusted":
        return CliError(
            error.message,
            "name the certificate of its authority with --ca-file, or check the scheme and the name in --prometheus",
            ExitCode.NO_CLUSTER,
        )
    if error.reason == "not-prometheus":
        return CliError(
            error.message,
            "--prometheus is the address of the server, with the prefix of its API (Mimir: /prometheus)",
            ExitCode.NO_CLUSTER,
        )
    if error.status in (401, 403):
        return CliError(error.message, "give credentials with --token-file, or --user and --password-file")
    return CliError(error.message)
