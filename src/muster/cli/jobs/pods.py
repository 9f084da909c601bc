"""The pods of a job: its slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.api.names import ANNOTATION_ATTEMPT, LABEL_GANG, LABEL_SLOT, WORKER_CONTAINER
from muster.cli.errors import CliError, ExitCode
from muster.kube.objects.pod import Pod

if TYPE_CHECKING:
    from muster.api.training_job import TrainingJob
    from muster.kube.client import Client


def slot_of(pod: Pod) -> int:
    """The slot of a pod."""
    return int(pod.metadata.labels.get(LABEL_SLOT, "-1"))


def attempt_of(pod: Pod) -> int:
    """The attempt at which a pod was created."""
    return int(pod.metadata.annotations.get(ANNOTATION_ATTEMPT, "0"))


def state_of(pod: Pod) -> str:
    """Returns a pod's state in a few words."""
    if pod.metadata.deletion_timestamp is not None:
        return "Terminating"
    for status in pod.status.container_statuses:
        waiting = status.state.waiting if status.state else None
        if status.name == WORKER_CONTAINER and waiting and waiting.reason:
            return f"{pod.status.phase}: {waiting.reason}"
    if pod.status.phase == "Pending" and not pod.spec.node_name:
        return "Pending: waits for a node"
    return pod.status.phase or "Pending"


async def members(client: Client, job: TrainingJob) -> list[Pod]:
    """The job's pods by slot, and by age within one."""
    pods = (await client.list(Pod, job.namespace, label_selector=f"{LABEL_GANG}={job.name}")).items
    ours = [pod for pod in pods if any(owner.uid == job.uid for owner in pod.metadata.owner_references)]
    return sorted(ours, key=lambda pod: (slot_of(pod), attempt_of(pod)))


def pod_of_slot(job: TrainingJob, pods: list[Pod], slot: int) -> Pod:
    """Return the newest pod of a slot. Raises CliError if the slot has no pod."""
    if not 0 <= slot < job.spec.replicas:
        raise CliError(
            f"'{job.name}' has no slot {slot}: it has 0 to {job.spec.replicas - 1}", exit_code=ExitCode.BAD_INPUT
        )
    found = [pod for pod in pods if slot_of(pod) == slot]
    if not found:
        raise CliError(f"slot {slot} of '{job.name}' has no pod now ({job.status.phase})", "", ExitCode.NOT_FOUND)
    return found[-1]


def check_rank(job: TrainingJob, rank: int) -> None:
    """Raise CliError if the job has no such rank."""
    if not 0 <= rank < job.spec.replicas * job.ranks:
        last = job.spec.replicas * job.ranks - 1
        raise CliError(f"'{job.name}' has no rank {rank}", f"it has 0 to {last}", ExitCode.BAD_INPUT)


def slots_in_rank_order(job: TrainingJob) -> list[int]:
    """The slots of the current attempt in the order of their node ranks, as recorded when the attempt began.

    Without a record (the attempt has not begun) ranks are numbered in the order of slots.
    """
    run = job.status.run
    ordered = run.slots_by_rank() if run is not None and run.attempt == job.status.attempt else []
    return ordered or [slot for slot in range(job.spec.replicas) if slot not in job.status.left_out]


def slot_of_rank(job: TrainingJob, rank: int) -> int:
    """Return the slot of a rank in the current attempt. Raises CliError if the attempt has no such rank."""
    check_rank(job, rank)
    slots, node = slots_in_rank_order(job), rank // job.ranks
    if node >= len(slots):
        last = len(slots) * job.ranks - 1
        raise CliError(f"'{job.name}' has no rank {rank} in this attempt", f"it has 0 to {last}", ExitCode.BAD_INPUT)
    return slots[node]
