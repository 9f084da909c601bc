"""`muster run`: creates a job from a script or from a TrainingJob file."""

from __future__ import annotations

import asyncio
import copy
import difflib
import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from muster.api.store_url import is_url, local_folder
from muster.api.words import counted
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.jobs.wait_timeout import check_waits, not_ended, timeout_option, within
from muster.cli.names import not_empty
from muster.cli.output import note, output_option, print_data
from muster.cli.program import prefix
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.api.training_job import TrainingJob
    from muster.cli.jobs.archive import Archive
    from muster.cli.target import Cluster
    from muster.kube.client import Client

_NAMES_TRIED = 5


class Parcel(NamedTuple):
    """The job to create.

    Attributes:
        manifest: the job, before `spec.code` is set.
        archive: the packed folder; None if no code is shipped.
        store: how the archive is shipped.
        named: whether the user chose the name.
        command: what the user typed.
    """

    manifest: dict[str, Any]
    archive: Archive | None
    store: str
    named: bool
    command: tuple[str, ...]


_TYPED = "muster.run.typed"
LAUNCHERS = ("mpi", "torchrun", "none")


class _Run(click.Command):
    """Gives a hint if an unknown option was probably meant for the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does.

        For an unknown option after the script, the error explains how to pass it to the script.
        """
        given = list(args)
        ctx.meta[_TYPED] = (ctx.info_name or "run", *given)
        _check_namespace(given)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = self._passed_on(ctx, given, error.option_name)
            if not hint:
                raise
            raise BadInput(f"no such option: {error.option_name}", hint) from None

    def _passed_on(self, ctx: click.Context, args: list[str], unknown: str) -> str:
        """The hint for an unknown option after the script; "" where no script comes before it."""
        names = (arg[:2] if len(unknown) == 2 else arg.partition("=")[0] for arg in args)
        at = next((i for i, name in enumerate(names) if name == unknown), 0)
        before, _, _ = self.make_parser(ctx).parse_args(args[:at])
        script = before.get("script")
        if not isinstance(script, str):
            return ""
        ours = {name for option in self.get_params(ctx) for name in option.opts}
        theirs = itertools.takewhile(lambda arg: arg != "--" and arg.partition("=")[0] not in ours, args[at:])
        earlier = before.get("args")
        more = shlex.join([*(earlier if isinstance(earlier, tuple) else ()), *theirs])
        meant = difflib.get_close_matches(unknown.strip("-"), [name.strip("-") for name in ours], n=1)
        near = f"did you mean --{meant[0]}? " if meant else ""
        return f"{near}options of the script go after --: {ctx.command_path} {shlex.quote(script)} -- {more}"


def _check_namespace(args: Sequence[str]) -> None:
    """Refuse `-n 4`: in earlier versions it set the number of nodes. --namespace accepts such a name."""
    ours = list(itertools.takewhile(lambda arg: arg != "--", args))
    pairs = itertools.zip_longest(ours, ours[1:], fillvalue="")
    number = next((after if arg == "-n" else arg[2:].lstrip("=") for arg, after in pairs if arg[:2] == "-n"), "")
    if number.isdigit():
        raise BadInput(
            f"-n {number} names a namespace, as everywhere; nodes are --nodes {number} or -N {number}",
            f"for a namespace of this name write --namespace {number}",
        )


@click.command(cls=_Run, context_settings={"ignore_unknown_options": False})
@click.argument("script", required=False)
@click.argument("args", nargs=-1)
@click.option(
    "-f",
    "--file",
    metavar="FILE",
    callback=not_empty,
    help="A TrainingJob manifest instead of a script; - reads stdin.",
)
@click.option("--name", callback=not_empty, help="Name of the job (the script's name, with a suffix if it is taken).")
@click.option("-N", "--nodes", type=click.IntRange(1, 20_000), help="Number of nodes (1).")
@click.option(
    "--min-nodes",
    type=click.IntRange(1, 20_000),
    help="Smallest number of nodes with which the job continues after it lost nodes (by default it waits for a spare).",
)
@click.option("--gpus", type=click.IntRange(0, 64), help="GPUs to use on each node (all).")
@click.option("--share-nodes", is_flag=True, help="Let other jobs use the rest of the job's nodes.")
@click.option(
    "--ranks-per-node",
    type=click.IntRange(1, 256),
    help="Processes on each node (one per GPU; on an embedded cluster without --gpus one).",
)
@click.option("--launcher", type=click.Choice(LAUNCHERS), help="How ranks start (mpi).")
@click.option("--image", callback=not_empty, help="Image of the workers; an embedded cluster needs none.")
@click.option(
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    callback=not_empty,
    help="Environment variable; NAME alone passes your value.",
)
@click.option(
    "--data", metavar="URL|DIR", callback=not_empty, help="The training data: s3://, gs:// or az:// URL, or a folder."
)
@click.option(
    "--bad-shards",
    type=click.Choice(("fail", "skip")),
    help="What happens if a shard of the data is damaged or cannot be read (fail).",
)
@click.option(
    "--checkpoint",
    metavar="DIR|URL",
    callback=not_empty,
    help="Keep checkpoints below this folder or URL, in a folder of the job's own.",
)
@click.option(
    "--store-endpoint",
    metavar="URL",
    callback=not_empty,
    help="Service of the object store for --data and --checkpoint, such as http://minio:9000.",
)
@click.option("--store-region", metavar="NAME", callback=not_empty, help="Region of their buckets.")
@click.option(
    "--store-secret",
    metavar="NAME",
    callback=not_empty,
    help="Secret with their credentials (by default the identity of the pods).",
)
@click.option(
    "--from-checkpoint",
    metavar="JOB|PATH",
    callback=not_empty,
    help="Start from the newest confirmed checkpoint of another job (also a deleted one), or from the one at PATH.",
)
@click.option(
    "--time-limit", metavar="TIME", callback=not_empty, help="Fail the job after this long, such as 90m or 2h."
)
@click.option(
    "--stall-after", metavar="TIME", callback=not_empty, help="The job is stalled after this long without a step (5m)."
)
@click.option("--stall-steps", type=click.IntRange(1), help="And also longer than this many median step times (10).")
@click.option(
    "--stall-first",
    metavar="TIME",
    callback=not_empty,
    help="The job is stalled if it reports no step for this long after its ranks began.",
)
@click.option(
    "--on-stall",
    type=click.Choice(("report", "restart")),
    help="Report a stall only, or also restart the job (report).",
)
@click.option("--backoff-limit", type=click.IntRange(0, 1000), help="Restarts after the program's own faults (3).")
@click.option("--priority", type=int, help="Order in the queue; a larger number goes first.")
@click.option("--borrow", is_flag=True, help="Use other teams' nodes too, until they need them.")
@click.option(
    "--restartable/--not-restartable",
    default=None,
    help="Whether the job may start on nodes reserved for a job before it, and leave when that one can start. "
    "Default: once it has saved a checkpoint, or if it is expected to end in time.",
)
@click.option(
    "--code", metavar="DIR", callback=not_empty, help="Folder to copy to the workers (the working folder), or none."
)
@click.option(
    "--code-store",
    metavar="WHERE",
    callback=not_empty,
    help="Where to store the code: configmap, a shared folder, or s3://BUCKET/PREFIX.",
)
@click.option("--shm", metavar="SIZE", callback=not_empty, help="Size of /dev/shm, such as 64Gi (half of the memory).")
@click.option(
    "--rdma", metavar="RESOURCE=COUNT", callback=not_empty, help="RDMA devices on each node, such as rdma/hca=8."
)
@click.option("--ipc-lock", is_flag=True, help="Let ranks lock memory, which RDMA needs.")
@click.option("--host-network", is_flag=True, help="Use the node's own network.")
@click.option("--dry-run", is_flag=True, help="Print the manifest and create nothing.")
@click.option(
    "--follow", is_flag=True, help="Watch the job and the output of its ranks until it ends; exit with its result."
)
@click.option("--wait", is_flag=True, help="Wait silently until the job ends; exit with its result.")
@timeout_option("--wait", "--follow")
@output_option("json", "yaml")
@cluster_options()
def command(
    script: str | None,
    args: tuple[str, ...],
    file: str | None,
    dry_run: bool,
    follow: bool,
    wait: bool,
    timeout_s: int | None,
    output: str,
    target: Target,
    **flags: Any,
) -> int:
    """Run SCRIPT, or the TrainingJob in FILE, on a gang of nodes.

    The working folder is copied to the workers. Arguments after -- are passed to the script:
    muster run train.py --nodes 4 --gpus 8 -- --lr 0.1
    """
    if bool(script) == bool(file):
        raise BadInput("name a script, or a manifest with --file", "muster run train.py, or muster run -f job.yaml")
    if follow and wait:
        raise BadInput("--follow and --wait exclude each other")
    check_waits(timeout_s, follow or wait, "--wait", "--follow")
    cluster = _cluster(target, dry_run)
    namespace = target.namespace or (cluster.namespace if cluster else "default")
    manifest, archive = build(script, args, file, namespace, flags, cluster)
    for text in archive.notes if archive else ():
        note(text)
    if dry_run:
        from muster.cli.jobs.manifest import checked

        checked(manifest)
        print_data(manifest, output or "yaml")
        if archive:
            note(
                f"{counted(archive.files, 'file')} of the folder would travel with it; this manifest does not hold them"
            )
        return ExitCode.DONE
    assert cluster is not None  # only a dry run has no image
    typed = click.get_current_context().meta.get(_TYPED, ())
    parcel = Parcel(manifest, archive, flags["code_store"] or "", bool(file or flags["name"]), (prefix(), *typed))
    return asyncio.run(_run(cluster, parcel, follow, wait, timeout_s, output))


def _cluster(target: Target, dry_run: bool) -> Cluster | None:
    try:
        return resolve(target)
    except CliError:
        if dry_run:
            return None
        raise


def build(
    script: str | None,
    args: tuple[str, ...],
    file: str | None,
    namespace: str,
    flags: dict[str, Any],
    cluster: Cluster | None,
) -> tuple[dict[str, Any], Any]:
    """Return the manifest, before its code is stored, and the packed folder (None without code).

    Raises:
        BadInput: an option or the manifest is not valid. Nothing was created.
    """
    from muster.cli.jobs import manifest as manifests
    from muster.cli.jobs.archive import pack
    from muster.cli.jobs.code_store import check_store
    from muster.cli.jobs.stores import data_location, set_stores

    check_store(flags["code_store"] or "")
    folder: Path | None = None
    if file:
        manifest = manifests.read_manifest(file)
        manifest["metadata"]["name"] = flags["name"] or manifest["metadata"]["name"]
        manifest["metadata"].setdefault("namespace", namespace)
        folder = Path(flags["code"]) if flags["code"] not in (None, "none") else None
        if args:
            manifest["spec"]["args"] = list(args)
    else:
        assert script is not None
        found = manifests.find_script(script, flags["code"] or "")
        manifest = manifests.new_manifest(flags["name"] or manifests.name_for(script), namespace)
        manifest["spec"] |= {"replicas": 1, "command": found.command, **({"args": list(args)} if args else {})}
        folder = None if flags["code"] == "none" else found.folder
    spec = manifest["spec"]
    spec |= _spec_from(flags, cluster)
    set_stores(spec, flags)
    if flags["from_checkpoint"] is not None:
        from muster.cli.jobs.checkpoints import source

        if not (spec.get("checkpoint") or {}).get("path"):
            raise BadInput("--from-checkpoint needs --checkpoint", "it names where this job keeps its own checkpoints")
        spec["checkpoint"]["from"] = source(flags["from_checkpoint"], local=bool(cluster and cluster.embedded))
    if cluster and cluster.embedded:
        from muster.embedded.programs import THIS_MACHINE

        spec.setdefault("image", THIS_MACHINE)
        if not file and flags["gpus"] is None:
            spec.setdefault("ranksPerNode", 1)  # its nodes declare GPUs that may not exist
    if not spec.get("image") and not file:
        raise BadInput("--image is missing: which image do the workers run?", "any image with Python 3.8 in it")
    manifests.checked(manifest)
    folders = [local_folder((spec.get("checkpoint") or {}).get("path", "")), local_folder(data_location(spec))]
    if folder is None:
        return manifest, None
    # on another cluster, a relative path is relative to the code there; a local folder of that name is a trial run's
    return manifest, pack(folder, [folder / each for each in folders if each and not is_url(each)])


def _spec_from(flags: dict[str, Any], cluster: Cluster | None) -> dict[str, Any]:
    """Return the fields of the spec that the flags set."""
    from muster.cli.jobs import manifest as manifests
    from muster.cli.jobs.stores import data_url

    data, checkpoint = flags["data"], flags["checkpoint"]
    if checkpoint and cluster and cluster.embedded and "://" not in checkpoint:
        checkpoint = str(Path(checkpoint).absolute())
    values = {
        "replicas": flags["nodes"],
        "minReplicas": flags["min_nodes"],
        "noSpare": "Shrink" if flags["min_nodes"] is not None else None,
        "gpusPerNode": flags["gpus"],
        "nodeSharing": "Shared" if flags["share_nodes"] else None,
        "ranksPerNode": flags["ranks_per_node"],
        "launcher": flags["launcher"],
        "image": flags["image"],
        "env": manifests.environment(flags["env"]) or None,
        "data": {"url": data_url(data, local=bool(cluster and cluster.embedded))} if data else None,
        "checkpoint": {"path": checkpoint} if checkpoint else None,
        "timeLimitSeconds": manifests.seconds(flags["time_limit"]) if flags["time_limit"] else None,
        "stall": manifests.stall(flags["stall_after"], flags["stall_steps"], flags["stall_first"], flags["on_stall"]),
        "backoffLimit": flags["backoff_limit"],
        "priority": flags["priority"],
        "borrow": flags["borrow"] or None,
        "restartable": flags["restartable"],
        "sharedMemory": flags["shm"],
        "rdma": manifests.rdma(flags["rdma"]) if flags["rdma"] else None,
        "ipcLock": flags["ipc_lock"] or None,
        "hostNetwork": flags["host_network"] or None,
    }
    return {name: value for name, value in values.items() if value is not None}


async def _run(cluster: Cluster, parcel: Parcel, follow: bool, wait: bool, timeout_s: int | None, output: str) -> int:
    from muster.cli.jobs.describe import as_data
    from muster.cli.jobs.follow import follow as follow_job
    from muster.cli.jobs.follow import report_end
    from muster.cli.jobs.follow import wait as wait_for_job
    from muster.cli.jobs.interrupt import detachable

    async with cluster.client() as client:
        if parcel.manifest["spec"].get("borrow"):
            await check_lending(client, parcel.manifest["spec"])
        from muster.cli.jobs.checkpoints import check_source, notes_on_others, of_others
        from muster.cli.jobs.stores import check_secrets

        await check_secrets(client, parcel.manifest)
        starts = await check_source(client, parcel.manifest, local=bool(cluster.embedded))
        job = await create(client, parcel)
        if output and not (follow or wait):
            print_data(as_data(job), output)
        _announce(job, cluster, parcel.archive)
        if starts:
            note(starts)
        others = of_others(job, local=bool(cluster.embedded))
        for text in notes_on_others(job, others, parcel.command) if others else ():
            note(text)
        if cluster.embedded:
            await _warn_if_too_large(client, job)
        if not (follow or wait):
            note(f"watch it: {prefix()} status {job.name} --follow")
            return ExitCode.DONE
        with detachable(job.name, prefix()):
            async with within(timeout_s, *not_ended(job.name)):
                if follow:
                    ended = await follow_job(client, job.namespace, job.name, stdout_is_data=bool(output), output=True)
                else:
                    ended = await wait_for_job(client, job.namespace, job.name)
        if output:
            print_data(as_data(ended), output)
        return report_end(ended)


async def check_lending(client: Client, spec: dict[str, Any]) -> None:
    """Before the job is created, check whether its pods would be refused because teams are off.

    The check is skipped if the user may not read PriorityClasses.

    Raises:
        CliError: the cluster has no teams.
    """
    from muster.api.names import BORROWER_CLASS
    from muster.kube.errors import Forbidden, NotFound
    from muster.kube.objects.scheduling import PriorityClass

    name = spec.get("priorityClassName") or BORROWER_CLASS
    try:
        await client.get(PriorityClass, name)
    except Forbidden:
        return
    except NotFound:
        raise CliError(
            f"nodes cannot be borrowed: this cluster has no PriorityClass {name}",
            "run it without --borrow (spec.borrow), or have teams switched on: docs/teams.md, Borrowing",
            ExitCode.NOT_FOUND,
        ) from None


async def _warn_if_too_large(client: Client, job: TrainingJob) -> None:
    """Warn if the cluster has fewer nodes than the job needs. Slots of a gang never share a node."""
    from muster.kube.objects.node import Node

    nodes = (await client.list(Node)).items
    spec, wanted = job.spec, job.spec.gpus_per_node or 0
    fit = sum(int(node.status.allocatable.get(spec.gpu_resource, 0)) >= wanted for node in nodes)
    if fit < spec.replicas:
        gpus = f" with {counted(wanted, 'GPU')}" if wanted else ""
        note(f"no room for it now: the cluster has {counted(fit, 'node')}{gpus}; {prefix()} explain {job.name}")


async def create(client: Client, parcel: Parcel) -> TrainingJob:
    """Create the job; if the name is taken and the user did not choose it, use another one.

    Raises:
        NameTakenError: the name that the user chose is taken.
        CliError: the code cannot be stored.
    """
    from muster.cli.jobs import manifest as manifests
    from muster.cli.jobs.code_store import deliver
    from muster.cli.jobs.submit import NameTakenError, submit, taken

    base, namespace = parcel.manifest["metadata"]["name"], parcel.manifest["metadata"]["namespace"]
    name = manifests.with_suffix(base) if not parcel.named and await taken(client, base, namespace) else base
    tries = 1 if parcel.named else _NAMES_TRIED
    while True:
        manifest = copy.deepcopy(parcel.manifest)
        manifest["metadata"]["name"] = name
        code = None
        if parcel.archive:
            code = deliver(parcel.store, parcel.archive, name, namespace, manifest["spec"])
        try:
            return await submit(client, manifests.checked(manifest), code)
        except NameTakenError:  # another job took the name first
            tries -= 1
            if not tries:
                raise
            name = manifests.with_suffix(base)


def _announce(job: TrainingJob, cluster: Cluster, archive: Archive | None) -> None:
    spec = job.spec
    gpus = f" x {spec.gpus_per_node} GPUs" if spec.gpus_per_node else ""
    nodes = f"{counted(spec.replicas, 'node')}{gpus}"
    code = f"; code: {counted(archive.files, 'file')}, {len(archive.data) / 1000:.1f} KB" if archive else ""
    note(f"training job '{job.name}' created on {cluster.description}, namespace {job.namespace}: {nodes}{code}")
