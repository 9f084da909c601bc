"""`muster network plan`: ranges, peerings, routes, rules and policies for a hub and its spokes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.errors import BadInput, CliError
from muster.cli.input_file import read_text
from muster.cli.network.findings import exit_code, number, print_findings, print_needs
from muster.cli.output import note, output_option, print_data, print_table, say
from muster.kube.errors import BadConfig

if TYPE_CHECKING:
    from muster.network.plan.plan import Plan

_PATH = click.Path(path_type=Path, dir_okay=False)


@click.command("plan")
@click.argument("file", metavar="FILE")
@click.option("--previous", metavar="PLAN", help="An earlier plan (-o yaml or json). Its ranges are kept.")
@click.option("--picture", type=_PATH, metavar="FILE.svg", help="Draw the plan.")
@click.option("--manifests", metavar="CLUSTER", help="Print only this cluster's objects, for kubectl apply -f -.")
@output_option("json", "yaml")
def command(file: str, previous: str | None, picture: Path | None, manifests: str | None, output: str) -> int:
    """Plan the address ranges of a hub and its spokes; FILE has the clusters, their sizes and growth (- reads stdin).

    No cluster is contacted. The exit status is 1 if the provider's limits or Kubernetes cannot carry the plan.
    """
    from muster.network.plan.config import parse_request
    from muster.network.plan.decide import decide
    from muster.network.plan.document import parse_plan, plan_data, previous_ranges
    from muster.network.plan.placement import NoRoom

    if manifests is not None and output:
        raise BadInput("--manifests prints YAML for kubectl", "leave out -o")
    if picture is not None and picture.suffix.lower() != ".svg":
        raise BadInput(f"--picture writes SVG, and {picture} has another ending", "name a file that ends in .svg")
    try:
        kept = previous_ranges(parse_plan(read_text(previous), previous)) if previous is not None else ()
        plan = decide(parse_request(read_text(file), file, kept))
    except BadConfig as error:
        raise BadInput(str(error)) from None
    except NoRoom as error:
        raise BadInput(f"{file}: {error}") from None
    if picture is not None:
        _draw(plan, picture)
    if manifests is not None:
        _print_manifests(plan, manifests)
    elif output:
        print_data(plan_data(plan), output)
    else:
        _print(plan)
    return exit_code(plan.findings)


def _draw(plan: Plan, path: Path) -> None:
    from muster.network.plan.picture import picture

    try:
        path.write_text(picture(plan), encoding="utf-8")
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror or error}") from error
    note(f"drew {path}")


def _print_manifests(plan: Plan, cluster: str) -> None:
    import yaml

    from muster.network.plan.document import plan_data

    # Plain data has no shared parts, which YAML would write as anchors.
    found = {each["cluster"]: each for each in plan_data(plan)["manifests"]}
    if cluster not in found:
        raise BadInput(f"there is no cluster {cluster!r} in the plan", f"write one of {', '.join(found)}")
    objects = [*found[cluster]["networkPolicies"], *found[cluster].get("addressPools", ())]
    if found[cluster]["networkPolicies"]:
        note(
            "NetworkPolicies only add permissions: apply these only to namespaces that have no other NetworkPolicy "
            "(docs/network-plan.md)"
        )
    if not objects:
        note(f"{cluster} needs no objects")
        return
    click.echo(yaml.safe_dump_all(objects, sort_keys=False), nl=False)


def _print(plan: Plan) -> None:
    rows = []
    for each in plan.capacities:
        planned = [
            range_
            for range_ in plan.ranges
            if (range_.cluster, range_.use, range_.family) == (each.cluster, each.use, each.family)
        ]
        years = "over 99" if each.years_left is None else "none" if each.years_left < 0 else f"{each.years_left:.1f}"
        share = f"{each.needed / each.addresses:.0%}"
        rows += [
            (each.cluster, each.use, range_.cidr, share, years, range_.grows_to or "-", "kept" if range_.kept else "-")
            for range_ in planned
        ]
    print_table(
        ("CLUSTER", "USE", "RANGE", "FULL", "YEARS LEFT", "CAN GROW TO", "PREVIOUS"),
        rows,
        ("PREVIOUS", "CAN GROW TO", "FULL", "YEARS LEFT"),
    )
    click.echo()
    blocks = [
        (
            each.cluster,
            each.family.value,
            f"/{each.mask_size}",
            str(each.blocks_per_node),
            f"{each.nodes:,}",
            each.allocator,
        )
        for each in plan.node_blocks
    ]
    print_table(("CLUSTER", "FAMILY", "BLOCK", "EACH NODE", "NODES FIT", "ALLOCATOR"), blocks, ("EACH NODE",))
    click.echo()
    print_needs(plan.needs)
    click.echo()
    say(
        f"{number(len(plan.peerings), 'peering')}, {number(len(plan.routes), 'route')}, "
        f"{number(len(plan.firewall_rules), 'firewall rule')} and the manifests are in -o yaml."
    )
    print_findings(plan.findings)
