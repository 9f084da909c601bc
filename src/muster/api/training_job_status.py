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
ForecastBasis = Literal["Similar", "General", "Limits"]
ForecastGap = Literal["TooFewJobs", "TooFarBack", "TooLarge", "TooUncertain"]

RestoreProblem = Literal["Checksum", "Missing", "Size", "Manifest", "Read", "Version"]

CHECKPOINTS_MAX = 5
"""Most confirmed checkpoints in a job's status."""
QUARANTINED_MAX = 5
"""Most damaged checkpoints in a job's status."""
LEFT_OUT_MAX = 256
"""Most nodes without which a job may continue. The status lists their slots, and its size is limited."""
IDLE_RANKS_MAX = 16
"""Most ranks that the status lists as not running."""


class NodeUse(KubeStruct):
    """How the job uses its nodes. The controller decides this once, before the first pod, and keeps it in restarts."""

    sharing: Annotated[NodeSharing, Meta(description="Whether the job has its nodes to itself.")] = "Shared"
    gpus_per_node: Annotated[int, Meta(ge=0, description="GPUs that the job uses on each node.")] = 0
    node_gpus: Annotated[
        int | None,
        Meta(description="Number of GPUs that a node must have for this job. If absent, any number."),
    ] = None


class Restarts(KubeStruct):
    """Restarts so far, by cause."""

    user: Annotated[int, Meta(description="Restarts after faults of the program; spec.backoffLimit limits them.")] = 0
    infrastructure: Annotated[
        int,
        Meta(
            description="Restarts after faults of nodes or the network, and after evictions; spec.infrastructureLimit "
            "limits them."
        ),
    ] = 0
    unknown: Annotated[int, Meta(description="Restarts after unexplained faults; spec.unknownLimit limits them.")] = 0
    total: Annotated[int, Meta(description="Sum of the three numbers.")] = 0


class Backoff(KubeStruct):
    """Repeated faults of the program, and the pause before the next attempt."""

    failures: Annotated[
        int,
        Meta(
            description="Number of consecutive faults charged to the program. The count starts again if an attempt "
            "wrote a checkpoint, reached a later step than the attempts before it, or ran for 10 min."
        ),
    ] = 0
    until: Annotated[
        datetime | None,
        Meta(
            description="The next attempt begins at this time or later. The pause is 10 s, doubled each time, at most "
            "6 min."
        ),
    ] = None


class LeaveRequest(KubeStruct):
    """A request to leave nodes on which the job was backfilled. Each attempt is asked at most once."""

    attempt: Annotated[int, Meta(description="The attempt that was asked.")]
    time: Annotated[datetime, Meta(description="When the controller began to stop the attempt.")]
    unsaved_seconds: Annotated[
        float,
        Meta(
            description="Run time since the attempt's last checkpoint at that moment. If the attempt ends without "
            "another checkpoint, the controller adds this value to secondsLost."
        ),
    ] = 0.0


class BackfillStatus(KubeStruct):
    """A job's use of nodes that are reserved for jobs before it in the queue."""

    gang: Annotated[
        str, Meta(description="`namespace/name` of the gang whose reserved nodes the job uses now; empty for none.")
    ] = ""
    asked: Annotated[int, Meta(description="How often the job was asked to leave such nodes.")] = 0
    seconds_lost: Annotated[
        float,
        Meta(
            description="Total run time that the job lost because it was asked to leave such nodes: each time, the "
            "run time since its last checkpoint."
        ),
    ] = 0.0
    request: Annotated[LeaveRequest | None, Meta(description="The newest request to leave such nodes.")] = None


class StartInterval(KubeStruct):
    """An interval in which the job may start."""

    earliest: Annotated[datetime, Meta(description="The earlier end.")]
    latest: Annotated[
        datetime | None, Meta(description="The later end. Absent if the start may be later than can be estimated.")
    ] = None


class StartForecast(KubeStruct):
    """When the waiting job is expected to start, from the run times of ended jobs. It is an estimate, not a promise."""

    interval: Annotated[
        StartInterval | None, Meta(description="The job starts in this interval with the given probability.")
    ] = None
    probability: Annotated[float, Meta(description="Probability of the interval.")] = 0.0
    basis: Annotated[
        ForecastBasis | None,
        Meta(
            description="How the run times of the jobs in front are estimated. Similar: from jobs like them. General: "
            "for some of them, from all jobs of the cluster. Limits: from their time limits alone."
        ),
    ] = None
    jobs: Annotated[
        int,
        Meta(
            description="Number of ended jobs on which the estimate rests: the fewest for any of the jobs in front. "
            "Without an interval, the number of ended jobs that are known."
        ),
    ] = 0
    made_at: Annotated[datetime | None, Meta(description="When the estimate was made.")] = None
    unknown: Annotated[
        ForecastGap | None,
        Meta(
            description="Why there is no interval. TooFewJobs: too few jobs have ended. TooFarBack: too many jobs are "
            "in front. TooLarge: the cluster has too few nodes. TooUncertain: the start is too far away, or depends on "
            "a gang whose run time is not known."
        ),
    ] = None
    first: Annotated[
        StartInterval | None,
        Meta(
            description="The first interval from ended jobs that the job got while it waits. It is compared with the "
            "start."
        ),
    ] = None


class Progress(KubeStruct):
    """The program's newest report. The controller limits the rate of writes, so this can lag by a few seconds."""

    step: Annotated[int, Meta(description="The newest step.")] = 0
    total_steps: Annotated[int | None, Meta(description="Total number of steps, if the program reported it.")] = None
    metrics: Annotated[dict[str, float], Meta(description="Its newest metrics, such as loss.")] = field(
        default_factory=dict
    )
    time: Annotated[datetime | None, Meta(description="Time of the report.")] = None
    attempt: Annotated[int, Meta(description="The attempt that reported.")] = 0
    step_seconds: Annotated[
        float | None, Meta(description="Median time between two reported steps, over the newest reports.")
    ] = None


class Quiet(KubeStruct):
    """Time for which an attempt has reported nothing.

    Only time in which the controller could receive reports counts.
    """

    attempt: Annotated[int, Meta(description="The attempt.")] = 0
    step: Annotated[int | None, Meta(description="The attempt's newest step; absent if it has not reported one.")] = (
        None
    )
    seconds: Annotated[float, Meta(description="Length of this time when the controller last wrote it.")] = 0.0


class Stall(KubeStruct):
    """The running attempt makes no progress."""

    attempt: Annotated[int, Meta(description="The attempt.")] = 0
    since: Annotated[datetime | None, Meta(description="When the attempt last reported, or when its ranks began.")] = (
        None
    )
    step: Annotated[int | None, Meta(description="The attempt's newest step; absent if it has not reported one.")] = (
        None
    )
    slot: Annotated[int, Meta(description="The first slot that the field `message` names.")] = 0
    limit_seconds: Annotated[float, Meta(description="The limit for a step, from spec.stall.")] = 0.0
    suspicion: Annotated[str, Meta(description="Ranks that do not run, or the last lines of a traceback.")] = ""
    message: Annotated[str, Meta(description="The stall as text: how long there was no step, and the suspicion.")] = ""


class RankState(KubeStruct):
    """A rank whose process does not run, although its attempt runs."""

    rank: Annotated[int, Meta(description="The rank.")]
    state: Annotated[RankTrouble, Meta(description="stopped (SIGSTOP, a debugger), zombie or gone.")]
    slot: Annotated[int, Meta(description="The slot of the rank.")] = 0
    node: Annotated[str, Meta(description="The node of that slot.")] = ""


class CheckpointStatus(KubeStruct):
    """A checkpoint that was reported complete."""

    path: Annotated[str, Meta(description="Path or URL of the checkpoint.")]
    step: Annotated[int, Meta(description="The step of the checkpoint.")] = 0
    attempt: Annotated[int, Meta(description="The attempt that wrote the checkpoint.")] = 0
    time: Annotated[datetime | None, Meta(description="When the checkpoint was reported.")] = None
    bytes: Annotated[int | None, Meta(description="Total size of its shards, if the program reported it.")] = None
    shards: Annotated[int | None, Meta(description="Number of its shards, if the program reported it.")] = None
    manifest: Annotated[
        str, Meta(description="SHA-256 of its manifest, in hex. Empty if it was written without a manifest.")
    ] = ""
    verified_time: Annotated[
        datetime | None, Meta(description="When every node of an attempt last read and verified the checkpoint.")
    ] = None


class QuarantinedCheckpoint(KubeStruct):
    """A confirmed checkpoint that ranks could not restore. No attempt starts from it again."""

    path: Annotated[str, Meta(description="Path or URL of the checkpoint.")]
    step: Annotated[int, Meta(description="The step of the checkpoint.")] = 0
    attempt: Annotated[int, Meta(description="The attempt that wrote the checkpoint.")] = 0
    reason: Annotated[
        RestoreProblem,
        Meta(
            description="What is wrong with it. Checksum, Size: the bytes are not those that were written. Missing: an "
            "object or file is gone. Manifest: the manifest is missing or not the confirmed one. Read: an object "
            "cannot be read although others can. Version: a later version of Muster wrote the manifest."
        ),
    ] = "Checksum"
    message: Annotated[str, Meta(description="The problem as text, with the node that found it.")] = ""
    time: Annotated[datetime | None, Meta(description="When the controller recorded it.")] = None


class CheckpointSource(KubeStruct):
    """The checkpoint that spec.checkpoint.from named."""

    job: Annotated[str, Meta(description="The job that wrote the checkpoint, if known.")] = ""
    uid: Annotated[str, Meta(description="UID of that job.")] = ""
    path: Annotated[str, Meta(description="Path of the checkpoint. Empty until a node has searched for it.")] = ""
    step: Annotated[int, Meta(description="The step of the checkpoint.")] = 0


class Timeline(KubeStruct):
    """Times of a fault and of each stage until useful work continued."""

    fault: Annotated[datetime | None, Meta(description="When the fault happened.")] = None
    detected: Annotated[datetime | None, Meta(description="When the controller detected the fault.")] = None
    stopped: Annotated[datetime | None, Meta(description="When all healthy ranks had stopped.")] = None
    backoff: Annotated[
        datetime | None, Meta(description="When the pause after repeated faults of the program ended.")
    ] = None
    placed: Annotated[datetime | None, Meta(description="When every slot had a node again.")] = None
    ready: Annotated[datetime | None, Meta(description="When every supervisor had joined.")] = None
    running: Annotated[datetime | None, Meta(description="When the controller directed the ranks to run.")] = None
    restored: Annotated[
        datetime | None, Meta(description="When every node had read and verified the checkpoint, if the ranks say so.")
    ] = None
    useful: Annotated[
        datetime | None, Meta(description="When the program reported a later step than before the fault.")
    ] = None


class Fault(KubeStruct):
    """One fault that ended an attempt, and the cause to which it was charged."""

    attempt: Annotated[int, Meta(description="The attempt that ended.")]
    slot: Annotated[int, Meta(description="The slot that failed first.")]
    node: Annotated[str, Meta(description="The node that held the slot.")] = ""
    cause: Annotated[Cause, Meta(description="The budget to which the fault was charged.")] = "unknown"
    rule: Annotated[str, Meta(description="The row of the table in docs/whose-fault.md that decided.")] = ""
    message: Annotated[str, Meta(description="What happened, with the last lines of the rank that failed first.")] = ""
    time: Annotated[datetime | None, Meta(description="When it happened.")] = None
    steps_lost: Annotated[
        int | None, Meta(description="Steps since the newest checkpoint; the program must repeat them.")
    ] = None
    step: Annotated[int | None, Meta(description="The newest step that was reported before the fault.")] = None
    slots: Annotated[int, Meta(description="Slots that got a new pod because of the fault.")] = 0
    checkpoint: Annotated[
        HandedCheckpoint | None,
        Meta(
            description="The checkpoint from which the attempt began, if the attempt reported neither a step nor a "
            "checkpoint. If this checkpoint no longer exists, that may explain the fault. Only the newest fault has "
            "this field."
        ),
    ] = None
    timeline: Annotated[Timeline | None, Meta(description="Times of the fault and of the recovery.")] = None


class TrainingJobStatus(KubeStruct):
    """The state of the job. At most 16 KB."""

    observed_generation: Annotated[int, Meta(description="The generation of spec that this status is about.")] = 0
    phase: Annotated[Phase, Meta(description="The phase of the job.")] = "Pending"
    conditions: Annotated[
        tuple[Condition, ...],
        Meta(
            description="Admitted, Running, Complete, Failed and Suspended, each with a reason. Admitted is True when "
            "every slot has a node; while it is False, its reason is the scheduler's."
        ),
    ] = ()
    attempt: Annotated[
        int,
        Meta(
            description="Number of the current attempt. Reports of older attempts are refused. If a limit ended the "
            "job, the number of the attempt that was not started."
        ),
    ] = 0
    ran_attempt: Annotated[int, Meta(description="Number of the newest attempt whose ranks were directed to run.")] = 0
    ready_slots: Annotated[int, Meta(description="Slots whose supervisor has joined.")] = 0
    node_use: Annotated[
        NodeUse | None,
        Meta(
            description="How the job uses its nodes. If absent, the job began before Muster recorded it, and its "
            "nodes are shared."
        ),
    ] = None
    size: Annotated[
        int,
        Meta(
            description="Number of nodes of the current attempt. It is less than spec.replicas while the job runs "
            "without some nodes."
        ),
    ] = 0
    left_out: Annotated[
        tuple[int, ...],
        Meta(
            max_length=LEFT_OUT_MAX,
            description="Slots without which the current attempt runs, or is about to run (noSpare: Shrink).",
        ),
    ] = ()
    fixed_spec: Annotated[
        FixedSpec | None,
        Meta(
            description="The spec that the job has used since it became active. Later edits of the spec do not change "
            "it."
        ),
    ] = None
    run: Annotated[
        RunRecord | None, Meta(description="Facts that the running attempt depends on, written when it began.")
    ] = None
    restarts: Annotated[Restarts | None, Meta(description="Restarts so far, by cause.")] = None
    backoff: Annotated[
        Backoff | None, Meta(description="Repeated faults of the program, and the pause before the next attempt.")
    ] = None
    preemptions: Annotated[
        int,
        Meta(description="How often the job was preempted. No budget limits this."),
    ] = 0
    backfill: Annotated[
        BackfillStatus | None,
        Meta(description="Whether the job is backfilled, and what that cost it; absent if it never was."),
    ] = None
    start_forecast: Annotated[
        StartForecast | None,
        Meta(
            description="When the job is expected to start. Written soon after it begins to wait, then at most every "
            "10 minutes if the estimate changed by more than a quarter; absent once the job has nodes."
        ),
    ] = None
    progress: Annotated[Progress | None, Meta(description="The newest report of the program.")] = None
    checkpoint_dir: Annotated[
        str,
        Meta(
            description="The job's own folder or URL for checkpoints, below spec.checkpoint.path; fixed at the first "
            "start. If empty, the job began under an earlier version and uses the path itself."
        ),
    ] = ""
    checkpoint_source: Annotated[
        CheckpointSource | None, Meta(description="The checkpoint of another job from which this one started.")
    ] = None
    checkpoints: Annotated[
        tuple[CheckpointStatus, ...],
        Meta(
            max_length=CHECKPOINTS_MAX,
            description="The newest confirmed checkpoints, newest first. If one no longer exists, the next attempt "
            "starts from the next older one. Attempt 0 means the other job's checkpoint that "
            "spec.checkpoint.from names.",
        ),
    ] = ()
    quarantined_checkpoints: Annotated[
        tuple[QuarantinedCheckpoint, ...],
        Meta(
            max_length=QUARANTINED_MAX,
            description="The newest confirmed checkpoints that ranks could not restore, newest last.",
        ),
    ] = ()
    quiet: Annotated[
        Quiet | None, Meta(description="Time for which the attempt has reported nothing; written at long intervals.")
    ] = None
    stall: Annotated[Stall | None, Meta(description="Why the attempt counts as stalled; absent if it does not.")] = None
    idle_ranks: Annotated[
        tuple[RankState, ...],
        Meta(max_length=IDLE_RANKS_MAX, description="Ranks whose process does not run, although the attempt runs."),
    ] = ()
    last_checkpoint: Annotated[
        CheckpointStatus | None, Meta(description="The checkpoint from which the next attempt starts.")
    ] = None
    faults: Annotated[tuple[Fault, ...], Meta(max_length=8, description="The newest faults, newest last.")] = ()
    excluded_nodes: Annotated[
        tuple[str, ...],
        Meta(max_length=32, description="Nodes that the pods of replaced slots must avoid, newest last."),
    ] = ()
    time_to_useful_seconds: Annotated[
        float | None, Meta(description="Time from the newest fault to the first later step.")
    ] = None
    slots_kept: Annotated[int | None, Meta(description="Slots that kept their pod in the newest restart.")] = None
    start_time: Annotated[datetime | None, Meta(description="When the ranks first ran.")] = None
    run_seconds: Annotated[
        float,
        Meta(
            description="How long the ranks have run in all attempts that have ended, without waiting and starting. "
            "Each attempt counts in whole seconds."
        ),
    ] = 0.0
    completion_time: Annotated[datetime | None, Meta(description="When the job ended.")] = None
    message: Annotated[str, Meta(description="What the job does or waits for, as text.")] = ""

    def ran_seconds(self, now: float) -> float:
        """Return how long the ranks have run until now, in all attempts."""
        running = next((each for each in self.conditions if each.type == "Running" and each.status == "True"), None)
        since = running.last_transition_time if running is not None else None
        return self.run_seconds + (max(0.0, now - since.timestamp()) if since is not None else 0.0)
