"""Creates a TrainingJob manifest from a script and flags, or from a file."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from muster.api.load import ManifestError, load_training_job
from muster.api.names import API_VERSION, JOB_NAME_MAX
from muster.api.training_job import TrainingJob
from muster.api.validate import schema_problem, validate
from muster.cli.errors import BadInput
from muster.kube.objects.struct import from_dict, to_dict

_SUFFIX = (
    "bcdfghjklmnpqrstvwxz2456789"  # Kubernetes' own alphabet for generated names, without vowels and similar characters
)


class Script(NamedTuple):
    """A script and the folder that is copied with it.

    Attributes:
        command: the command of each rank, relative to that folder.
        folder: the folder to ship.
    """

    command: list[str]
    folder: Path


def find_script(script: str, code: str) -> Script:
    """Find the script and decide how to run it.

    Args:
        script: the path as typed.
        code: the folder to ship, `none` for a script in the image, or "" for the working folder.

    Raises:
        BadInput: the script does not exist, or is not in the folder that is shipped.
    """
    if code == "none":
        return Script(_command(script), Path.cwd())
    path = Path(script)
    _check_name(script)
    _check_name(code or ".")
    if path.is_dir():
        raise BadInput(f"{script} is a folder", f"name the script in it, such as {script.rstrip('/')}/train.py")
    if not path.is_file():
        near = sorted(each.name for each in Path.cwd().glob("*.py"))[:5]
        raise BadInput(
            f"there is no script {script}",
            f"scripts here: {', '.join(near)}" if near else "for a program that is in the image, use --code none",
        )
    folder = Path(code) if code else Path.cwd()
    if not folder.is_dir():
        raise BadInput(f"--code {code} is not a folder", "name a folder, or none")
    real = path.resolve()
    if not real.is_relative_to(folder.resolve()):
        if code:
            raise BadInput(f"{script} does not lie in {code}", f"use --code {path.parent}")
        folder = path.parent
    return Script(_command(str(real.relative_to(folder.resolve()))), folder)


def _check_name(path: str) -> None:
    """Refuse a text that cannot be a file name. Raises BadInput."""
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # the caller reports it
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _command(script: str) -> list[str]:
    match Path(script).suffix:
        case ".py":
            return ["python3", script]
        case ".sh":
            return ["bash", script]
        case _:
            return [script if "/" in script else f"./{script}"]


def name_for(script: str) -> str:
    """Make a name for a job from the name of its script: `train.py` becomes `train`."""
    stem = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower())[:JOB_NAME_MAX].strip("-")
    return stem or "job"


def with_suffix(name: str) -> str:
    """Adds a random suffix to the name, so that it is unlikely to be taken: `train` becomes `train-x7k2q`."""
    suffix = "".join(secrets.choice(_SUFFIX) for _ in range(5))
    return f"{name[: JOB_NAME_MAX - 6].rstrip('-')}-{suffix}"


def seconds(text: str) -> int:
    """Parse a length of time such as `90`, `90s`, `30m`, `2h`, `1h30m` or `3d`, in seconds; raises BadInput."""
    parts = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text.strip(), re.ASCII)
    total = (
        sum(int(part) * unit for part, unit in zip(parts.groups(), (86400, 3600, 60, 1), strict=True) if part)
        if parts
        else 0
    )
    if total <= 0:
        raise BadInput(f"'{text}' is not a length of time", "write it like 90s, 30m, 2h, 1h30m or 3d")
    return total


def stall(after: str | None, steps: int | None, first: str | None, action: str | None) -> dict[str, Any] | None:
    """Convert the flags about stalls to spec.stall; None without such a flag. Raises BadInput."""
    given = {
        "afterSeconds": seconds(after) if after else None,
        "stepTimes": steps,
        "firstStepSeconds": seconds(first) if first else None,
        "action": action.capitalize() if action else None,
    }
    return {name: value for name, value in given.items() if value is not None} or None


def environment(pairs: tuple[str, ...]) -> list[dict[str, str]]:
    """Convert `NAME=value` pairs to env entries. `NAME` alone takes the value from this process. Raises BadInput."""
    entries = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals and name not in os.environ:
            raise BadInput(f"--env {pair}: {name} is not set here", f"write --env {name}=VALUE")
        entries.append({"name": name, "value": value if equals else os.environ[name]})
    return entries


def rdma(text: str) -> dict[str, Any]:
    """Convert a text such as `rdma/hca=8` to spec.rdma. Raises BadInput."""
    found = re.fullmatch(r"([^=]+)(?:=([0-9]{1,9}))?", text)
    if found is None:
        raise BadInput(f"--rdma {text} is not understood", "write RESOURCE=COUNT, such as rdma/hca=8")
    return {"resource": found[1], "count": int(found[2] or 1)}


def new_manifest(name: str, namespace: str) -> dict[str, Any]:
    """Return an empty TrainingJob."""
    return {
        "apiVersion": API_VERSION,
        "kind": TrainingJob.RESOURCE.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {},
    }


def read_manifest(file: str) -> dict[str, Any]:
    """Read a TrainingJob from a file, or from stdin for `-`. Raises BadInput with each error and its line."""
    import sys

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None
    source = "<stdin>" if file == "-" else file
    try:
        manifest = to_dict(load_training_job(text, source))
    except ManifestError as error:
        raise BadInput(str(error), "docs/reference/trainingjob.md lists every field") from None
    del manifest["status"]  # a file is read as it is
    return manifest


def checked(manifest: dict[str, Any]) -> TrainingJob:
    """Convert the manifest to a TrainingJob. Raises BadInput with all its errors."""
    try:
        job = from_dict(manifest, TrainingJob)
    except msgspec.ValidationError as error:
        raise BadInput(str(schema_problem(error))) from None
    problems = validate(job)
    if problems:
        raise BadInput("\n".join(map(str, problems)))
    return job
