"""Chooses the cluster that a command talks to."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import click

from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.names import namespace as namespace_name
from muster.cli.names import not_empty, valid_namespace

if TYPE_CHECKING:
    from muster.embedded.layout import Layout
    from muster.kube.client import Client
    from muster.kube.connection.config import ClusterConfig


T = TypeVar("T")

_RETRY_S = 5.0


class Target(NamedTuple):
    """The user's options about the cluster; an empty field means that the option was not given."""

    kubeconfig: str = ""
    context: str = ""
    embedded: bool = False
    namespace: str = ""


class Cluster(NamedTuple):
    """The cluster of a command.

    Attributes:
        config: its address and credentials.
        namespace: the namespace to use.
        description: its kind and name, for messages.
        embedded: its state folder, if it runs on this machine.
    """

    config: ClusterConfig
    namespace: str
    description: str
    embedded: Layout | None

    @contextlib.asynccontextmanager
    async def client(self, user_agent: str = "muster-cli") -> AsyncIterator[Client]:
        """Open a client for the cluster while the block runs."""
        from muster.embedded.layout import Layout, default_root
        from muster.kube.client import Client
        from muster.kube.errors import Unavailable

        try:
            async with Client(self.config, user_agent=user_agent, retry_for_s=_RETRY_S) as client:
                yield client
        except Unavailable as error:
            if self.embedded is None and Layout(default_root()).read_daemon():
                error.add_note("use --embedded for the cluster on this machine")
            raise


def cluster_options() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options that choose the cluster. The command receives them as one parameter, `target`."""
    options = (
        click.option(
            "-n",
            "--namespace",
            "namespace",
            default="",
            metavar="NAME",
            callback=namespace_name,
            help="Namespace (the context's).",
        ),
        click.option(
            "--kubeconfig",
            default="",
            metavar="FILE",
            callback=not_empty,
            help="Kubeconfig (KUBECONFIG, ~/.kube/config).",
        ),
        click.option(
            "--context",
            default="",
            metavar="NAME",
            callback=not_empty,
            help="Context of the kubeconfig (its current one).",
        ),
        click.option("--embedded", is_flag=True, help="The cluster that `muster up` started on this machine."),
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_target(*args: Any, kubeconfig: str, context: str, embedded: bool, namespace: str, **rest: Any) -> Any:
            return function(*args, target=Target(kubeconfig, context, embedded, namespace), **rest)

        wrapped: Callable[..., Any] = with_target
        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def resolve(target: Target) -> Cluster:
    """Choose the cluster as kubectl would; without a kubeconfig, the one running on this machine.

    Raises:
        CliError: there is no cluster, or the kubeconfig cannot be used (exit status 3).
    """
    from muster.embedded.layout import Layout, default_root

    if target.embedded:
        if target.kubeconfig or target.context:
            raise BadInput("--embedded chooses the cluster by itself", "leave out --kubeconfig and --context")
        layout = Layout(default_root())
        if layout.read_daemon() is None:
            raise CliError("no cluster runs on this machine", "start one: muster up", ExitCode.NO_CLUSTER)
        return _embedded(layout, target)
    if not (target.kubeconfig or target.context or _has_kubeconfig() or os.environ.get("KUBERNETES_SERVICE_HOST")):
        running = _running_clusters()
        if not running:
            raise CliError(
                "no cluster: there is no kubeconfig, and no cluster runs on this machine",
                "start one here with `muster up`, or point KUBECONFIG at yours",
                ExitCode.NO_CLUSTER,
            )
        return _embedded(running[0], target)
    config = _load(target.kubeconfig, target.context)
    return _cluster(config, target)


def _embedded(layout: Layout, target: Target) -> Cluster:
    return _cluster(_load(str(layout.kubeconfig), ""), target)


def _cluster(config: ClusterConfig, target: Target) -> Cluster:
    if not (target.namespace or valid_namespace(config.namespace)):
        raise CliError(
            f"context {config.context!r} has {config.namespace!r} as its namespace, which cannot be one",
            "correct it: kubectl config set-context --current --namespace NAME; or use --namespace",
            ExitCode.NO_CLUSTER,
        )
    layout = embedded_at(config.server)
    address = urlsplit(config.server).netloc
    spec = layout.read_spec() if layout else None
    description = f"the cluster at {address}"
    if spec:
        what = "cluster with a real control plane," if spec.real else "embedded cluster"
        description = f"the {what} '{spec.name}' on this machine"
    return Cluster(config, target.namespace or config.namespace or "default", description, layout)


def _load(kubeconfig: str, context: str) -> ClusterConfig:
    from muster.kube.connection.config import load_config
    from muster.kube.connection.kubeconfig import is_there
    from muster.kube.errors import ConfigError

    try:
        if kubeconfig and not is_there(Path(kubeconfig)):
            raise CliError(f"there is no kubeconfig {kubeconfig}", "check --kubeconfig", ExitCode.NO_CLUSTER)
        return load_config(Path(kubeconfig) if kubeconfig else None, context or None)
    except ConfigError as error:
        raise CliError(str(error), "kubectl config get-contexts lists what there is", ExitCode.NO_CLUSTER) from None


def _has_kubeconfig() -> bool:
    """Return whether the user's kubeconfig chooses a cluster.

    KUBECONFIG always does, so that an error in it never leads to another cluster. The file ~/.kube/config does if it
    names a current context. It also does if it cannot be read; loading it then reports the error.
    """
    from muster.kube.connection.config import kubeconfig_files
    from muster.kube.connection.kubeconfig import is_there, read_kubeconfigs
    from muster.kube.errors import ConfigError

    if os.environ.get("KUBECONFIG"):
        return True
    try:
        default = kubeconfig_files()[0]
        return is_there(default) and bool(read_kubeconfigs([default])["current-context"])
    except ConfigError:
        return True


def _candidates() -> list[Layout]:
    from muster.embedded.layout import Layout, clusters_root, default_root

    roots = [default_root()]
    with contextlib.suppress(OSError):  # skip a folder that cannot be read
        roots += sorted(path for path in clusters_root().iterdir() if path not in roots)
    return [Layout(root) for root in roots]


def _running_clusters() -> list[Layout]:
    """The clusters that run on this machine, the default one first."""
    return [layout for layout in _candidates() if layout.read_daemon()]


def embedded_at(server: str) -> Layout | None:
    """Return the running cluster of `muster up` whose API server has this address, if there is one."""
    layout = stored_at(server)
    return layout if layout and layout.read_daemon() else None


def stored_at(server: str) -> Layout | None:
    """Return the cluster of `muster up` whose API server has this address, whether it runs or not."""
    address = urlsplit(server)
    if address.hostname not in ("127.0.0.1", "localhost"):
        return None
    found = [layout for layout in _candidates() if (spec := layout.read_spec()) and spec.port == address.port]
    return next((layout for layout in found if layout.read_daemon()), found[0] if found else None)


async def if_allowed(asked: Awaitable[T]) -> T | None:
    """Return None instead of an error if the object does not exist or the user may not read it."""
    from muster.kube.errors import Forbidden, NotFound

    try:
        return await asked
    except (Forbidden, NotFound):
        return None
