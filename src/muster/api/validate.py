"""Checks a TrainingJob beyond its schema; the messages say what to change."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from muster.api import store_url
from muster.api.names import JOB_NAME_MAX, NAMESPACE_MAX, WORKER_CONTAINER
from muster.api.training_job import (
    DNS_LABEL,
    QUANTITY,
    REGION,
    SHA256,
    CheckpointSpec,
    CodeSource,
    DataSpec,
    TrainingJob,
    TrainingJobSpec,
)
from muster.api.training_job_status import LEFT_OUT_MAX
from muster.kube.objects.struct import from_dict, to_dict


class Problem(NamedTuple):
    """One problem: the field's path, and what is wrong with it."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


RESERVED_ENV: Final = frozenset(
    {
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "POD_NAME",
        "POD_UID",
        "POD_IP",
    }
)
RESERVED_VOLUMES: Final = frozenset(
    {
        "muster",
        "muster-token",
        "muster-code",
        "muster-shm",
        "muster-store-data",
        "muster-store-checkpoint",
        "muster-cache",
    }
)
_OURS_IN_TEMPLATE: Final = {
    "schedulerName": "Muster schedules the pods",
    "restartPolicy": "Muster restarts pods itself",
    "nodeName": "Muster places the pods; use nodeSelector or affinity",
    "hostNetwork": "use spec.hostNetwork",
    "priorityClassName": "use spec.priorityClassName",
    "terminationGracePeriodSeconds": "use spec.stopGraceSeconds",
    "automountServiceAccountToken": "workers get no token for the API server",
    "schedulingGates": "the gang is placed as one",
}
NO_CLAIMS: Final = (
    "cannot be used yet: Muster's scheduler does not allocate devices of DRA drivers (dynamic resource allocation); it "
    "counts those of device plugins. Remove the claims. Ask for GPUs by resource name: in a TrainingJob, set "
    "spec.gpusPerNode and spec.gpuResource (docs/scheduling.md, Dynamic resource allocation)"
)
_ENV_NAME: Final = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
"""Names that a shell can export: `muster exec` gives a command the ranks' environment through one."""
_QUALIFIED_RESOURCE: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
"""An extended resource of a node (Kubernetes docs, "Extended resources"): others are Kubernetes' own."""


def validate(job: TrainingJob) -> list[Problem]:
    """Return all problems of the job; empty if it can run."""
    problems = [*_name(job.name), *_namespace(job.namespace)]
    try:
        from_dict(to_dict(job), TrainingJob)
    except msgspec.ValidationError as error:
        problems.append(schema_problem(error))
    spec = job.spec
    problems += _program(spec)
    problems += _environment(spec)
    if spec.code is not None:
        problems += _code(spec.code)
    if spec.shared_memory and not re.fullmatch(QUANTITY, spec.shared_memory):
        problems.append(Problem("spec.sharedMemory", f"{spec.shared_memory!r} is not a quantity; write one like 64Gi"))
    elif spec.shared_memory and not re.search("[1-9]", spec.shared_memory):
        problems.append(
            Problem("spec.sharedMemory", "must be more than 0; write a quantity like 64Gi, or leave it out")
        )
    problems += _resources(spec)
    if spec.checkpoint is not None and not spec.checkpoint.path.isprintable():
        problems.append(Problem("spec.checkpoint.path", f"{spec.checkpoint.path!r} has control characters in it"))
    if spec.mpi is not None and spec.launcher != "mpi":
        problems.append(
            Problem("spec.mpi", f"has no effect with launcher {spec.launcher}; remove it or use launcher: mpi")
        )
    problems += _data(spec.data)
    problems += _checkpoint(spec.checkpoint)
    problems += _sizes(spec)
    problems += _template(spec.template)
    return problems


def schema_problem(error: msgspec.ValidationError) -> Problem:
    """A problem from msgspec's message, which ends in the field's path."""
    text, _, path = str(error).partition(" - at `")
    field = path.rstrip("`").removeprefix("$").removeprefix(".")
    text = text.replace("`", "")
    if "Expected str, got" in text:
        text += "; put the value in quotes"
    if field.endswith("[...]"):
        field, text = field[: -len("[...]")], f"a value in it is wrong: {text}"
    return Problem(field, text[0].lower() + text[1:])


def _name(name: str) -> Iterator[Problem]:
    if not name:
        yield Problem("metadata.name", "missing; the names of the job's pods begin with it")
    elif len(name) > JOB_NAME_MAX:
        yield Problem(
            "metadata.name", f"{len(name)} characters; at most {JOB_NAME_MAX}, as its pods are named after it"
        )
    elif not re.fullmatch(DNS_LABEL, name):
        yield Problem("metadata.name", f"{name!r} must be lower-case letters, digits and dashes, as in train-gpt")


def _namespace(namespace: str) -> Iterator[Problem]:
    if namespace and not (len(namespace) <= NAMESPACE_MAX and re.fullmatch(DNS_LABEL, namespace)):
        yield Problem("metadata.namespace", f"{namespace!r} must be lower-case letters, digits and dashes")


def _program(spec: TrainingJobSpec) -> Iterator[Problem]:
    worker = next((c for c in _containers(spec.template) if c.get("name") == WORKER_CONTAINER), {})
    if not spec.image and not worker.get("image"):
        yield Problem("spec.image", "missing; name the image the workers run, with python3 in it")
    elif re.search(r"\s", spec.image):
        yield Problem("spec.image", f"{spec.image!r} cannot name an image: it has a space in it")
    if not spec.command:
        yield Problem("spec.command", "missing; say what each rank runs, such as [python, train.py]")
    elif not spec.command[0]:
        yield Problem("spec.command[0]", "empty; the first entry is the program")


def _environment(spec: TrainingJobSpec) -> Iterator[Problem]:
    for index, variable in enumerate(spec.env):
        field = f"spec.env[{index}]"
        if not _ENV_NAME.fullmatch(variable.name):
            what = f"{variable.name!r} cannot name a variable: letters, digits and underscores can"
            yield Problem(f"{field}.name", what)
        elif variable.name in RESERVED_ENV or variable.name.startswith("MUSTER_"):
            yield Problem(f"{field}.name", f"Muster sets {variable.name} for each rank; choose another name")
        if variable.value and variable.value_from is not None:
            yield Problem(field, f"{variable.name} has both value and valueFrom; keep one")
    counts = Counter(variable.name for variable in spec.env)
    for name, count in counts.items():
        if count > 1:
            yield Problem("spec.env", f"{name} is set {count} times; keep one")
    for name in spec.nccl_env:
        if not _ENV_NAME.fullmatch(name):
            yield Problem("spec.ncclEnv", f"{name!r} cannot name a variable: letters, digits and underscores can")


def _resources(spec: TrainingJobSpec) -> Iterator[Problem]:
    named = [("spec.gpuResource", spec.gpu_resource)]
    if spec.rdma is not None:
        named.append(("spec.rdma.resource", spec.rdma.resource))
    for field, name in named:
        if not _QUALIFIED_RESOURCE.fullmatch(name):
            yield Problem(field, f"{name!r} is not an extended resource of nodes; write DOMAIN/NAME, as in rdma/hca")


def _code(code: CodeSource) -> Iterator[Problem]:
    if bool(code.config_map) == bool(code.url):
        yield Problem("spec.code", "give exactly one of configMap and url")
    if code.url and not code.url.startswith(("https://", "http://")):
        yield Problem("spec.code.url", f"{code.url!r} must start with https:// or http://")
    if code.url and not re.fullmatch(SHA256, code.sha256):
        yield Problem("spec.code.sha256", "needed with url: 64 hex digits, as `sha256sum FILE` prints them")
    if code.sha256 and not code.url:
        yield Problem("spec.code.sha256", "goes with url only; remove it")


def _data(data: DataSpec | None) -> Iterator[Problem]:
    if data is None:
        return
    if problem := store_url.data_problem(data.url):
        yield Problem("spec.data.url", problem)
    yield from _access("spec.data", data, store=store_url.is_store(data.url))


def _access(field: str, settings: DataSpec | CheckpointSpec, *, store: bool) -> Iterator[Problem]:
    """Problems of the settings of an object store; `store`: the field names one."""
    if problem := store_url.endpoint_problem(settings.endpoint):
        yield Problem(f"{field}.endpoint", problem)
    if settings.region and not re.fullmatch(REGION, settings.region):
        yield Problem(f"{field}.region", f"{settings.region!r} is not the name of a region, such as eu-central-1")
    if store:
        return
    given = {"endpoint": settings.endpoint, "region": settings.region, "credentials": settings.credentials}
    for name in (name for name, value in given.items() if value):
        yield Problem(f"{field}.{name}", "goes with a URL s3://, gs:// or az:// only; remove it")


def _checkpoint(checkpoint: CheckpointSpec | None) -> Iterator[Problem]:
    if checkpoint is None:
        return
    if problem := store_url.checkpoint_problem(checkpoint.path):
        yield Problem("spec.checkpoint.path", problem)
    yield from _access("spec.checkpoint", checkpoint, store=store_url.is_store(checkpoint.path))
    source = checkpoint.from_
    if source is None:
        return
    if store_url.has_secret(source.path):
        yield Problem("spec.checkpoint.from.path", store_url.NO_SECRET)
    if bool(source.job) == bool(source.path):
        yield Problem("spec.checkpoint.from", "give exactly one of job and path")
    if source.job and not re.match(DNS_LABEL, source.job):
        yield Problem("spec.checkpoint.from.job", f"{source.job!r} is not the name of a job; a folder goes into path")


def _sizes(spec: TrainingJobSpec) -> Iterator[Problem]:
    fewest = spec.min_replicas
    if fewest is None:
        if spec.no_spare == "Shrink":
            yield Problem("spec.minReplicas", "missing; noSpare: Shrink needs the fewest nodes the job runs with")
        return
    if spec.no_spare != "Shrink":
        yield Problem(
            "spec.minReplicas", f"has no effect with noSpare: {spec.no_spare}; remove it or write Shrink there"
        )
    if fewest > spec.replicas:
        yield Problem("spec.minReplicas", f"{fewest} is more than replicas, which is {spec.replicas}")
    elif spec.replicas - fewest > LEFT_OUT_MAX:
        least = spec.replicas - LEFT_OUT_MAX
        yield Problem("spec.minReplicas", f"at most {LEFT_OUT_MAX} fewer than replicas; write {least} or more")


def _template(template: dict[str, Any]) -> Iterator[Problem]:
    unknown = sorted(set(template) - {"metadata", "spec"})
    if unknown:
        yield Problem(f"spec.template.{unknown[0]}", "a template holds metadata and spec only")
    spec = template.get("spec", {})
    if not isinstance(spec, dict):
        yield Problem("spec.template.spec", "must be a map")
        return
    for field, instead in _OURS_IN_TEMPLATE.items():
        if field in spec:
            yield Problem(f"spec.template.spec.{field}", f"cannot be set here: {instead}")
    if spec.get("resourceClaims"):
        yield Problem("spec.template.spec.resourceClaims", NO_CLAIMS)
    for index, volume in enumerate(spec.get("volumes", ())):
        if isinstance(volume, dict) and volume.get("name") in RESERVED_VOLUMES:
            yield Problem(f"spec.template.spec.volumes[{index}].name", f"{volume['name']} is Muster's own; rename it")
    for index, container in enumerate(_containers(template)):
        if not container.get("name"):
            yield Problem(f"spec.template.spec.containers[{index}].name", "missing")
        if container.get("name") == WORKER_CONTAINER:
            for field in ("command", "args", "env", "workingDir"):
                if field in container:
                    yield Problem(f"spec.template.spec.containers[{index}].{field}", f"use spec.{field}")


def _containers(template: dict[str, Any]) -> list[dict[str, Any]]:
    spec = template.get("spec")
    containers = spec.get("containers", []) if isinstance(spec, dict) else []
    return [each for each in containers if isinstance(each, dict)] if isinstance(containers, list) else []
