"""The status of a TrainingJob: its attempt, progress, checkpoints, faults and restarts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, field

from muster.api.run_record import FixedSpec, HandedCheckpoint, RunRecord
from muster.kube.objects.meta import Condition
from muster.kube.objects.struct import KubeStruct

Phase = Literal["Pending", "Starting", "Running", "Restarting", "Suspended", "Stopping", "Succeeded", "Failed"]
Cause = Literal["user", "infrastructure", "unknown"]
NodeSharing = Literal["Exclusive", "Shared"]
RankTrouble = Literal["stopped", "zombie", "gone"]

CHECKPOINTS_MAX = 5
"""Confirmed checkpoints listed in a job's status."""
LEFT_OUT_MAX = 256
"""Nodes that a job may go on without: their slots are listed in its status, which is bounded."""
IDLE_RANKS_MAX = 16
"""Ranks that do not run, listed in the status."""


class NodeUse(KubeStruct):
    """How the job uses its nodes. Decided once, before the first pod, and kept through restarts."""

    sharing: Annotated[NodeSharing, Meta(description="Whether the job has its nodes to itself.")] = "Shared"
    gpus_per_node: Annotated[int, Meta(ge=0, description="GPUs that each node gives.")] = 0
    node_gpus: Annotated[
        int | None,
        Meta(description="GPU count of the nodes that the gang may use; any count where not given."),
    ] = None


class Restarts(KubeStruct):
    """Restarts so far, by whose fault they were."""

    user: Annotated[int, Meta(description="The program's own; bounded by spec.backoffLimit.")] = 0
    infrastructure: Annotated[
        int, Meta(description="Nodes, network, evictions; bounded by spec.infrastructureLimit.")
    ] = 0
    unknown: Annotated[int, Meta(description="Unexplained; bounded by spec.unknownLimit.")] = 0
    total: Annotated[int, Meta(description="All of them.")] = 0


class Backoff(KubeStruct):
    """Faults of the program in a row, and the pause before the next attempt."""

    failures: Annotated[
        int, Meta(description="Faults charged to the program in a row, while no attempt got further than those before.")
    ] = 0
    until: Annotated[
        datetime | None, Meta(description="The next attempt begins no earlier: 10 s, doubled each time, at most 6 min.")
    ] = None


class Progress(KubeStruct):
    """The program's newest report; written at a bounded pace, so a little behind."""

    step: Annotated[int, Meta(description="The newest step.")] = 0
    total_steps: Annotated[int | None, Meta(description="Steps in all, where the program said so.")] = None
    metrics: Annotated[dict[str, float], Meta(description="Its newest metrics, such as loss.")] = field(
        default_factory=dict
    )
    time: Annotated[datetime | None, Meta(description="When it said so.")] = None
    attempt: Annotated[int, Meta(description="The attempt that said so.")] = 0
    step_seconds: Annotated[
        float | None, Meta(description="Median time between two reported steps, over the newest ones.")
    ] = None


class Quiet(KubeStruct):
    """For how long an attempt has reported nothing. Counted only while the controller could have heard it."""

    attempt: Annotated[int, Meta(description="The attempt.")] = 0
    step: Annotated[int | None, Meta(description="Its newest step; absent if it has not reported one.")] = None
    seconds: Annotated[float, Meta(description="The length, when it was last written.")] = 0.0


class Stall(KubeStruct):
    """The running attempt makes no progress."""

    attempt: Annotated[int, Meta(description="The attempt.")] = 0
    since: Annotated[datetime | None, Meta(description="When it last reported, or when its ranks began.")] = None
    step: Annotated[int | None, Meta(description="Its newest step; absent if it has not reported one.")] = None
    slot: Annotated[int, Meta(description="The slot that message speaks of, or the first one.")] = 0
    limit_seconds: Annotated[float, Meta(description="How long a step may take, by spec.stall.")] = 0.0
    message: Annotated[
        str, Meta(description="What is known: ranks that do not run, the last lines of a traceback.")
    ] = ""


class RankState(KubeStruct):
    """A rank whose process does not run, although its attempt does."""

    rank: Annotated[int, Meta(description="The rank.")]
    state: Annotated[RankTrouble, Meta(description="stopped (SIGSTOP, a debugger), zombie or gone.")]
    slot: Annotated[int, Meta(description="The slot it belongs to.")] = 0
    node: Annotated[str, Meta(description="The node of that slot.")] = ""


class CheckpointStatus(KubeStruct):
    """The newest checkpoint that was reported complete."""

    path: Annotated[str, Meta(description="Where it lies.")]
    step: Annotated[int, Meta(description="The step it holds.")] = 0
    attempt: Annotated[int, Meta(description="The attempt that wrote it.")] = 0
    time: Annotated[datetime | None, Meta(description="When it was reported.")] = None


class CheckpointSource(KubeStruct):
    """The checkpoint that spec.checkpoint.from named."""

    job: Annotated[str, Meta(description="The job that wrote it, where that is known.")] = ""
    uid: Annotated[str, Meta(description="UID of that job.")] = ""
    path: Annotated[str, Meta(description="Where it lies. Empty until a node has looked for it.")] = ""
    step: Annotated[int, Meta(description="The step it holds.")] = 0


class Timeline(KubeStruct):
    """A fault and the way back to useful work, stage by stage."""

    fault: Annotated[datetime | None, Meta(description="It happened.")] = None
    detected: Annotated[datetime | None, Meta(description="The controller knew.")] = None
    stopped: Annotated[datetime | None, Meta(description="All healthy ranks had stopped.")] = None
    backoff: Annotated[
        datetime | None, Meta(description="The pause after faults of the program in a row was over.")
    ] = None
    placed: Annotated[datetime | None, Meta(description="Every slot had a node again.")] = None
    ready: Annotated[datetime | None, Meta(description="Every supervisor had joined.")] = None
    running: Annotated[datetime | None, Meta(description="The ranks were directed to run.")] = None
    useful: Annotated[datetime | None, Meta(description="The first step beyond the step at the fault.")] = None


class Fault(KubeStruct):
    """One incident that ended an attempt, and the cause it was charged to."""

    attempt: Annotated[int, Meta(description="The attempt it ended.")]
    slot: Annotated[int, Meta(description="The slot that failed first.")]
    node: Annotated[str, Meta(description="The node that held the slot.")] = ""
    cause: Annotated[Cause, Meta(description="Whose budget it is charged to.")] = "unknown"
    rule: Annotated[str, Meta(description="The row of docs/whose-fault.md that decided.")] = ""
    message: Annotated[str, Meta(description="What happened, with the last lines of the rank that failed first.")] = ""
    time: Annotated[datetime | None, Meta(description="When it happened.")] = None
    steps_lost: Annotated[int | None, Meta(description="Steps done since the newest checkpoint, to be done again.")] = (
        None
    )
    step: Annotated[int | None, Meta(description="The newest step reported before it.")] = None
    slots: Annotated[int, Meta(description="Slots that were replaced because of it.")] = 0
    checkpoint: Annotated[
        HandedCheckpoint | None,
        Meta(
            description="The checkpoint that its attempt began from, if the attempt reported neither a step nor a "
            "checkpoint; kept for the newest fault. If it is gone, the program may not have found it."
        ),
    ] = None
    timeline: Annotated[Timeline | None, Meta(description="The way back to useful work.")] = None


class TrainingJobStatus(KubeStruct):
    """The state of the job. At most 16 KB."""

    observed_generation: Annotated[int, Meta(description="The generation of spec this status speaks of.")] = 0
    phase: Annotated[Phase, Meta(description="Where the job is in its life.")] = "Pending"
    conditions: Annotated[
        tuple[Condition, ...],
        Meta(
            description="Admitted (every slot has a node; else why not, in the scheduler's typed reason), Running, "
            "Complete, Failed, Suspended, each with its reason."
        ),
    ] = ()
    attempt: Annotated[
        int,
        Meta(
            description="Number of the current attempt; what comes from an older one is refused. "
            "Where a limit ended the job, the number of the attempt that did not come."
        ),
    ] = 0
    ran_attempt: Annotated[int, Meta(description="Number of the newest attempt whose ranks were directed to run.")] = 0
    ready_slots: Annotated[int, Meta(description="Slots whose supervisor has joined.")] = 0
    node_use: Annotated[
        NodeUse | None,
        Meta(
            description="How the job uses its nodes. Not given for a job that began before Muster recorded it: Shared."
        ),
    ] = None
    size: Annotated[
        int, Meta(description="Nodes of the current attempt: fewer than spec.replicas while it runs without some.")
    ] = 0
    left_out: Annotated[
        tuple[int, ...],
        Meta(max_length=LEFT_OUT_MAX, description="Slots the current attempt runs without (noSpare: Shrink)."),
    ] = ()
    fixed_spec: Annotated[
        FixedSpec | None,
        Meta(description="The spec that the job runs by since it became active. Edits of the spec do not change it."),
    ] = None
    run: Annotated[
        RunRecord | None, Meta(description="What the running attempt depends on, written when it began.")
    ] = None
    restarts: Annotated[Restarts | None, Meta(description="Restarts so far, by whose fault they were.")] = None
    backoff: Annotated[
        Backoff | None, Meta(description="Whether the program fails again and again, and until when it is held.")
    ] = None
    preemptions: Annotated[
        int,
        Meta(description="How often its nodes were taken back for other jobs; no budget limits it."),
    ] = 0
    progress: Annotated[Progress | None, Meta(description="What the program said last.")] = None
    checkpoint_dir: Annotated[
        str,
        Meta(
            description="The job's own folder or URL for checkpoints, below spec.checkpoint.path; fixed when the job "
            "first starts. Empty where the job began under an earlier version: its folder is the path itself."
        ),
    ] = ""
    checkpoint_source: Annotated[
        CheckpointSource | None, Meta(description="The checkpoint of another job from which this one started.")
    ] = None
    checkpoints: Annotated[
        tuple[CheckpointStatus, ...],
        Meta(
            max_length=CHECKPOINTS_MAX,
            description="The newest confirmed checkpoints, newest first. If one is gone, the next attempt starts from "
            "the next older one. Attempt 0: another job's, from spec.checkpoint.from.",
        ),
    ] = ()
    quiet: Annotated[
        Quiet | None, Meta(description="How long the attempt has reported nothing; written at long intervals.")
    ] = None
    stall: Annotated[Stall | None, Meta(description="Why the attempt counts as stalled; absent if it does not.")] = None
    idle_ranks: Annotated[
        tuple[RankState, ...],
        Meta(max_length=IDLE_RANKS_MAX, description="Ranks whose process does not run, although the attempt does."),
    ] = ()
    last_checkpoint: Annotated[CheckpointStatus | None, Meta(description="What a restart resumes from.")] = None
    faults: Annotated[tuple[Fault, ...], Meta(max_length=8, description="The newest faults, newest last.")] = ()
    excluded_nodes: Annotated[
        tuple[str, ...], Meta(max_length=32, description="Nodes that replacements keep away from, newest last.")
    ] = ()
    time_to_useful_seconds: Annotated[
        float | None, Meta(description="From the newest fault to the first step beyond it.")
    ] = None
    slots_kept: Annotated[int | None, Meta(description="Slots that kept their pod in the newest restart.")] = None
    start_time: Annotated[datetime | None, Meta(description="When the ranks first ran.")] = None
    completion_time: Annotated[datetime | None, Meta(description="When the job ended.")] = None
    message: Annotated[str, Meta(description="One line for people: what the job does or waits for.")] = ""
