"""`muster doctor price`: what a DaemonSet would cost the control plane."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muster.cli.doctor.page import amount
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.input_file import read_text
from muster.cli.names import finite
from muster.cli.output import note, output_option, print_data, print_table, say, say_command
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.cli.target import Cluster
    from muster.doctor.costs.cost import Cost
    from muster.doctor.pricing.manifest import Manifest
    from muster.doctor.pricing.price import Plan, Price
    from muster.doctor.pricing.run import Recording

_NODES_MAX = 20
_FOR_LEAST_S, _FOR_MOST_S = 5.0, 3600.0


@click.command("price")
@click.argument("file", metavar="FILE")
@click.option("--nodes", type=click.IntRange(1, 1_000_000), metavar="N", help="Planned number of nodes.")
@click.option("--pods", type=click.IntRange(0), metavar="N", help="Planned number of pods (grows with the nodes).")
@click.option(
    "--objects", multiple=True, metavar="RESOURCE=N", help="Planned number of other objects, as in services=500."
)
@click.option(
    "--audit-log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Log with its requests: the API server's audit log, the read cache's or the recorder's log. Repeatable.",
)
@click.option("--canary", type=click.IntRange(1, _NODES_MAX), metavar="K", help="Run a copy on K nodes, and remove it.")
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(_FOR_LEAST_S, _FOR_MOST_S),
    callback=finite,
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the canary is recorded.",
)
@click.option(
    "--baseline",
    "baseline_s",
    type=click.FloatRange(1.0, 600.0),
    callback=finite,
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the API server's use of processors is measured before the canary.",
)
@click.option("--recorder-image", default="", metavar="IMAGE", help="Image of Muster, for a canary without a log.")
@click.option("--print-sidecar", default="", metavar="IMAGE", help="Print the patch that adds the recorder, and stop.")
@click.option("--budget", multiple=True, metavar="NAME=LIMIT", help="Limit per second, as in listBytes=10Mi.")
@output_option("json", "yaml")
@cluster_options()
def price_command(
    file: str,
    nodes: int | None,
    pods: int | None,
    objects: tuple[str, ...],
    logs: tuple[Path, ...],
    canary: int | None,
    seconds: float,
    baseline_s: float,
    recorder_image: str,
    print_sidecar: str,
    budget: tuple[str, ...],
    output: str,
    target: Target,
) -> int:
    """Compute what the DaemonSet in FILE would cost the control plane with N nodes.

    By default nothing runs: the API server validates FILE in a dry run. The price comes from recorded requests: of
    pods that run already (--audit-log), or of a canary (--canary). `-` reads FILE from standard input.

    Exit status: 0 within the budget, 1 above it or if nothing could be recorded, 2 for bad input.
    """
    from muster.doctor.costs.budget import BudgetError, parse_budget
    from muster.doctor.pricing.manifest import ManifestError, parse_manifest
    from muster.doctor.pricing.price import Plan

    try:
        limits = parse_budget(budget)
        numbers = _numbers(objects) | ({"pods": float(pods)} if pods is not None else {})
        text = read_text(file)
        if print_sidecar:
            from muster.doctor.pricing.sidecar import sidecar_patch

            print_data(
                sidecar_patch(parse_manifest(text, target.namespace or "default"), print_sidecar), output or "yaml"
            )
            return ExitCode.DONE
        if (logs or canary) and nodes is None:
            raise BadInput("the planned number of nodes is missing", "add --nodes N")
        if canary and not logs and not recorder_image:
            raise BadInput(
                "a canary needs a source of its requests",
                "add --audit-log FILE, or --recorder-image IMAGE to add the recorder to its pods",
            )
        cluster = resolve(target)
        manifest = parse_manifest(text, cluster.namespace)
    except (BudgetError, ManifestError) as error:
        raise BadInput(str(error)) from error
    plan = Plan(nodes or 0, numbers)
    return asyncio.run(
        _run(cluster, manifest, plan, limits, logs, canary or 0, (seconds, baseline_s), recorder_image, output)
    )


def _numbers(entries: tuple[str, ...]) -> dict[str, float]:
    numbers = {}
    for entry in entries:
        name, _, value = entry.partition("=")
        if not name or not value.isascii() or not value.isdigit():
            raise BadInput(f"{entry!r} is not RESOURCE=N", "write, for example, --objects services=500")
        numbers[name] = float(value)
    return numbers


async def _run(
    cluster: Cluster,
    manifest: Manifest,
    plan: Plan,
    limits: Cost,
    logs: tuple[Path, ...],
    canary: int,
    seconds: tuple[float, float],
    image: str,
    output: str,
) -> int:
    from muster.api.reader import Reader
    from muster.doctor.pricing.canary import CanaryError, LeftOverError
    from muster.doctor.pricing.dryrun import dry_run
    from muster.doctor.pricing.price import NothingRecorded, price
    from muster.doctor.pricing.run import from_canary, from_logs
    from muster.kube.loglines import LogFileError

    async with cluster.client() as client:
        await dry_run(client, (*manifest.others, manifest.daemonset), manifest.namespace)
        if not logs and not canary:
            _print_dry_run(manifest, output)
            return ExitCode.DONE
        reader = Reader(client)
        try:
            if canary:
                recording = await from_canary(
                    reader,
                    manifest,
                    pods=canary,
                    seconds=seconds[0],
                    baseline_s=seconds[1],
                    files=logs,
                    image=image,
                    progress=note,
                )
            else:
                recording = await from_logs(reader, manifest, logs)
            found = price(
                recording.records.usages,
                recording.records.samples,
                recording.population,
                plan,
                limits,
                cpu_cores=recording.cpu_cores,
            )
        except LogFileError as error:
            raise BadInput(str(error)) from error
        except (CanaryError, LeftOverError) as error:
            raise CliError(str(error)) from error
        except NothingRecorded:
            raise CliError(
                f"no request of DaemonSet {manifest.namespace}/{manifest.name} was recorded, so there is no price",
                "check that its pods ran and that the log covers that time",
            ) from None
    for each in reader.unseen:
        note(f"not seen: {each.what}: {each.why}")
    if recording.broken:
        note(f"{recording.broken} lines of the log could not be read")
    _print_price(manifest, found, recording, output)
    return ExitCode.FAILED if found.over else ExitCode.DONE


def _print_dry_run(manifest: Manifest, output: str) -> None:
    if output:
        print_data({"daemonSet": f"{manifest.namespace}/{manifest.name}", "accepted": True, "ran": False}, output)
        return
    say(f"DaemonSet {manifest.namespace}/{manifest.name}: the API server accepts the manifest.")
    say("Nothing ran, so there is no price. Record its requests:")
    say_command("muster doctor price FILE --nodes N --canary 2 --audit-log AUDIT_LOG   # on two nodes, for two minutes")
    say_command("muster doctor price FILE --nodes N --audit-log AUDIT_LOG   # if it runs already")


def _print_price(manifest: Manifest, found: Price, recording: Recording, output: str) -> None:
    if output:
        print_data(_data(manifest, found, recording), output)
        return
    from muster.doctor.costs.cost import UNITS, Cost
    from muster.doctor.costs.growth import words

    say(
        f"DaemonSet {manifest.namespace}/{manifest.name}, recorded for {recording.seconds:.0f} s on {found.pods} "
        f"of {recording.population.nodes:.0f} nodes. The cost grows {words(found.growth)}."
    )
    over = {each.part: each for each in found.over}
    rows = []
    for part in Cost._fields:
        before, after = getattr(found.recorded, part), getattr(found.planned, part)
        if before or after:
            title, unit = UNITS[part]
            limit = f"ABOVE {amount(over[part].limit, unit)}" if part in over else "within"
            rows.append([title, amount(before, unit), amount(after, unit), limit])
    print_table(["COST", "RECORDED", f"WITH {found.nodes} NODES", "BUDGET"], rows)
    say("")
    print_table(
        ["REQUEST", "OF ONE POD", "GROWS", "BECAUSE"],
        [
            [
                line.usage.shape.words,
                _each(line.usage.rate / line.usage.instances, line.usage.startup, line.usage.watches),
                words(line.growth),
                line.scaling.reason,
            ]
            for line in found.lines
        ],
    )
    say("")
    say(
        f"If all pods start together: {found.start.requests:,.0f} requests, {amount(found.start.objects, 'objects')}, "
        f"{amount(found.start.bytes, 'bytes')}."
    )
    if found.planned.watches:
        say(f"Watches take up to {amount(found.watch_memory_bytes, 'bytes')} of the API server's memory.")
    if found.cpu_cores is not None:
        say(f"The API server would use about {amount(found.cpu_cores, 'cores')} for it, judged by the canary.")
    if over:
        from muster.doctor.costs.rule import fix_of

        say(f"Above the budget: {', '.join(each.words for each in found.over)}.")
        say(fix_of(found.lines[0]).summary, head="fix: ")


def _each(rate: float, startup: float, watches: float) -> str:
    if rate > 0:
        return f"each {1 / rate:.3g} s"
    return "one open watch" if watches and startup <= 1 else f"{startup:g} at the start"


def _data(manifest: Manifest, found: Price, recording: Recording) -> dict[str, Any]:
    from muster.doctor.costs.budget import NAMES

    def part(cost: Cost) -> dict[str, float]:
        return {name: round(getattr(cost, field), 6) for name, field in NAMES.items()}

    titles = {field: name for name, field in NAMES.items()}
    return {
        "daemonSet": f"{manifest.namespace}/{manifest.name}",
        "accepted": True,
        "ran": True,
        "growth": found.growth.value,
        "recorded": {
            "seconds": round(recording.seconds, 3),
            "pods": found.pods,
            "nodes": int(recording.population.nodes),
            "cost": part(found.recorded),
        },
        "planned": {
            "nodes": found.nodes,
            "cost": part(found.planned),
            "watchMemoryBytes": round(found.watch_memory_bytes),
            "apiServerCores": found.cpu_cores,
            "start": {
                "requests": found.start.requests,
                "objects": found.start.objects,
                "bytes": found.start.bytes,
            },
        },
        "requests": [
            {
                "request": line.usage.shape.words,
                "verb": line.usage.shape.verb,
                "resource": line.usage.shape.resource,
                "growth": line.growth.value,
                "because": line.scaling.reason,
                "perPodPerSecond": line.usage.rate / line.usage.instances,
                "perPodAtStart": line.usage.startup,
                "watchesPerPod": line.usage.watches / line.usage.instances,
                "planned": part(line.planned),
            }
            for line in found.lines
        ],
        "aboveBudget": [{"name": titles[each.part], "cost": each.cost, "limit": each.limit} for each in found.over],
    }
