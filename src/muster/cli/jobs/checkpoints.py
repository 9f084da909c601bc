"""Messages of `muster run` about checkpoints: the one from which a job starts, and other jobs' checkpoints."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.api.checkpoint_dir import own_folder
from muster.api.store_url import SCHEMES, is_url
from muster.api.training_job import TrainingJob
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.kube.errors import NotFound
from muster.sdk import records

if TYPE_CHECKING:
    from muster.kube.client import Client

_LISTED = 3


def source(text: str, *, local: bool) -> dict[str, str]:
    """Convert `--from-checkpoint JOB|PATH` to spec.checkpoint.from.

    A path contains a slash; a local path is made absolute.
    """
    if not text:
        raise BadInput("--from-checkpoint is empty", "name a job, or a path such as ./ckpt/train-1a2b3c4d")
    if "/" not in text and text not in (".", ".."):
        return {"job": text}
    return {"path": str(Path(text).absolute()) if local and not is_url(text) else text}


async def check_source(client: Client, job: dict[str, Any], *, local: bool) -> str:
    """Describe the checkpoint from which the job starts, as far as this machine can know; "" if the job names none.

    Args:
        client: the API server.
        job: the manifest.
        local: whether the nodes see this machine's files.

    Raises:
        CliError: the checkpoint does not exist.
    """
    checkpoint = job["spec"].get("checkpoint") or {}
    wanted, root, namespace = checkpoint.get("from"), checkpoint.get("path", ""), job["metadata"]["namespace"]
    if not wanted:
        return ""
    if wanted.get("path"):
        return _at(wanted["path"], local=local)
    name = wanted["job"]
    try:
        other = await client.get(TrainingJob, name, namespace)
    except NotFound:
        return _of_deleted(name, namespace, root, local=local)
    last = other.status.last_checkpoint
    if last is None and other.status.completion_time is not None:
        raise CliError(
            f"--from-checkpoint: job '{name}' has ended without a checkpoint that can be restored",
            f"muster checkpoints {name} says why; name a checkpoint by its path to use it nevertheless",
            ExitCode.NOT_FOUND,
        )
    if last is None:
        return f"job '{name}' has not confirmed a checkpoint yet: this job waits for its first one"
    return f"it starts from job '{name}', step {last.step}: {last.path}"


def of_others(job: TrainingJob, *, local: bool) -> list[records.Found]:
    """Return other jobs' checkpoints below the job's path.

    Those of jobs with the same name come first, the newest before older ones.

    Empty if the job names a checkpoint, or if this machine cannot read the path.
    """
    spec = job.spec.checkpoint
    if spec is None or spec.from_ is not None or not (local or spec.path.startswith("/")) or is_url(spec.path):
        return []
    return sorted(records.of_others(spec.path, job.uid), key=lambda each: each.record.job != job.name)


def notes_on_others(job: TrainingJob, others: Sequence[records.Found], command: Sequence[str]) -> Iterator[str]:
    """Yield lines: where the job starts, which checkpoints it ignores, and the command that continues from those."""
    spec = job.spec.checkpoint
    assert spec is not None
    listed = "; ".join(f"{_whose(each)}, step {each.record.step}" for each in others[:_LISTED])
    more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
    yield f"it starts from the beginning, in {shown(own_folder(spec.path, job.name, job.uid))}"
    yield f"{shown(spec.path)} holds other checkpoints, which it leaves alone: {listed}{more}"
    first = others[0]
    where = os.path.dirname(first.path) if first.record.job and first.record.name == _base(first) else first.path
    program, words = command[0], list(command[1:])
    at = words.index("--") if "--" in words else len(words)
    again = [*words[:at], "--from-checkpoint", shown(where), *words[at:]]
    yield f"to continue from {_whose(first)} instead: {program} delete {job.name} && {program} {shlex.join(again)}"


def shown(path: str) -> str:
    """Return a path as the user would type it."""
    below = os.path.relpath(path) if path.startswith("/") else path
    return path if below.startswith("..") else below if "/" in below else f"./{below}"


def _base(found: records.Found) -> str:
    return os.path.basename(found.path)


def _whose(found: records.Found) -> str:
    return f"job {found.record.job}" if found.record.job else "a program without a job"


def _at(path: str, *, local: bool) -> str:
    if is_url(path):
        return f"it starts from {path}, which Muster hands over as it is"
    found = records.at(path) if local or path.startswith("/") else None
    if found is not None:
        whose = f" of job '{found.record.job}'" if found.record.job else ""
        return f"it starts from the checkpoint{whose} of step {found.record.step}: {shown(found.path)}"
    if local:
        raise CliError(
            f"--from-checkpoint: there is no checkpoint at {path}",
            "name a checkpoint, or a folder with confirmed ones",
            ExitCode.NOT_FOUND,
        )
    return f"it starts from {path}, which its nodes look for; if they do not see it, the job fails"


def _of_deleted(name: str, namespace: str, root: str, *, local: bool) -> str:
    seen = (local or root.startswith("/")) and not is_url(root) and os.path.isdir(root)
    found = records.of_job(root, namespace, name) if seen else None
    if found is not None:
        return f"it starts from job '{name}', which was deleted, step {found.record.step}: {shown(found.path)}"
    if (local and not is_url(root)) or (is_url(root) and root.partition("://")[0] not in SCHEMES):
        others = ", ".join(sorted({each.record.job for each in records.all_below(root) if each.record.job}))
        near = f"jobs with checkpoints in {shown(root)}: {others}" if others else "name its folder or URL instead"
        folder = f"; for the folder write --from-checkpoint ./{name}" if os.path.isdir(name) else ""
        raise CliError(
            f"--from-checkpoint: there is no job '{name}' in namespace {namespace}, nor a confirmed checkpoint of one "
            f"below {root}",
            near + folder,
            ExitCode.NOT_FOUND,
        )
    return (
        f"there is no job '{name}' now: the nodes look for its checkpoints below {root}. If they see none, the new "
        "job fails"
    )
