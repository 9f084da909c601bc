"""`muster up`: starts a cluster on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import click

from muster.api.words import counted
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.names import not_empty
from muster.cli.output import console, interactive, note
from muster.cli.program import prefix

if TYPE_CHECKING:
    from muster.embedded.layout import ClusterSpec, Layout

_NODES, _GPUS = 4, 8
_LOG_MIN_FILES = 2

_SPINNER_COLUMNS: Final = 4


@click.command()
@click.option("--nodes", type=click.IntRange(1, 64), help=f"Nodes ({_NODES}).")
@click.option("--gpus", type=click.IntRange(0, 64), help=f"GPUs each node declares ({_GPUS}); they need not exist.")
@click.option("--name", default="", callback=not_empty, help="Name of the cluster, if there are several.")
@click.option(
    "--real", is_flag=True, help="With etcd, kube-apiserver and kube-controller-manager, built if missing (needs Go)."
)
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the API server (a free one).")
@click.option(
    "--network", type=click.Choice(["host", "netns"]), help="Loopback addresses, or as root a namespace per pod (host)."
)
@click.option(
    "--container-log-max-size",
    "log_size",
    metavar="QUANTITY",
    callback=lambda context, parameter, value: _log_size(value),
    help="Size at which the log of a container is rotated (10Mi).",
)
@click.option(
    "--container-log-max-files",
    "log_files",
    type=click.IntRange(_LOG_MIN_FILES),
    metavar="COUNT",
    help="Maximum number of files kept of a container's log (5).",
)
@click.option(
    "--cache",
    "cache_size",
    metavar="SIZE",
    callback=lambda context, parameter, value: _cache_size(value),
    help="Size limit of each node's data cache (2Gi); 0 for no caches.",
)
def command(
    nodes: int | None,
    gpus: int | None,
    name: str,
    real: bool,
    port: int | None,
    network: str | None,
    log_size: str | None,
    log_files: int | None,
    cache_size: str | None,
) -> int:
    """Start a cluster on this machine: a Kubernetes API, nodes whose pods are processes, and Muster itself.

    If the files of an earlier cluster are still there, for example after a reboot, that cluster starts again with its
    objects and jobs. `muster down` removes everything.
    """
    from muster.cli.local.kubeconfig import add_context, check_writable, user_kubeconfig
    from muster.embedded import cluster
    from muster.embedded.layout import DEFAULT_NAME, ClusterSpec

    layout = layout_of(name)
    stored = layout.read_spec()
    name = stored.name if stored else name or DEFAULT_NAME
    base = stored or ClusterSpec(name=name, nodes=_NODES, gpus=_GPUS)
    wanted = ClusterSpec(
        name=base.name,
        nodes=nodes or base.nodes,
        gpus=base.gpus if gpus is None else gpus,
        port=port or 0,
        real=real or base.real,
        network="netns" if (network or base.network) == "netns" else "host",
        container_log_max_size=log_size or base.container_log_max_size,
        container_log_max_files=log_files or base.container_log_max_files,
        cache_size=cache_size or base.cache_size,
    )
    if stored and (layout.read_daemon() or cluster.starting(layout)):
        same = stored.same_shape(wanted) and stored.with_limits(wanted) == stored and port in (None, stored.port)
        return _up_already(same, layout)
    if wanted.network == "netns" and os.geteuid() != 0:
        raise BadInput(
            "--network netns needs root: it makes network namespaces and a bridge",
            "run it as root, or leave it out: pods then have loopback addresses",
        )
    path = user_kubeconfig()
    check_writable(path)
    if wanted.real:
        _build_control_plane()
    started = time.monotonic()
    with waiting(f"starting the cluster '{name}'") as on_stage, translated():
        spec = cluster.start(layout, wanted, on_stage)
    current = add_context(path, layout.kubeconfig, spec.context)
    gpus_text = f" with {counted(spec.gpus, 'GPU')} each" if spec.gpus else ""
    took = f"{time.monotonic() - started:.1f} s"
    verb = "continues" if stored else "is up"
    plane = ", a real control plane" if spec.real else ""
    click.echo(f"the cluster '{name}' {verb}: {counted(spec.nodes, 'node')}{gpus_text}{plane}, ready after {took}")
    click.echo(f"  kubectl {'' if current else f'--context {spec.context} '}get nodes")
    click.echo(f"  {prefix()} run {'' if current else f'--context {spec.context} '}train.py --follow")
    click.echo(f"  {prefix()} down" + (f" --name {name}" if name != DEFAULT_NAME else ""))
    if not current:
        note(f"your current context in {path} was left as it is")
    return ExitCode.DONE


def _build_control_plane() -> None:
    """Build the real control plane if it is missing, and show the progress. Raises CliError."""
    from muster.embedded import realplane

    try:
        realplane.build()
    except realplane.UNAVAILABLE as error:
        raise CliError(
            f"no real control plane here: {error}", f"leave out --real for the embedded one: {prefix()} up"
        ) from None


def layout_of(name: str) -> Layout:
    """Returns the layout of the cluster of that name; with "" the default one, or the one in MUSTER_STATE_DIR.

    Raises:
        BadInput: a cluster cannot have this name.
        CliError: MUSTER_STATE_DIR contains a cluster of another name.
    """
    from muster.embedded.layout import DEFAULT_NAME, Layout, default_root, valid_name

    if name and not valid_name(name):
        raise BadInput(f"'{name}' is not a name for a cluster", "at most 40 lower-case letters, digits and dashes")
    layout = Layout(default_root(name or DEFAULT_NAME))
    stored = layout.read_spec()
    if name and stored is not None and stored.name != name:
        raise CliError(
            f"MUSTER_STATE_DIR={layout.root} holds the cluster '{stored.name}', not '{name}'; nothing was changed",
            f"unset MUSTER_STATE_DIR, set it to another folder, or use --name {stored.name}",
            ExitCode.CONFLICT,
        )
    return layout


def _up_already(same: bool, layout: Layout) -> int:
    """Refuse a cluster with other options. Otherwise wait until it is ready, even if another process starts it."""
    from muster.cli.local.kubeconfig import add_context, user_kubeconfig
    from muster.embedded import cluster

    current = cluster.status(layout)
    if current is None:
        raise CliError("the cluster was removed just now", f"start it again: {prefix()} up", ExitCode.CONFLICT)
    if not same:
        raise CliError(
            f"the cluster '{current.spec.name}' is up already, with another shape: {_shape(current.spec)}",
            f"remove it first: {prefix()} down; or give the new one a --name of its own",
            ExitCode.CONFLICT,
        )
    with waiting(f"the cluster '{current.spec.name}' is being started already") as on_stage, translated():
        spec = cluster.join(layout, on_stage)
        missing = asyncio.run(_repair(layout))
    add_context(
        user_kubeconfig(), layout.kubeconfig, spec.context
    )  # the process that started it may not have added the context yet
    click.echo(f"the cluster '{spec.name}' is up already: {_shape(spec)}")
    if missing:
        note(f"installed again, as they were missing: {', '.join(missing)}; objects of these kinds are lost")
    return ExitCode.DONE


async def _repair(layout: Layout) -> list[str]:
    """Install missing CustomResourceDefinitions in a running cluster. Returns their names."""
    from muster.embedded.readiness import install_kinds
    from muster.kube.client import Client
    from muster.kube.connection.config import load_config

    async with Client(load_config(layout.kubeconfig)) as client:
        return await install_kinds(client)


def _shape(spec: ClusterSpec) -> str:
    shape = f"{counted(spec.nodes, 'node')} with {counted(spec.gpus, 'GPU')} each, port {spec.port}"
    if spec.real:
        shape += ", a real control plane"
    standard = type(spec)()
    if spec.with_limits(standard) == spec:
        return shape
    cache = f"data caches of {spec.cache_size}" if spec.has_caches else "no data caches"
    return f"{shape}, container logs of {spec.container_log_max_files} x {spec.container_log_max_size}, {cache}"


def _log_size(value: str | None) -> str | None:
    """Parse the size of a container's log. Raises BadInput if it is not a size, or too small."""
    from muster.embedded.kubelet.settings import LOG_MIN_BYTES
    from muster.kube.objects.quantity import QuantityError, to_int

    if value is None:
        return None
    try:
        size = to_int(value)
    except QuantityError:
        size = 0
    if size < LOG_MIN_BYTES:
        raise BadInput(
            f"--container-log-max-size {value}: not a size of at least {LOG_MIN_BYTES >> 10}Ki",
            "write bytes or a quantity such as 512Ki or 10Mi",
        )
    return value


def _cache_size(value: str | None) -> str | None:
    """Parse the size of a data cache; returns "0" for none. Raises BadInput if it is not a size, or too small."""
    from muster.embedded.programs import CACHE_MIN_BYTES
    from muster.kube.objects.quantity import QuantityError, to_int

    if value is None:
        return None
    try:
        size = to_int(value)
    except QuantityError:
        size = -1
    if size == 0:
        return "0"
    if size < CACHE_MIN_BYTES:
        raise BadInput(
            f"--cache {value}: not a size of at least {CACHE_MIN_BYTES >> 20}Mi, and not 0",
            "write bytes or a quantity such as 512Mi or 10Gi, or 0 for no caches",
        )
    return value


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Convert errors of the library of embedded clusters to CliError."""
    from muster.embedded.cluster import ClusterConflictError, ClusterError, ClusterTimeoutError
    from muster.embedded.control import ControlError

    try:
        yield
    except ClusterConflictError as error:
        raise CliError(str(error), error.hint, ExitCode.CONFLICT) from None
    except ClusterTimeoutError as error:
        raise CliError(str(error), error.hint, ExitCode.TIMED_OUT) from None
    except ClusterError as error:
        raise CliError(str(error), error.hint) from None
    except ControlError as error:
        raise CliError(str(error)) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CliError(
            f"the cluster's folder cannot be used: {where}{error.strerror or error}",
            "set HOME, XDG_STATE_HOME or MUSTER_STATE_DIR to a folder that you can write",
            ExitCode.NO_CLUSTER,
        ) from None


def _on_one_line(text: str, columns: int) -> str:
    """Return a text that a narrow terminal does not wrap: a spinner on two lines leaves remains of each stage."""
    return text if len(text) <= columns else f"{text[: max(columns - 1, 1)]}…"


@contextlib.contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Show the current stage of a wait: a spinner on a terminal, else a line on stderr for each new stage."""
    if interactive():
        with console().status(what) as shown:
            yield lambda stage: shown.update(_on_one_line(f"{what}: {stage}", console().width - _SPINNER_COLUMNS))
        return
    last = ""

    def say(stage: str) -> None:
        nonlocal last
        if stage != last:
            last = stage
            note(f"{what}: {stage}")

    yield say
