"""`muster simulate`: replays a trace, or jobs of a model, through the scheduler with one policy or several."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from muster.api.scheduling import ORDERS, POLICIES, BackfillPolicy, QueueOrder
from muster.cli.control_bytes import unguarded
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.names import finite
from muster.cli.output import duration, interactive, note, output_option, print_data

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from muster.sim.replay.job import NodeShape, Workload
    from muster.sim.replay.replay import Conditions, Outcome
    from muster.sim.replay.report import Report

MODELS = ("seren", "kalos", "philly", "helios")


class Scale(NamedTuple):
    """The size of the cluster, in nodes and their GPUs, and how much is replayed; 0 means unlimited."""

    nodes: int
    gpus: int
    days: float
    jobs: int
    min_gpus: int


def _policies(context: click.Context, parameter: click.Parameter, value: str) -> tuple[BackfillPolicy, ...]:
    """Read a list such as strict,easy,preemptible."""
    names = [name.strip() for name in value.split(",")]
    found = tuple(policy for name in names for policy in POLICIES if policy == name)
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is not a policy; the policies are {', '.join(POLICIES)}")
    if len(set(found)) < len(found):
        raise click.BadParameter("each policy may be named once")
    return found


@click.command()
@click.argument("trace", required=False, metavar="[TRACE]")
@click.option(
    "--like", type=click.Choice(MODELS), help="Instead of a trace: jobs from published statistics of this cluster."
)
@click.option("--cluster", metavar="FILE", help="The nodes, as an OpenB node list.")
@click.option("--nodes", type=click.IntRange(1, 200_000), help="The number of nodes, all alike.")
@click.option("--gpus", type=click.IntRange(1, 128), default=8, show_default=True, help="GPUs on each of these nodes.")
@click.option(
    "--days",
    type=click.FloatRange(0, min_open=True),
    callback=finite,
    help="End after this many days [with a model: 30].",
)
@click.option(
    "--jobs", type=click.IntRange(1), help="Number of jobs [with a trace: all; with a model: 80% of the GPU time]."
)
@click.option("--min-gpus", type=click.IntRange(0), default=0, help="Leave out jobs with fewer GPUs.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the model and of the failures."
)
@click.option(
    "--mtbf-hours",
    type=click.FloatRange(0),
    callback=finite,
    help="Mean time between failures of a node; 0 for none [with a trace: 0; with a model: 1024].",
)
@click.option(
    "--repair-hours",
    type=click.FloatRange(0, min_open=True),
    callback=finite,
    default=4.0,
    show_default=True,
    help="Mean repair time of a failed node.",
)
@click.option(
    "--checkpoint-minutes",
    type=click.FloatRange(0),
    callback=finite,
    default=60.0,
    show_default=True,
    help="Time between two checkpoints; with 0 a failure loses no work.",
)
@click.option(
    "--time-limits",
    type=click.FloatRange(1),
    callback=finite,
    metavar="FACTOR",
    help="Give each job a time limit: its run time multiplied by this factor [none].",
)
@click.option(
    "--policy",
    "policies",
    default="preemptible",
    show_default=True,
    callback=_policies,
    metavar="POLICY,...",
    help="Which jobs may run on reserved nodes: strict, easy or preemptible. Several are compared side by side.",
)
@click.option(
    "--order",
    type=click.Choice(ORDERS),
    default="arrival",
    show_default=True,
    help="Order of jobs of the same priority. For fair, the trace must have users, and --restartable makes the jobs "
    "TrainingJobs, which have submitters.",
)
@click.option(
    "--restartable",
    type=click.FloatRange(0, 1),
    callback=finite,
    metavar="SHARE",
    help="Share of the jobs that are TrainingJobs with checkpoints, which the policy preemptible may backfill "
    "[with a trace: 0; with a model: 1].",
)
@click.option("--plot", multiple=True, metavar="FILE", help="Draw the results into FILE.svg or FILE.png.")
@output_option("json", "yaml")
def command(
    trace: str | None,
    like: str | None,
    cluster: str | None,
    nodes: int | None,
    gpus: int,
    days: float | None,
    jobs: int | None,
    min_gpus: int,
    seed: int,
    mtbf_hours: float | None,
    repair_hours: float,
    checkpoint_minutes: float,
    time_limits: float | None,
    policies: tuple[BackfillPolicy, ...],
    order: QueueOrder,
    restartable: float | None,
    plot: tuple[str, ...],
    output: str,
) -> int:
    """Simulate how long jobs wait, how full a cluster is, and what failures cost.

    The input is a trace (OpenB, Acme or Philly: docs/simulate.md), or jobs that are generated from published
    statistics. They run through the real scheduler in virtual time. The same input and seed give the same answer.
    """
    from muster.cli.replay.comparison import print_comparison
    from muster.cli.replay.summary import left_out_text, print_report
    from muster.sim.replay.job import with_limits, with_restartable, within
    from muster.sim.replay.published import NODE_MTBF_HOURS
    from muster.sim.replay.replay import Conditions
    from muster.sim.replay.report import summarise

    if bool(trace) == bool(like):
        raise BadInput("name a trace, or a cluster to be --like", "muster simulate --like kalos --nodes 300")
    pictures = _pictures(plot)
    if like and days is None:
        days = 30.0
    shapes = _cluster(cluster, nodes, gpus)
    if cluster:
        gpus = max(1, *(node.gpus for node in shapes))
    whole_nodes = sum(node.gpus for node in shapes) // gpus
    scale = Scale(whole_nodes, gpus, days or 0.0, jobs or 0, min_gpus)
    workload = _read(trace, scale) if trace else _made_up(like or "", scale, seed)
    workload = within(workload, shapes, least_gpus=min_gpus, days=scale.days, most=scale.jobs)
    if not workload.jobs:
        raise BadInput("there are no jobs to replay", left_out_text(workload.left_out))
    if time_limits is not None:
        workload = with_limits(workload, time_limits)
    if restartable is not None or like:
        workload = with_restartable(workload, restartable if restartable is not None else 1.0, seed)
    began = time.monotonic()
    events = plans = 0
    reports = []
    for policy in policies:
        conditions = Conditions(
            seed=seed,
            days=scale.days,
            mtbf_hours=mtbf_hours if mtbf_hours is not None else NODE_MTBF_HOURS if like else 0.0,
            repair_hours=repair_hours,
            checkpoint_minutes=checkpoint_minutes,
            policy=policy,
            order=order,
        )
        outcome = _replayed(shapes, workload, conditions)
        events, plans = events + outcome.events, plans + outcome.plans
        reports.append(summarise(workload, len(shapes), conditions, outcome))
    for path in pictures:
        _draw(reports, path)
    if output:
        import msgspec

        data = msgspec.to_builtins(reports)
        print_data(data[0] if len(reports) == 1 else {"reports": data}, output)
    else:
        if len(reports) == 1:
            print_report(reports[0])
        else:
            print_comparison(reports)
        note(f"{events:,} events and {plans:,} plans in {duration(time.monotonic() - began)}")
    return ExitCode.DONE


def _replayed(shapes: Sequence[NodeShape], workload: Workload, conditions: Conditions) -> Outcome:
    from muster.sim.replay.replay import Replay
    from muster.sim.replay.room import InvariantBroken

    progress = _progress(conditions.policy, len(workload.jobs))
    try:
        return Replay(shapes, workload.jobs, conditions, progress=progress).run()
    except InvariantBroken as error:
        raise CliError(f"the scheduler broke a rule: {error}", "this is a bug of Muster; please report it") from error
    finally:
        if progress is not None:
            click.echo("\r\x1b[K", file=unguarded(sys.stderr), nl=False)


def _cluster(file: str | None, nodes: int | None, gpus: int) -> Sequence[NodeShape]:
    from muster.sim.replay.job import uniform_nodes
    from muster.sim.replay.openb import read_nodes
    from muster.sim.replay.table import BadTrace

    if bool(file) == bool(nodes):
        raise BadInput("say how large the cluster is: --nodes N, or --cluster FILE", "--nodes 300 --gpus 8")
    if nodes:
        return uniform_nodes(nodes, gpus)
    try:
        return read_nodes(Path(file or ""))
    except BadTrace as error:
        raise BadInput(str(error)) from error


def _read(trace: str, scale: Scale) -> Workload:
    from muster.sim.replay.table import BadTrace
    from muster.sim.replay.traces import read_trace

    try:
        return read_trace(Path(trace), scale.gpus)
    except BadTrace as error:
        raise BadInput(str(error)) from error


def _made_up(like: str, scale: Scale, seed: int) -> Workload:
    from muster.sim.replay.arrivals import made_up

    try:
        return made_up(
            like,
            nodes=scale.nodes,
            gpus=scale.gpus,
            days=scale.days,
            jobs=scale.jobs,
            least_gpus=scale.min_gpus,
            seed=seed,
        )
    except ValueError as error:
        raise BadInput(str(error), "a smaller --min-gpus, or more --nodes") from error


def _pictures(plot: Sequence[str]) -> list[Path]:
    """Check the options of the picture before the replay."""
    import importlib.util

    from muster.sim.replay.plots import FORMATS

    paths = [Path(name) for name in plot]
    for path in paths:
        if path.suffix.lower() not in FORMATS:
            raise BadInput(f"--plot {path}: the name must end in {' or '.join(FORMATS)}")
        if not path.absolute().parent.is_dir():
            raise BadInput(f"--plot {path}: there is no folder {path.absolute().parent}")
    if paths and importlib.util.find_spec("matplotlib") is None:
        raise BadInput("--plot needs matplotlib, which is not installed", "pip install 'muster[plots]'")
    return paths


def _draw(reports: Sequence[Report], path: Path) -> None:
    from muster.sim.replay.plots import draw

    try:
        draw(reports, path)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror or error}") from error
    note(f"drew {path}")


def _progress(policy: str, jobs: int) -> Callable[[float, int], None] | None:
    """Return a callback that shows progress on a terminal; None without a terminal."""
    if not (interactive() and sys.stderr.isatty()):
        return None

    def show(now_s: float, came: int) -> None:
        click.echo(
            f"\r{policy}: day {now_s / 86400:.1f}, {came:,} of {jobs:,} jobs submitted ",
            file=unguarded(sys.stderr),
            nl=False,
        )

    return show
