"""`muster controller`: runs all controllers. One replica leads; the others wait for its lease."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

import click
from prometheus_client import REGISTRY

from muster.api.names import ANNOTATION_SHADOW, CACHE_DIRECTORY, CONTROLLER_LEASE, LABEL_TEAM, SYSTEM_NAMESPACE
from muster.api.trimmed import FORMS
from muster.cli.errors import BadInput, CliError, ExitCode, from_api_error
from muster.cli.names import finite, valid_namespace
from muster.cli.names import namespace as namespace_name
from muster.cli.processes.listening import address
from muster.cli.teams.team_key import read_team_key, until_team_key_changes
from muster.controlplane.ports import free_port
from muster.kube.client import Client
from muster.kube.connection.cachedtransport import cached_transport
from muster.kube.connection.config import load_config
from muster.kube.errors import ApiError, ConfigError
from muster.kube.health import Progress, health_app, serve
from muster.kube.informers import Informers
from muster.kube.leader import LEASE_DURATION_S, LeaderElector, Term
from muster.kube.running import log_to_stderr, run_until, stop_on_signals
from muster.manager.controllers import Parts, Shared, works_of
from muster.network.uplink.program import HubServer, add_page, hub_server
from muster.scheduler.metrics import scheduler_metrics
from muster.scheduler.plan import Settings
from muster.scheduler.shadow import Shadow
from muster.trainingjobs.controller import TrainingJobController
from muster.trainingjobs.pods.pod import PodSettings
from muster.trainingjobs.pods.stores import CacheMode, CacheVolume
from muster.trainingjobs.rendezvous.secrets import InstallationSecrets, ephemeral, load_or_create
from muster.trainingjobs.rendezvous.server import RendezvousServer, serve_tls
from muster.trainingjobs.rendezvous.ticket_key import keep_published
from muster.trainingjobs.rendezvous.tokens import pod_reviewer
from muster.trainingjobs.snapshot import EXCLUSION_S

log = logging.getLogger(__name__)

_USER_AGENT = "muster-controller"
GARBAGE_AFTER = (50_000, 20, 100)
"""Thresholds of Python's garbage collector. Most objects here are nodes and pods that live long: with Python's default
of 700 the collector takes 0.2 of 2.7 CPU seconds while 5,000 pods are bound.
"""


@dataclass(frozen=True, kw_only=True)
class ControllerOptions:
    """Options of the process.

    Attributes:
        kubeconfig: path of the kubeconfig; None: found as kubectl does.
        listen: host and port for supervisors.
        advertise_url: the address that pods use; `https://` and the listen address if empty.
        metrics_listen: host and port of /metrics, /healthz and /readyz; None serves none.
        namespace: where the lease and the Secrets are.
        muster_image: the image from which init containers copy the supervisor.
        shadow: plan and explain, but write only the lease.
        balloons: run balloons as the ConfigMap `muster-balloons` configures them.
        joins: open new nodes to pods as fast as the API server can take.
        scaling: add nodes for gangs and give idle ones back, if the ConfigMap `muster-scaling` exists.
        teams: give nodes to teams, if the ConfigMap `muster-teams` exists.
        health: run remediation as the ConfigMap `muster-health` configures it.
        preflight: test nodes with GPUs as the ConfigMap `muster-preflight` configures it.
        preflight_required: use nodes with GPUs only after they have passed their tests.
        break_glass: remove blocks of accounts that have ended (`muster doctor block`).
        uplink_listen: host and port for network agents that share the uplink's budget; None: there is no budget.
        step_image: image of the pods that reset or reboot a machine; `muster_image` if empty.
        lease_duration_s: another replica takes over this long after the last renewal.
        exclusion_s: a replacement pod waits this long for another node before it may use an excluded one.
        cache: how pods of jobs reach the node cache; None: they do not use one.
        read_cache: URL of a read cache for lists, gets and watches; "" for none.
        read_cache_ca: its certificate authorities, PEM; None: those of the cluster.
    """

    kubeconfig: Path | None = None
    listen: tuple[str, int] = ("127.0.0.1", 0)
    advertise_url: str = ""
    metrics_listen: tuple[str, int] | None = None
    namespace: str = SYSTEM_NAMESPACE
    muster_image: str = "muster"
    shadow: bool = False
    balloons: bool = False
    joins: bool = False
    scaling: bool = False
    teams: bool = False
    health: bool = False
    preflight: bool = False
    preflight_required: bool = False
    break_glass: bool = False
    uplink_listen: tuple[str, int] | None = None
    step_image: str = ""
    lease_duration_s: float = LEASE_DURATION_S
    exclusion_s: float = EXCLUSION_S
    cache: CacheVolume | None = None
    read_cache: str = ""
    read_cache_ca: Path | None = None


async def run_controller(options: ControllerOptions, stop: asyncio.Event) -> None:
    """Run until `stop` is set. Raises ConfigError or ApiError if the cluster cannot be used."""
    identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    progress = Progress(registry=REGISTRY)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(_client(options))
        shadow = Shadow(scheduler_metrics()) if options.shadow else None
        kept = ephemeral() if options.shadow else await load_or_create(client, options.namespace)
        elector = _elector(client, options, identity)
        team_key = await read_team_key(client, options.namespace) if options.teams else LABEL_TEAM
        informers = Informers(client, FORMS, progress=progress)
        jobs, url = await _training_jobs(
            stack, client, informers, options, kept, elector, shadow, identity, progress, team_key
        )
        hub: HubServer | None = None
        if options.uplink_listen is not None and not options.shadow:
            hub = await stack.enter_async_context(
                hub_server(client, options.namespace, *options.uplink_listen, progress)
            )
            log.info("network agents connect to %s:%d", options.uplink_listen[0], hub.port)
        if options.metrics_listen is not None:
            app = health_app(progress, ready={"trainingjobs": jobs.not_ready})
            if hub is not None:
                add_page(app, hub.hub)
            port = await stack.enter_async_context(serve(app, *options.metrics_listen))
            log.info("metrics on http://%s:%d/metrics", options.metrics_listen[0], port)
        log.info("%s: supervisors connect to %s%s", identity, url, "; shadow: nothing is written" * options.shadow)

        settings = Settings(team_key=team_key, preflight_required=options.preflight_required)
        shared = Shared(
            client=client,
            informers=informers,
            namespace=options.namespace,
            identity=identity,
            elector=elector,
            progress=progress,
        )
        parts = Parts(
            teams=options.teams,
            balloons=options.balloons,
            joins=options.joins,
            scaling=options.scaling,
            health=options.health,
            preflight=options.preflight,
            blocks=options.break_glass,
            uplink=hub.hub if hub is not None else None,
        )
        works = [jobs.run(), elector.run(), *([hub.work] if hub is not None else [])]
        if options.cache is not None and not options.shadow:
            fenced = elector.fence(client)

            async def publish(term: Term) -> None:
                await keep_published(fenced, options.namespace, kept.cluster_secret)

            works.append(elector.while_leading(publish, "ticket-key"))
        works += works_of(
            shared,
            parts,
            settings=settings,
            jobs=jobs,
            shadow=shadow,
            muster_image=options.muster_image,
            step_image=options.step_image or options.muster_image,
        )
        if options.teams:
            works.append(until_team_key_changes(client, options.namespace, team_key))
        await run_until(stop, works)


def _client(options: ControllerOptions) -> Client:
    config = load_config(options.kubeconfig)
    transport = None
    if options.read_cache:
        transport = cached_transport(config, options.read_cache, options.read_cache_ca, user_agent=_USER_AGENT)
    return Client(config, user_agent=_USER_AGENT, transport=transport)


def _elector(client: Client, options: ControllerOptions, identity: str) -> LeaderElector:
    duration_s = options.lease_duration_s
    return LeaderElector(
        client,
        CONTROLLER_LEASE,
        options.namespace,
        identity,
        lease_duration_s=duration_s,
        renew_deadline_s=duration_s * 2 / 3,
        retry_period_s=duration_s * 2 / 15,
        annotations={ANNOTATION_SHADOW: "true" if options.shadow else ""},
    )


async def _training_jobs(
    stack: AsyncExitStack,
    client: Client,
    informers: Informers,
    options: ControllerOptions,
    kept: InstallationSecrets,
    elector: LeaderElector,
    shadow: Shadow | None,
    identity: str,
    progress: Progress,
    team_key: str,
) -> tuple[TrainingJobController, str]:
    """Start the server for supervisors, then create the controller of training jobs with the server's port."""
    host, port = options.listen
    port = port or free_port(address=host)  # pods need its number before the server listens
    url = options.advertise_url or f"https://{_bracketed(host)}:{port}"
    jobs = TrainingJobController(
        client,
        elector=elector,
        cluster_secret=kept.cluster_secret,
        pods=PodSettings(
            url=url,
            ca_pem=kept.authority.certificate.decode(),
            muster_image=options.muster_image,
            team_key=team_key,
            cache=options.cache,
        ),
        identity=identity,
        exclusion_s=options.exclusion_s,
        shadow=shadow.suppose if shadow is not None else None,
        informers=informers,
        progress=progress,
    )
    if not options.shadow:
        names = dict.fromkeys([urlsplit(url).hostname or host, "127.0.0.1", "localhost"])
        pair = kept.authority.issue_server("muster-controller", names)
        app = RendezvousServer(jobs, jobs.members, pod_reviewer(client)).app()
        await stack.enter_async_context(serve_tls(app, pair, host, port, jobs.strain))
    return jobs, url


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@click.command("controller")
@click.option("--kubeconfig", type=click.Path(path_type=Path, dir_okay=False), help="Cluster; as kubectl finds it.")
@click.option("--listen", default="127.0.0.1:0", callback=address, show_default=True, help="Address for supervisors.")
@click.option("--advertise-url", default="", help="URL at which pods reach that address (https://LISTEN).")
@click.option("--metrics-listen", callback=address, help="Address of /metrics, /healthz and /readyz; none by default.")
@click.option(
    "--namespace",
    default=SYSTEM_NAMESPACE,
    show_default=True,
    callback=namespace_name,
    help="Namespace of the lease and Secrets.",
)
@click.option("--muster-image", default="muster", show_default=True, help="Image that contains the rank supervisor.")
@click.option("--shadow", is_flag=True, help="Plan and explain, but write only the lease.")
@click.option(
    "--balloons", is_flag=True, help="Put balloons on idle nodes, as the ConfigMap muster-balloons configures."
)
@click.option("--joins", is_flag=True, help="Open new nodes to pods as fast as the API server can take.")
@click.option("--scaling", is_flag=True, help="Add and remove nodes, if the ConfigMap muster-scaling exists.")
@click.option("--teams", is_flag=True, help="Give nodes to teams, if the ConfigMap muster-teams exists.")
@click.option(
    "--health",
    is_flag=True,
    help="Take broken nodes out of use and return them, as the ConfigMap muster-health configures.",
)
@click.option("--preflight", is_flag=True, help="Test nodes with GPUs, as the ConfigMap muster-preflight configures.")
@click.option("--preflight-required", is_flag=True, help="Use nodes with GPUs only after they have passed their tests.")
@click.option("--break-glass", is_flag=True, help="Remove blocks of accounts that have ended (muster doctor block).")
@click.option(
    "--uplink-listen",
    callback=address,
    help="Address for network agents, to share the uplink's budget of the ConfigMap muster-network; none by default.",
)
@click.option("--step-image", default="", help="Image with nsenter, for pods that reset or reboot a machine.")
@click.option(
    "--lease-duration",
    default=LEASE_DURATION_S,
    type=click.FloatRange(min=1),
    callback=finite,
    show_default=True,
    help="Seconds after which another replica takes over.",
)
@click.option(
    "--exclusion",
    default=EXCLUSION_S,
    type=click.FloatRange(min=0),
    callback=finite,
    show_default=True,
    help="Seconds for which a replacement pod waits for another node than the lost one.",
)
@click.option(
    "--cache-volume",
    type=click.Choice(get_args(CacheMode)),
    help="How jobs' pods reach the node cache: a hostPath volume, or the claim muster-cache of their namespace. By "
    "default they do not use a cache.",
)
@click.option(
    "--cache-dir",
    default=CACHE_DIRECTORY,
    show_default=True,
    help="Folder of the cache's socket on the nodes, for --cache-volume hostPath.",
)
@click.option(
    "--cache-namespace",
    "cache_namespaces",
    multiple=True,
    metavar="NAME",
    help="Namespace that has the claim, for --cache-volume claim; repeatable. Jobs of others do not use a cache.",
)
@click.option("--read-cache", default="", metavar="URL", help="Read through this read cache; writes do not use it.")
@click.option(
    "--read-cache-ca",
    type=click.Path(path_type=Path, dir_okay=False),
    help="PEM file with the authorities of the read cache (those of the cluster).",
)
@click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning"]), show_default=True)
def command(
    kubeconfig: Path | None,
    listen: tuple[str, int],
    advertise_url: str,
    metrics_listen: tuple[str, int] | None,
    namespace: str,
    muster_image: str,
    shadow: bool,
    balloons: bool,
    joins: bool,
    scaling: bool,
    teams: bool,
    health: bool,
    preflight: bool,
    preflight_required: bool,
    break_glass: bool,
    uplink_listen: tuple[str, int] | None,
    step_image: str,
    lease_duration: float,
    exclusion: float,
    cache_volume: CacheMode | None,
    cache_dir: str,
    cache_namespaces: tuple[str, ...],
    read_cache: str,
    read_cache_ca: Path | None,
    log_level: str,
) -> None:
    """Run the controllers (the chart starts it)."""
    if advertise_url and (urlsplit(advertise_url).scheme != "https" or not urlsplit(advertise_url).hostname):
        raise BadInput(f"--advertise-url {advertise_url!r} is not https://HOST[:PORT]")
    wrong = [each for each in cache_namespaces if not valid_namespace(each)]
    if wrong:
        raise BadInput(f"--cache-namespace {wrong[0]!r} cannot be the name of a namespace")
    if (cache_volume == "claim") != bool(cache_namespaces):
        raise BadInput(
            "--cache-volume claim and --cache-namespace go together",
            "name each namespace that has the claim, or leave both out",
        )
    if not cache_dir.startswith("/"):
        raise BadInput(f"--cache-dir {cache_dir!r} is not an absolute path", f"{CACHE_DIRECTORY} is usual")
    if read_cache_ca and not read_cache:
        raise BadInput("--read-cache-ca needs --read-cache", "give the URL of the read cache, or leave both out")
    if lease_duration < 1:
        raise BadInput(f"--lease-duration {lease_duration:g} is too short", "use 1 s or more; 15 is usual")
    log_to_stderr(log_level)
    options = ControllerOptions(
        kubeconfig=kubeconfig,
        listen=listen,
        advertise_url=advertise_url.rstrip("/"),
        metrics_listen=metrics_listen,
        namespace=namespace,
        muster_image=muster_image,
        shadow=shadow,
        balloons=balloons,
        joins=joins,
        scaling=scaling,
        teams=teams,
        health=health,
        preflight=preflight,
        preflight_required=preflight_required,
        break_glass=break_glass,
        uplink_listen=uplink_listen,
        step_image=step_image,
        lease_duration_s=lease_duration,
        exclusion_s=exclusion,
        cache=CacheVolume(mode=cache_volume, folder=cache_dir, namespaces=cache_namespaces) if cache_volume else None,
        read_cache=read_cache,
        read_cache_ca=read_cache_ca,
    )
    gc.set_threshold(*GARBAGE_AFTER)
    try:
        import uvloop

        uvloop.run(_main(options))
    except ConfigError as error:
        raise CliError(str(error), exit_code=ExitCode.NO_CLUSTER) from None
    except ApiError as error:
        raise from_api_error(error) from None


async def _main(options: ControllerOptions) -> None:
    await run_controller(options, stop_on_signals())
