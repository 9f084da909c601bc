"""Describes a TrainingJob in words: pure functions from its object to texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Any

from msgspec.structs import replace

from muster.api.fixed_spec import effective
from muster.api.training_job import TrainingJob
from muster.api.training_job_status import Fault, Restarts, StartForecast, StartInterval, Timeline
from muster.api.untyped_stall import suspicion_of
from muster.api.words import counted, rank_text
from muster.cli.output import age, duration
from muster.kube.objects.struct import to_dict

FINISHED = ("Succeeded", "Failed")
STAGES = ("fault", "detected", "stopped", "backoff", "placed", "ready", "running", "restored", "useful")
FAULT_NAMES = {"user": "the program's fault", "infrastructure": "infrastructure", "unknown": "cause unknown"}


def finished(job: TrainingJob) -> bool:
    """Returns whether the job has ended."""
    return job.status.phase in FINISHED


def exit_status(job: TrainingJob) -> int:
    """0 for a job that succeeded, 1 for one that failed."""
    return 0 if job.status.phase == "Succeeded" else 1


def as_data(job: TrainingJob) -> dict[str, Any]:
    """Return the job as data for scripts, with some default values that the object on the wire omits."""
    data = to_dict(job)
    status = job.status
    always = {"phase": status.phase, "attempt": status.attempt, "readySlots": status.ready_slots}
    data["status"] = {**always, **data.get("status", {})}
    return data


def metrics_text(job: TrainingJob) -> str:
    """The newest metrics on one line: `loss 0.1234  accuracy 0.97`."""
    progress = job.status.progress
    return "  ".join(f"{name} {value:.4g}" for name, value in sorted(progress.metrics.items())) if progress else ""


def progress_text(job: TrainingJob, now: datetime | None = None) -> str:
    """Step, its age and metrics on one line, empty before the first step: `step 40 of 200, 12s ago  loss 0.1`."""
    progress = job.status.progress
    if progress is None:
        return ""
    total = f" of {progress.total_steps}" if progress.total_steps else ""
    since = f", {age(progress.time, now)} ago" if progress.time is not None else ""
    metrics = metrics_text(job)
    return f"step {progress.step}{total}{since}" + (f"  {metrics}" if metrics else "")


def stalled(job: TrainingJob) -> bool:
    """Returns whether the running attempt has reported no step for longer than `spec.stall` allows."""
    status = job.status
    return status.phase == "Running" and status.stall is not None and status.stall.attempt == status.attempt


def stall_text(job: TrainingJob, now: datetime | None = None) -> str:
    """Since when the attempt has reported nothing, and what is known about that; empty if it is not stalled."""
    stall = job.status.stall
    if not stalled(job) or stall is None:
        return ""
    suspicion = suspicion_of(stall)
    step = f" after step {stall.step}" if stall.step is not None else ""
    return f"no step for {age(stall.since, now)}{step}" + (f"; {suspicion}" if suspicion else "")


def reported_text(job: TrainingJob) -> str:
    """Returns the age of the newest report, for a column: `12s ago`, `6m ago, stalled`; `-` before the first."""
    progress = job.status.progress
    since = f"{age(progress.time)} ago" if progress is not None and progress.time is not None else ""
    trouble = "stalled" if stalled(job) else "rank idle" if idle_ranks(job) else ""
    return ", ".join(filter(None, (since, trouble))) or "-"


def idle_ranks(job: TrainingJob) -> list[str]:
    """The ranks whose process does not run, one line each; empty while the attempt does not run either."""
    if job.status.phase != "Running":
        return []
    return [rank_text(each) for each in job.status.idle_ranks]


def slots_text(job: TrainingJob) -> str:
    """`3/4 slots ready`; of a job that shrank `2/2 slots ready, 1 of 3 left out`."""
    status, wanted = job.status, effective(job).job.spec.replicas
    missing = len(status.left_out)
    without = f", {missing} of {wanted} left out" if missing else ""
    return f"{status.ready_slots}/{wanted - missing} slots ready{without}"


def restarts(job: TrainingJob) -> int:
    """Returns the number of restarts, without a fault beyond its limit: that one ended the job instead."""
    return sum(min(used, limit) for _, used, limit in _budgets(job))


def restarts_text(job: TrainingJob) -> str:
    """Restarts by cause, each with its limit; empty if there was no fault."""
    budgets = _budgets(job)
    if not any(used for _, used, _ in budgets):
        return ""
    beyond = next((f"; then {name} once more, beyond the limit" for name, used, limit in budgets if used > limit), "")
    return ", ".join(f"{min(used, limit)} of {limit} by {name}" for name, used, limit in budgets) + beyond


def beyond_limit(job: TrainingJob) -> bool:
    """Returns whether the job ends or has ended because one of its limits is exceeded."""
    return any(used > limit for _, used, limit in _budgets(job))


def never_came(job: TrainingJob) -> bool:
    """Returns whether the status's attempt never began: its number only refuses reports of the last attempt."""
    status = job.status
    fault = status.faults[-1] if status.faults else None
    if fault is None or fault.attempt != status.attempt - 1 or (fault.timeline and fault.timeline.running):
        return False
    return status.phase == "Failed" or (status.phase == "Restarting" and beyond_limit(job))


def attempt(job: TrainingJob) -> int:
    """The number of the newest attempt that began or will begin."""
    return job.status.attempt - never_came(job)


def _budgets(job: TrainingJob) -> tuple[tuple[str, int, int], ...]:
    counts, spec = job.status.restarts or Restarts(), job.spec
    return (
        ("the program", counts.user, spec.backoff_limit),
        ("infrastructure", counts.infrastructure, spec.infrastructure_limit),
        ("unknown causes", counts.unknown, spec.unknown_limit),
    )


def stages(timeline: Timeline | None) -> list[tuple[str, float]]:
    """Returns each known stage with its duration in seconds, in order: `[("detected", 0.2), ("stopped", 0.5), ...]`.

    The duration is 0 if a stage was over before the one ahead of it: slots that kept their nodes are placed at once.
    """
    moments = [(name, moment) for name in STAGES if (moment := getattr(timeline, name, None)) is not None]
    reached = list(accumulate((moment for _, moment in moments), max))
    return [
        (name, (later - earlier).total_seconds())
        for (name, _), (earlier, later) in zip(moments[1:], pairwise(reached), strict=True)
    ]


def time_to_useful_s(fault: Fault) -> float | None:
    """Seconds from a fault to the first later step; None before that step."""
    timeline = fault.timeline
    if timeline is None or timeline.fault is None or timeline.useful is None:
        return None
    return (timeline.useful - timeline.fault).total_seconds()


def fault_headline(fault: Fault) -> str:
    """One line: attempt, slot, node, cause and rule."""
    where = f"slot {fault.slot}" + (f" on {fault.node}" if fault.node else "")
    rule = f", rule {fault.rule}" if fault.rule else ""
    return f"attempt {fault.attempt} ended at {where}: {FAULT_NAMES.get(fault.cause, fault.cause)}{rule}"


def newest_first(faults: Sequence[Fault]) -> list[Fault]:
    """The faults, newest first. If a fault's last lines repeat those of a newer fault, a reference replaces them."""
    shown: dict[str, int] = {}
    listed = []
    for fault in reversed(faults):
        head, _, rest = fault.message.partition("\n")
        first = shown.setdefault(rest, fault.attempt)
        if rest and first != fault.attempt:
            fault = replace(fault, message=f"{head}\nits last lines: same as attempt {first}")
        listed.append(fault)
    return listed


def fault_details(fault: Fault, *, final: bool = False, over: bool = False) -> Iterator[str]:
    """Yields details of a fault, line by line; `final`: no attempt followed; `over`: nothing more will follow."""
    yield from fault.message.splitlines()
    if final:
        return
    runs = fault.timeline is not None and fault.timeline.running is not None
    cost = (
        ["all slots kept"] if runs and not fault.slots else []
    )  # evidence may come late, so the cause is final only when the next attempt runs
    if fault.slots:
        cost = [f"{counted(fault.slots, 'slot')} replaced"]
    if fault.steps_lost:
        cost.append(f"{counted(fault.steps_lost, 'step')} done again")
    if cost:
        yield ", ".join(cost)
    useful = time_to_useful_s(fault)
    taken = " + ".join(f"{name} {seconds:.1f}s" for name, seconds in stages(fault.timeline))
    if useful is not None:
        yield f"useful again after {useful:.1f}s ({taken})"
    elif taken:
        yield f"{'got as far as' if over else 'so far'}: {taken}"


def events(old: TrainingJob | None, new: TrainingJob) -> list[str]:
    """Returns the events between two observations of a job, one line each."""
    lines = []
    before = old.status if old else None
    status = new.status
    known = {fault.attempt: fault for fault in before.faults} if before else {}
    for fault in status.faults:
        earlier = known.get(fault.attempt)
        if earlier is None or fault_headline(earlier) != fault_headline(fault):  # later evidence may change the cause
            lines.append(fault_headline(fault))
        useful = time_to_useful_s(fault)
        if useful is not None and (earlier is None or time_to_useful_s(earlier) is None):
            lines.append(f"useful again {useful:.1f}s after the fault of attempt {fault.attempt}")
    if (before is None or status.attempt != before.attempt) and not never_came(new) and status.attempt > 1:
        lines.append(f"attempt {status.attempt}")
    waits_again = before is not None and status.phase == "Pending" and status.message != before.message
    if before is None or status.phase != before.phase or waits_again:
        lines.append(standing(new))
        if status.phase == "Running" and status.attempt > 1 and status.slots_kept is not None:  # now the cause is final
            size = status.size or new.spec.replicas
            lines.append(f"attempt {status.attempt}: {status.slots_kept} of {size} slots kept their pods")
    expected = start_text(new)
    if expected and status.start_forecast != (before.start_forecast if before else None):
        lines.append(f"starts: {expected}")
    was_stalled = old is not None and stalled(old)
    gang = status.backfill.gang if status.backfill is not None else ""
    if gang and (before is None or before.backfill is None or before.backfill.gang != gang):
        lines.append(f"uses nodes reserved for {gang}; may be asked to leave")
    if stalled(new) != was_stalled:
        lines.append(stall_text(new).partition("\n")[0] if stalled(new) else "the program reports again")
    before_idle = idle_ranks(old) if old is not None else []
    lines += [each for each in idle_ranks(new) if each not in before_idle]
    checkpoint = status.last_checkpoint
    previous = before.last_checkpoint if before else None
    if checkpoint and checkpoint.step != (previous.step if previous else None):
        lines.append(f"checkpoint at step {checkpoint.step}")
    return lines


def standing(job: TrainingJob) -> str:
    """Phase and message on one line. The phase is omitted if it is Restarting although no restart follows."""
    status = job.status
    message = status.message.splitlines()[0] if status.message else ""
    if message and status.phase == "Restarting" and never_came(job):
        return message
    return f"{status.phase}: {message}" if message else status.phase


def next_steps(job: TrainingJob, prefix: str = "muster", *, behind: bool = False) -> list[str]:
    """Useful next commands, each with its reason.

    `behind`: the pods have failed, and the status does not show it yet.
    """
    name = job.name
    if behind:
        return [
            f"{prefix} status {name} --follow # watch the job",
            f"{prefix} logs {name}   # what the ranks wrote",
        ]
    match job.status.phase:
        case "Pending":
            return [f"{prefix} explain {name}   # what it waits for"]
        case "Restarting" if _lacks_nodes(job):
            return [f"{prefix} explain {name}   # what it waits for"]
        case "Starting" | "Restarting":
            return [f"{prefix} logs {name} -f # output of the ranks"]
        case "Running" if stalled(job) or idle_ranks(job):
            return [f"{prefix} stacks {name}   # where each rank is", f"{prefix} logs {name}   # what the ranks wrote"]
        case "Running":
            return [f"{prefix} logs {name} -f", f"{prefix} exec {name}   # a shell beside rank 0"]
        case "Suspended" | "Stopping":
            return [f"{prefix} resume {name}   # from the last checkpoint"]
        case "Failed":
            return [f"{prefix} logs {name}   # what the ranks wrote", f"{prefix} delete {name}"]
        case _:
            return [f"{prefix} logs {name}", f"{prefix} delete {name}"]


def _lacks_nodes(job: TrainingJob) -> bool:
    """Returns whether the scheduler reports that a slot of the job has no node."""
    return any(each.type == "Admitted" and each.status == "False" for each in job.status.conditions)


def backfill_text(job: TrainingJob) -> str:
    """Returns for which gang the job's nodes are reserved, how often it was asked to leave, and what it lost."""
    backfill = job.status.backfill
    if backfill is None:
        return ""
    now = [f"on nodes reserved for {backfill.gang}, may be asked to leave"] if backfill.gang else []
    lost = f", {duration(backfill.seconds_lost)} of work lost" if backfill.seconds_lost else ", no work lost"
    asked = [f"asked to leave {counted(backfill.asked, 'time')}{lost}"] if backfill.asked else []
    return "; ".join(now + asked)


def backfill_column(job: TrainingJob) -> str:
    """The same for a column: `for team/large, asked 2x, lost 40s`; empty for a job that never was backfilled."""
    backfill = job.status.backfill
    if backfill is None:
        return ""
    lost = f"lost {duration(backfill.seconds_lost)}" if backfill.seconds_lost else ""
    parts = f"for {backfill.gang}" if backfill.gang else "", f"asked {backfill.asked}x" if backfill.asked else "", lost
    return ", ".join(filter(None, parts))


def start_text(job: TrainingJob, now: datetime | None = None) -> str:
    """Returns when a waiting job is expected to start, or why that is not known; empty without an estimate.

    Example: `in 2h to 9h (80%), estimated from 40 jobs like those in front`.
    """
    forecast = job.status.start_forecast
    if forecast is None or job.status.phase != "Pending":
        return ""
    if forecast.interval is None:
        return _no_start(forecast)
    now = now or datetime.now(UTC)
    when, latest = _interval(forecast.interval, now), forecast.interval.latest
    if latest is not None and latest > now:
        when += f" ({round(100 * forecast.probability)}%)"
    match forecast.basis:
        case "Similar":
            return f"{when}, estimated from {counted(forecast.jobs, 'job')} like those in front"
        case "General":
            return f"{when}, estimated from this cluster's jobs in general"
        case _:
            return f"{when}, estimated from the time limits in front"


def start_column(job: TrainingJob) -> str:
    """The same for a column: `in 2h to 9h`; empty without an interval."""
    forecast = job.status.start_forecast
    if forecast is None or forecast.interval is None or job.status.phase != "Pending":
        return ""
    return _interval(forecast.interval, datetime.now(UTC))


def _interval(interval: StartInterval, now: datetime) -> str:
    """Returns the interval from now on. Times that have passed are left out."""
    earliest_s = (interval.earliest - now).total_seconds()
    if interval.latest is None:
        return f"in {duration(earliest_s)} or later" if earliest_s > 0 else "any moment or later"
    latest_s = (interval.latest - now).total_seconds()
    if latest_s <= 0:
        return f"overdue by {duration(-latest_s)}"
    early, late = duration(earliest_s), duration(latest_s)
    return f"in {early} to {late}" if earliest_s > 0 and early != late else f"within {late}"


def _no_start(forecast: StartForecast) -> str:
    match forecast.unknown:
        case "TooFewJobs":
            return f"unknown: 10 jobs must have ended before; {forecast.jobs} have"
        case "TooFarBack":
            return "unknown: too many jobs are in front"
        case "TooLarge":
            return "unknown: the cluster has too few nodes for it"
        case _:
            return "unknown: it is too far away, or a job in front has no estimate"


def times_text(job: TrainingJob, now: datetime) -> str:
    """Returns when the job was created, started and ended: `10m ago, started 9m ago, ended 1m ago`."""
    moments = (("started ", job.status.start_time), ("ended ", job.status.completion_time))
    later = "".join(f", {what}{age(moment, now)} ago" for what, moment in moments if moment)
    return f"{age(job.metadata.creation_timestamp, now)} ago{later}"
