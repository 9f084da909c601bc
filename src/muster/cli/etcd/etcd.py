"""`muster etcd config`: settings for etcd at a planned size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from muster.cli.doctor.page import amount
from muster.cli.errors import BadInput, ExitCode
from muster.cli.names import finite
from muster.cli.output import output_option, print_data, print_table, say, say_command

if TYPE_CHECKING:
    from muster.doctor.etcd.sizing import Settings

_PODS_EACH: Final = 30
_EVENTS_EACH: Final = 0.05
_NODES_MAX, _PODS_MAX = 100_000, 5_000_000


@click.group("etcd")
def command() -> None:
    """Settings for etcd at a planned size."""


@command.command("config")
@click.option("--nodes", type=click.IntRange(1, _NODES_MAX), default=100, show_default=True, help="Planned nodes.")
@click.option("--pods", type=click.IntRange(0, _PODS_MAX), help=f"Planned pods ({_PODS_EACH} a node).")
@click.option(
    "--events-per-second",
    "events",
    type=click.FloatRange(0, 100_000),
    callback=finite,
    help=f"Planned writes of Events per second ({_EVENTS_EACH:g} a node).",
)
@click.option(
    "--events-etcd", default="", metavar="URL[;URL]", help="Addresses of an etcd for Events: split them in any case."
)
@output_option("json", "yaml")
def config_command(nodes: int, pods: int | None, events: float | None, events_etcd: str, output: str) -> int:
    """Compute settings for etcd and kube-apiserver at a planned size: disks, quota, compaction, split of Events.

    No cluster is contacted. With -o the output holds the flags, a systemd unit and a static pod as plain data, and
    the steps that move Events to an etcd of their own.
    """
    from muster.doctor.etcd.sizing import Size, settings_for

    for url in filter(None, events_etcd.split(";")):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or "," in url or "#" in url:
            raise BadInput(f"{url!r} is not the address of an etcd", "write https://HOST:2379, separated by semicolons")
    size = Size(nodes, _PODS_EACH * nodes if pods is None else pods, _EVENTS_EACH * nodes if events is None else events)
    settings = settings_for(size, events_etcd)
    if output:
        print_data(_data(size.nodes, size.pods, size.events_per_s, settings), output)
    else:
        _print(settings)
    return ExitCode.DONE


def _data(nodes: int, pods: int, events: float, settings: Settings) -> dict[str, Any]:
    from msgspec import to_builtins

    from muster.doctor.etcd.migration import ADVICE, steps
    from muster.doctor.etcd.snippets import apiserver_flags, command, static_pod, systemd_unit

    data: dict[str, Any] = {"size": {"nodes": nodes, "pods": pods, "eventsPerSecond": events}}
    data["splitEvents"] = settings.split_events
    data["etcd"] = [
        to_builtins(cluster)
        | {"command": command(cluster), "systemdUnit": systemd_unit(cluster), "staticPod": static_pod(cluster)}
        for cluster in settings.clusters
    ]
    data["kubeApiserver"] = {"flags": apiserver_flags(settings)}
    override = settings.apiserver_flags.get("etcd-servers-overrides")
    data["migration"] = to_builtins(steps(override)) if override else []
    data["advice"] = list(ADVICE)
    data["warnings"] = list(settings.warnings)
    return data


def _print(settings: Settings) -> None:
    from muster.doctor.etcd.migration import ADVICE, steps
    from muster.doctor.etcd.snippets import apiserver_flags

    for warning in settings.warnings:
        say(warning, head="WARNING ")
    rows = [
        (
            cluster.name,
            amount(float(cluster.stored_bytes), "bytes"),
            amount(float(cluster.flags["quota-backend-bytes"]), "bytes"),
            amount(cluster.writes_per_second, "/s"),
            f"{cluster.iops}",
            "own disk" if cluster.separate_wal_disk else "same disk",
            amount(float(cluster.disk_bytes), "bytes"),
            amount(float(cluster.memory_bytes), "bytes"),
        )
        for cluster in settings.clusters
    ]
    print_table(("ETCD", "STORED", "QUOTA", "WRITES", "IOPS WITH FSYNC", "WAL", "DISK", "MEMORY"), rows)
    click.echo()
    for cluster in settings.clusters:
        say(f"Flags of etcd '{cluster.name}':")
        for name, value in cluster.flags.items():
            say_command(f"--{name}={value}")
    say("Flags of kube-apiserver:")
    for line in apiserver_flags(settings):
        say_command(line)
    click.echo()
    for text in ADVICE:
        say(text, head="- ")
    override = settings.apiserver_flags.get("etcd-servers-overrides")
    if override is None:
        say("Events stay in the main etcd at this size.")
        return
    click.echo()
    say("Move Events to an etcd of their own:")
    for number, step in enumerate(steps(override), start=1):
        say(step.what, head=f"{number}. ")
        for line in step.commands:
            say_command(f"   {line}")
