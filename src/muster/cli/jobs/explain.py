"""`muster explain`: explains why a job waits, and which changes would let it start."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NamedTuple

import click

from muster.api.scheduling import ORDERS, POLICIES, BackfillPolicy, QueueOrder
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.jobs.job_names import JOB_NAMES, job_argument, job_names
from muster.cli.names import NODE_NAMES
from muster.cli.output import note, output_option, print_data, say
from muster.cli.program import prefix
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from muster.api.training_job import TrainingJob
    from muster.api.training_job_status import StartForecast
    from muster.cli.target import Cluster
    from muster.kube.client import Client
    from muster.kube.objects.node import Node
    from muster.kube.objects.pod import Pod
    from muster.scheduler.config import SchedulerConfig
    from muster.scheduler.explain.dry_run import DryRun
    from muster.scheduler.explain.why_waiting import Explanation
    from muster.scheduler.gangs.gang import Gang
    from muster.scheduler.plan import Settings
    from muster.scheduler.state import ClusterState


class Changes(NamedTuple):
    """Hypothetical changes of the cluster: more nodes, fewer nodes, jobs that have ended."""

    plus_nodes: int = 0
    without_nodes: tuple[str, ...] = ()
    if_ended: tuple[str, ...] = ()


class Supposed(NamedTuple):
    """Settings of the scheduler that a dry run assumes."""

    policy: BackfillPolicy | None = None
    order: QueueOrder | None = None
    config: SchedulerConfig | None = None

    @property
    def any(self) -> bool:
        """Whether there is a dry run."""
        return any(each is not None for each in self)

    def over(self, settings: Settings) -> Settings:
        """Return the settings of the cluster with these in their place."""
        from msgspec.structs import replace

        if self.config is not None:
            settings = self.config.applied_to(settings)
        if self.policy is not None:
            settings = replace(settings, policy=self.policy, pool_policies={})
        return replace(settings, order=self.order) if self.order is not None else settings


@click.command()
@job_argument(required=False)
@click.option("-f", "--file", metavar="FILE", help="A TrainingJob that does not exist yet; - reads stdin.")
@click.option("--plus-nodes", type=click.IntRange(0, 20_000), default=0, help="Assume this many more nodes.")
@click.option(
    "--without-node", multiple=True, metavar="NODE", callback=NODE_NAMES, help="Assume that this node does not exist."
)
@click.option(
    "--if-ended",
    multiple=True,
    metavar="JOB",
    shell_complete=job_names,
    callback=JOB_NAMES,
    help="Assume that this job has ended.",
)
@click.option("--policy", type=click.Choice(POLICIES), help="Dry run: assume this backfill policy in every pool.")
@click.option("--order", type=click.Choice(ORDERS), help="Dry run: assume this order of the queue.")
@click.option(
    "--settings",
    "settings_file",
    metavar="FILE",
    help="Dry run: assume the scheduler.yaml in FILE, and print its errors; - reads stdin.",
)
@output_option("json", "yaml")
@cluster_options()
def command(
    name: str | None,
    file: str | None,
    plus_nodes: int,
    without_node: tuple[str, ...],
    if_ended: tuple[str, ...],
    policy: BackfillPolicy | None,
    order: QueueOrder | None,
    settings_file: str | None,
    output: str,
    target: Target,
) -> int:
    """Explain why the job NAME waits and what would let it run, or whether the job in FILE could be placed now.

    NAME may also be that of a Job, StatefulSet, JobSet, MPIJob, RayCluster or PodGroup whose pods Muster schedules.

    The answer is the scheduler's own decision for the present cluster, or for the cluster after the assumed changes.

    With --policy, --order or --settings, it also lists the jobs that the scheduler would start now with these settings.
    NAME is optional then. Nothing is changed.
    """
    supposed = Supposed(policy, order, _settings(settings_file) if settings_file else None)
    if (name and file) or not (name or file or supposed.any):
        raise BadInput("name a job, or a manifest with --file", "muster explain train, or muster explain -f job.yaml")
    cluster = resolve(target)
    job = _read(file, cluster.namespace) if file else None
    changes = Changes(plus_nodes, without_node, if_ended)
    explanation, dry = asyncio.run(_explain(cluster, name or "", job, changes, supposed))
    if output:
        data = explanation.data() if explanation is not None else {}
        print_data(data | {"dryRun": dry.data()} if dry is not None else data, output)
        return ExitCode.DONE
    for line in (*(explanation.lines() if explanation is not None else ()), *(dry.lines() if dry is not None else ())):
        say(line)
    return ExitCode.DONE


def _settings(file: str) -> SchedulerConfig:
    """Read a scheduler.yaml. Raises BadInput with each line that is wrong."""
    from muster.api.configtext import ConfigTextError
    from muster.cli.input_file import read_text
    from muster.scheduler.config import PAGE, parse_config

    try:
        return parse_config(read_text(file), "<stdin>" if file == "-" else file)
    except ConfigTextError as error:
        raise BadInput(f"the settings cannot be used\n{error}", f"{PAGE} describes the fields") from error


def _read(file: str, namespace: str) -> TrainingJob:
    from muster.cli.jobs import manifest as manifests

    manifest = manifests.read_manifest(file)
    manifest["metadata"].setdefault("namespace", namespace)
    return manifests.checked(manifest)


async def read_trusting(client: Client) -> str | None:
    """Return Muster's own namespace if nodes need tests; None if they do not, or the caller may not read it."""
    from muster.api.names import SYSTEM_NAMESPACE
    from muster.fleet.preflight.config import CONFIG_MAP, REQUIRED_KEY
    from muster.kube.errors import ApiError
    from muster.kube.objects.core import ConfigMap

    try:
        listed = await client.list(ConfigMap, SYSTEM_NAMESPACE, field_selector=f"metadata.name={CONFIG_MAP}")
    except ApiError:
        return None
    required = any(config.data.get(REQUIRED_KEY) == "true" for config in listed.items)
    return SYSTEM_NAMESPACE if required else None


async def _read_settings(client: Client, team_key: str, trusting: str | None) -> Settings:
    """Return the settings of the scheduler, as the ConfigMap configures them. Print a note if they are not known."""
    from muster.api.names import SYSTEM_NAMESPACE
    from muster.kube.errors import ApiError, BadConfig
    from muster.kube.objects.core import ConfigMap
    from muster.scheduler.config import CONFIG_MAP, read_config
    from muster.scheduler.plan import Settings

    settings = Settings(team_key=team_key, preflight_required=trusting is not None)
    try:
        listed = await client.list(ConfigMap, SYSTEM_NAMESPACE, field_selector=f"metadata.name={CONFIG_MAP}")
        config = read_config(listed.items[0] if listed.items else None)
    except ApiError:
        note(f"cannot read ConfigMap {CONFIG_MAP}; assuming its defaults")
    except BadConfig as error:
        note(
            f"The text of ConfigMap {CONFIG_MAP} in the cluster is not valid. The scheduler uses the settings from "
            f"before it, which are not known here; this command assumes the defaults. Errors in the ConfigMap:\n{error}"
        )
    else:
        return config.applied_to(settings) if config is not None else settings
    return settings


async def _explain(
    cluster: Cluster, name: str, job: TrainingJob | None, changes: Changes, supposed: Supposed
) -> tuple[Explanation | None, DryRun | None]:
    """Return the explanation of the job, if there is one, and of the settings that the user assumes."""
    from muster.cli.teams.team_key import read_team_key
    from muster.kube.objects.node import Node
    from muster.scheduler.explain.dry_run import dry_run
    from muster.scheduler.explain.hypothetical import suppose_placed
    from muster.scheduler.explain.loading import load_state
    from muster.scheduler.explain.why_waiting import Explanation, explain
    from muster.scheduler.queue.fair import FairOrder

    namespace = job.namespace if job else cluster.namespace
    async with cluster.client() as client:
        team_key, trusting = await read_team_key(client), await read_trusting(client)
        settings = await _read_settings(client, team_key, trusting)
        state = await load_state(client, team_key, trusting)
        now = time.time()
        _take_away(state, changes, namespace, now)
        found: Gang | Explanation | None = None
        if name:
            found = await _find(client, state, namespace, name, now)
        if found is None and (name or job):
            wanted = job or await _get(client, namespace, name)
            found = _supposed(state, wanted, now, team_key, (await client.list_all(Node)).items)
        changed = changes != Changes()
        waits = name and not changed and not supposed.any and not isinstance(found, Explanation)
        forecast = await _read_forecast(client, namespace, name) if waits else None
    in_force, dry = supposed.over(settings), None
    if supposed.any:
        dry = dry_run(state, in_force, settings, now)
    else:
        state.snapshot(now)
        FairOrder().apply_all(state, settings, now)
    if found is None or isinstance(found, Explanation):
        return found, dry
    gang = found
    _add(state, gang, changes)
    if changed:
        suppose_placed(state, gang, now=now, settings=in_force)
    explanation = explain(state.snapshot(), gang, now=now, supposed=changed, settings=in_force)
    return _with_forecast(explanation, forecast), dry


async def _get(client: Client, namespace: str, name: str) -> TrainingJob:
    from muster.cli.jobs.watch import get_job

    return await get_job(client, namespace, name)


async def _read_forecast(client: Client, namespace: str, name: str) -> tuple[StartForecast, str] | None:
    """Return the estimate of the start in the job's status, and its text; users may not read the history itself."""
    from muster.cli.jobs.describe import start_text

    try:
        job = await _get(client, namespace, name)
    except CliError:  # another workload, which has no estimate
        return None
    forecast, text = job.status.start_forecast, start_text(job)
    return (forecast, text) if forecast is not None and text else None


def _with_forecast(explanation: Explanation, found: tuple[StartForecast, str] | None) -> Explanation:
    """Add the estimate, unless the time limits say the same more exactly."""
    from msgspec.structs import replace

    if found is None or not explanation.waits:
        return explanation
    forecast, text = found
    if forecast.basis == "Limits" and explanation.when is not None:
        return explanation
    return replace(explanation, forecast=forecast, expected=text)


async def _find(
    client: Client, state: ClusterState, namespace: str, name: str, now: float
) -> Gang | Explanation | None:
    """Return the gang of the job or, without such a job, of another workload of that name.

    Returns an explanation if the controller delays the job, because free room then does not matter. Returns None if
    some pods of the job are missing, for example because no controller runs or it is in shadow mode. Existing pods are
    then removed from `state`. Raises CliError.
    """
    from muster.cli.jobs.watch import get_job
    from muster.scheduler.explain.hypothetical import suppose_ended
    from muster.scheduler.explain.why_waiting import Explanation
    from muster.trainingjobs.attempts.held_back import held_back, wants_nodes

    try:
        job = await get_job(client, namespace, name)
    except CliError:
        foreign = state.snapshot().find_workload(namespace, name)
        if foreign is None:
            raise
        return foreign
    gang = state.snapshot().find(namespace, job.name)
    if not wants_nodes(job):
        stands = "stopping" if job.spec.suspend and job.status.phase != "Suspended" else job.status.phase
        hint = f"{prefix()} resume {job.name} lets it continue" if job.spec.suspend else ""
        raise CliError(f"'{job.name}' wants no nodes: it is {stands}", hint, ExitCode.CONFLICT)
    why = held_back(job, complete=gang is not None and gang.complete, now=now)
    if why is not None:
        return Explanation(job.key, True, why.reason, why.message)
    if gang is not None and _is_being_made(gang):
        suppose_ended(state, gang, now=now)
        return None
    return gang


def _is_being_made(gang: Gang) -> bool:
    """Returns whether the controller is still creating the job's first pods."""
    return gang.placement is None and len(gang.current) < gang.wanted


def _supposed(
    state: ClusterState, job: TrainingJob, now: float, team_key: str, nodes: Sequence[Node]
) -> Gang | Explanation:
    """Return the gang that the job's pods will form, or an explanation if its GPUs per node are not known.

    It uses the spec that the controller uses, so edits that the controller ignores are ignored here too.
    """
    from msgspec.structs import replace

    from muster.api.fixed_spec import effective
    from muster.scheduler.explain.why_waiting import Explanation, suppose
    from muster.trainingjobs.pods.node_use import gpu_counts, node_use
    from muster.trainingjobs.snapshot import Wait

    job = effective(job).job
    use = node_use(job, gpu_counts(job, nodes, team_key))
    if isinstance(use, Wait):
        return Explanation(job.key, True, use.reason, use.message)
    job = replace(job, status=replace(job.status, node_use=use))
    return suppose(state, _pod_of(job, team_key), job.spec.replicas, now=now)


def _take_away(state: ClusterState, changes: Changes, namespace: str, now: float) -> None:
    """Remove the nodes and jobs that the user assumes gone. Raises CliError if one does not exist."""
    from muster.scheduler.explain.hypothetical import suppose_ended

    known = state.snapshot()
    for node in changes.without_nodes:
        if node not in known.nodes:
            raise CliError(f"no node '{node}'", "kubectl get nodes lists them", ExitCode.NOT_FOUND)
        state.remove_node(node)
    for name in changes.if_ended:
        other = known.find(namespace, name)
        if other is None:
            raise CliError(f"no training job '{name}' holds nodes in namespace {namespace}", "", ExitCode.NOT_FOUND)
        suppose_ended(state, other, now=now)


def _add(state: ClusterState, gang: Gang, changes: Changes) -> None:
    """Add the assumed nodes, as copies of an existing node. Raises CliError if no existing node fits the job."""
    from muster.scheduler.explain.hypothetical import suppose_nodes

    if changes.plus_nodes and gang.pending and not suppose_nodes(state, gang, changes.plus_nodes):
        raise CliError(
            f"no node takes a pod of '{gang.name}', even an empty one: more nodes like these would not help",
            "leave out --plus-nodes to see what is in the way",
            ExitCode.CONFLICT,
        )


def _pod_of(job: TrainingJob, team_key: str) -> Pod:
    """Return a pod of a job that does not exist yet, with the job's name."""
    from muster.kube.objects.pod import Pod
    from muster.kube.objects.struct import from_dict
    from muster.trainingjobs.pods.pod import PodSettings, build_pod

    settings = PodSettings(url="https://none", ca_pem="", muster_image="none", team_key=team_key)
    made = build_pod(job, 0, 1, (), settings)
    made["metadata"]["name"] = job.name
    return from_dict(made, Pod)
