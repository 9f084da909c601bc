"""Builds a job's status: conditions, faults, stages of the timeline, and the bound of 16 KB."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from muster.api.checkpoint_dir import folder_of
from muster.api.training_job import TrainingJob
from muster.api.training_job_status import Cause, Fault, Restarts, Timeline, TrainingJobStatus
from muster.api.visible import visible
from muster.kube.objects.meta import Condition
from muster.kube.objects.struct import encode

STATUS_BYTES_MAX: Final = 16 * 1024
FAULTS_MAX: Final = 8
EXCLUDED_MAX: Final = 32
_MESSAGE_CHARS: Final = 1024
_CUT: Final = " ... "
_LIMITS: Final[dict[Cause, str]] = {
    "user": "backoffLimit",
    "infrastructure": "infrastructureLimit",
    "unknown": "unknownLimit",
}

ConditionType = Literal["Admitted", "Running", "Complete", "Failed", "Suspended", "SpecIgnored"]
Stage = Literal["stopped", "backoff", "placed", "ready", "running", "restored", "useful"]


def at(now: float) -> datetime:
    """Convert a time to Kubernetes' form, in UTC: whole seconds for conditions, microseconds for timelines."""
    return datetime.fromtimestamp(now, UTC)


def with_condition(
    status: TrainingJobStatus, kind: ConditionType, holds: bool, reason: str, message: str, now: float, generation: int
) -> TrainingJobStatus:
    """Return the status with one condition set. Its transition time changes only if `holds` changes.

    When Running ends, the time for which the ranks ran is added to `run_seconds`.
    """
    old = next((each for each in status.conditions if each.type == kind), None)
    value = "True" if holds else "False"
    moved = old is None or old.status != value
    if kind == "Running" and not holds:
        status = replace(status, run_seconds=status.ran_seconds(int(now)))
    new = Condition(
        type=kind,
        status=value,
        reason=reason,
        message=shortened(message),
        observed_generation=generation,
        last_transition_time=at(now).replace(microsecond=0) if moved or old is None else old.last_transition_time,
    )
    others = tuple(each for each in status.conditions if each.type != kind)
    return replace(status, conditions=tuple(sorted((*others, new), key=lambda each: each.type)))


def condition_holds(status: TrainingJobStatus, kind: ConditionType) -> bool:
    """Returns whether a condition is True."""
    return any(each.type == kind and each.status == "True" for each in status.conditions)


def condition_reason(status: TrainingJobStatus, kind: ConditionType) -> tuple[str, str]:
    """Reason and message of a condition; empty without such a condition."""
    return next(((each.reason, each.message) for each in status.conditions if each.type == kind), ("", ""))


def charged(restarts: Restarts | None, cause: Cause, by: int = 1) -> Restarts:
    """Return the counters with one more restart for a cause; with `by=-1` one less."""
    old = restarts or Restarts()
    counts = {name: getattr(old, name) + (by if name == cause else 0) for name in ("user", "infrastructure", "unknown")}
    return Restarts(**counts, total=sum(counts.values()))


def exhausted(job: TrainingJob) -> tuple[Cause, int] | None:
    """Return the budget that is used up, and its limit; None if no budget is used up."""
    restarts, spec = job.status.restarts or Restarts(), job.spec
    budgets: tuple[tuple[Cause, int, int], ...] = (
        ("user", restarts.user, spec.backoff_limit),
        ("infrastructure", restarts.infrastructure, spec.infrastructure_limit),
        ("unknown", restarts.unknown, spec.unknown_limit),
    )
    return next(((cause, limit) for cause, used, limit in budgets if used > limit), None)


def budget_used_up(exhausted: tuple[Cause, int]) -> str:
    """Returns the limit of the spec that ends the job, such as "backoffLimit 0 is used up"."""
    cause, limit = exhausted
    return f"{_LIMITS[cause]} {limit} is used up"


def next_attempt(job: TrainingJob, status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status with the next attempt's number, which needs all nodes again.

    The first attempt also fixes the checkpoint folder.
    """
    folder = status.checkpoint_dir if status.attempt else folder_of(job)
    number, size = status.attempt + 1, job.spec.replicas
    status = replace(
        status, quiet=None, stall=None, idle_ranks=(), slots_kept=None
    )  # they are about the attempt that ended
    return replace(status, attempt=number, size=size, left_out=(), checkpoint_dir=folder, run=None)


def with_fault(status: TrainingJobStatus, fault: Fault) -> TrainingJobStatus:
    """Return the status with one more fault. If there are too many, the oldest one is dropped."""
    earlier = (replace(each, checkpoint=None) for each in status.faults)
    return replace(status, faults=(*earlier, fault)[-FAULTS_MAX:])


def with_newest_fault(status: TrainingJobStatus, fault: Fault) -> TrainingJobStatus:
    """The status with its newest fault replaced."""
    return replace(status, faults=(*status.faults[:-1], fault))


def excluding(status: TrainingJobStatus, nodes: tuple[str, ...]) -> TrainingJobStatus:
    """Return the status with these excluded nodes, newest last. If there are too many, the oldest ones are dropped."""
    kept = tuple(name for name in status.excluded_nodes if name not in nodes)
    return replace(status, excluded_nodes=(*kept, *dict.fromkeys(nodes))[-EXCLUDED_MAX:])


def excluding_more(status: TrainingJobStatus, nodes: Iterable[str]) -> TrainingJobStatus:
    """Adds excluded nodes to the status while there is room; late evidence does not displace older entries.

    Otherwise an incident with too many nodes would exclude and forget the same nodes in a loop. Only their taints
    exclude the nodes that do not fit.
    """
    fresh = [name for name in dict.fromkeys(nodes) if name not in status.excluded_nodes]
    fresh = fresh[: max(0, EXCLUDED_MAX - len(status.excluded_nodes))]
    return replace(status, excluded_nodes=(*status.excluded_nodes, *fresh)) if fresh else status


def restart_fault(status: TrainingJobStatus) -> Fault | None:
    """The fault that ended the last attempt; None if it ended for another reason."""
    newest = status.faults[-1] if status.faults else None
    return newest if newest is not None and newest.attempt == status.attempt - 1 else None


def stage_reached(status: TrainingJobStatus, stage: Stage) -> bool:
    """Returns whether the newest fault's timeline has this stage; true if there is no timeline."""
    timeline = status.faults[-1].timeline if status.faults else None
    return timeline is None or getattr(timeline, stage) is not None


def with_stage(status: TrainingJobStatus, stage: Stage, now: float) -> TrainingJobStatus:
    """The status with one more stage of the newest fault's timeline."""
    if stage_reached(status, stage):
        return status
    fault = status.faults[-1]
    timeline = msgspec.structs.replace(fault.timeline or Timeline(), **{stage: at(now)})
    return with_newest_fault(status, replace(fault, timeline=timeline))


def shortened(text: str, limit: int = _MESSAGE_CHARS) -> str:
    """Shorten a text to `limit` characters. The middle is left out: the first and last lines are the most useful.

    Messages contain output of ranks, and kubectl prints them unchanged. So characters that act on a terminal are
    escaped.
    """
    text = visible(text)
    if len(text) <= limit:
        return text
    head = limit // 3
    return text[:head] + _CUT + text[len(text) - (limit - head - len(_CUT)) :]


def fitted(status: TrainingJobStatus) -> TrainingJobStatus:
    """Reduce a status that is too large: shorten messages, then drop metrics, then the oldest faults."""
    for limit in (_MESSAGE_CHARS, 512, 256, 128):
        status = replace(
            status,
            message=shortened(status.message, limit),
            faults=tuple(replace(fault, message=shortened(fault.message, limit)) for fault in status.faults),
        )
        if len(encode(status)) <= STATUS_BYTES_MAX:
            return status
    if status.progress is not None:
        status = replace(status, progress=replace(status.progress, metrics={}))
    while len(encode(status)) > STATUS_BYTES_MAX and (status.faults or status.excluded_nodes):
        status = replace(status, faults=status.faults[1:], excluded_nodes=status.excluded_nodes[1:])
    return status
