"""Input of a replay: jobs with their submission and run times, and the nodes of the cluster."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec


class Shape(msgspec.Struct, frozen=True):
    """The request of one member of a job; `models` are the GPU models it accepts, all if empty."""

    gpus: int
    cpu_milli: int = 0
    memory_mib: int = 0
    models: tuple[str, ...] = ()


class Job(msgspec.Struct, frozen=True):
    """One job: `members` pods of one shape.

    Attributes:
        submit_s: when it was submitted, in seconds from the first submission.
        run_s: how long it ran, without its time in the queue.
        gang: its members start together or not at all, each on a node of its own.
        priority: of its pods.
        limit_s: its time limit, which lets the scheduler reckon with its end; None where it has none.
        user: the user who submitted it; "" if the trace does not say.
        image: what its pods run; "" if the trace does not say.
        training_job: it is a TrainingJob, which Muster can queue again. Otherwise its pods are on their own.
        restartable: a TrainingJob that saves a checkpoint when it is asked to leave. Other TrainingJobs lose all work.
    """

    name: str
    submit_s: float
    run_s: float
    members: int
    shape: Shape
    gang: bool
    priority: int = 0
    limit_s: int | None = None
    training_job: bool = False
    restartable: bool = False
    user: str = ""
    image: str = ""

    @property
    def gpus(self) -> int:
        """GPUs of all members."""
        return self.members * self.shape.gpus


class NodeShape(msgspec.Struct, frozen=True):
    """A node. CPU and memory are unlimited (0) if only GPUs are compared."""

    name: str
    gpus: int
    cpu_milli: int = 0
    memory_mib: int = 0
    model: str = ""


class Workload(msgspec.Struct, frozen=True):
    """Jobs in order of submission, and how many of the source were left out, by reason."""

    source: str
    jobs: Sequence[Job]
    left_out: Mapping[str, int] = {}


def job_of_gpus(name: str, submit_s: float, run_s: float, gpus: int, per_node: int, least_nodes: int = 1) -> Job:
    """Return a job of that many GPUs on nodes of `per_node`: whole nodes where it needs more than one.

    `least_nodes`: it was spread over so many nodes, and is here too. A job that fills a node or needs several is a
    gang; a smaller one is a single pod that shares its node.
    """
    members = max(least_nodes, -(-gpus // per_node))
    each = -(-gpus // members)
    if members > 1 and members > least_nodes:
        each = per_node
    return Job(name, submit_s, run_s, members, Shape(each), gang=members > 1 or each >= per_node)


def with_limits(workload: Workload, factor: float) -> Workload:
    """Return the jobs with time limits of so many times what they run for, in whole seconds."""
    jobs = [msgspec.structs.replace(job, limit_s=math.ceil(max(1.0, job.run_s * factor))) for job in workload.jobs]
    return msgspec.structs.replace(workload, jobs=jobs)


def with_restartable(workload: Workload, share: float, seed: int) -> Workload:
    """Return the jobs as TrainingJobs. The seed chooses a share of them (0 to 1), which are restartable."""
    rng = random.Random(f"restartable {seed}")
    jobs = [
        msgspec.structs.replace(job, training_job=True, restartable=rng.random() < share, gang=True)
        for job in workload.jobs
    ]
    return msgspec.structs.replace(workload, jobs=jobs)


def uniform_nodes(count: int, gpus: int) -> list[NodeShape]:
    """Return nodes that are all alike."""
    return [NodeShape(f"node-{number:05}", gpus) for number in range(count)]


def within(workload: Workload, nodes: Iterable[NodeShape], *, least_gpus: int, days: float, most: int) -> Workload:
    """Return the jobs to replay, the rest counted: not too small, not larger than the cluster, early enough.

    If nodes do not give their CPU and memory, these come with the GPUs: no job asks for any.

    Args:
        workload: all jobs.
        nodes: the cluster.
        least_gpus: smaller jobs are left out.
        days: jobs submitted later are left out; 0 for none.
        most: only so many are replayed; 0 for all.
    """
    shapes = Counter(msgspec.structs.replace(node, name="") for node in nodes)
    gpus_only = not any(node.cpu_milli or node.memory_mib for node in shapes)
    models = {node.model for node in shapes}
    fitting: dict[Shape, int] = {}
    jobs: list[Job] = []
    left_out = Counter(workload.left_out)
    for each in workload.jobs:
        job = _without_cpu(each) if gpus_only else each
        if job.shape not in fitting:
            fitting[job.shape] = _room(job.shape, shapes)
        room = fitting[job.shape]
        if job.gpus < least_gpus:
            left_out[f"smaller than {least_gpus} GPUs"] += 1
        elif job.shape.models and models.isdisjoint(job.shape.models):
            left_out["no node has their GPU model"] += 1
        elif room < job.members:
            left_out["larger than the cluster"] += 1
        elif days and job.submit_s >= days * 86400:
            left_out[f"submitted after {days:g} days"] += 1
        elif most and len(jobs) >= most:
            left_out[f"beyond the first {most}"] += 1
        else:
            jobs.append(job)
    return Workload(workload.source, jobs, dict(sorted(left_out.items())))


def _without_cpu(job: Job) -> Job:
    if not job.shape.cpu_milli and not job.shape.memory_mib:
        return job
    return msgspec.structs.replace(job, shape=Shape(job.shape.gpus, models=job.shape.models))


def _room(shape: Shape, nodes: Mapping[NodeShape, int]) -> int:
    return sum(count for node, count in nodes.items() if serves(node, shape))


def serves(node: NodeShape, shape: Shape) -> bool:
    """Returns whether an empty node can take a member of the shape."""
    return (
        shape.gpus <= node.gpus
        and (not node.cpu_milli or shape.cpu_milli <= node.cpu_milli)
        and (not node.memory_mib or shape.memory_mib <= node.memory_mib)
        and (not shape.models or node.model in shape.models)
    )
